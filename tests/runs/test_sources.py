"""What counts as the same code: meaning, not bytes."""

import shutil
from pathlib import Path

import pytest

from grpo_utils import evaluation, runs, training
from grpo_utils.runs import ROOT

SOURCE = '''"""A module."""

import math


class Circle:
    """A circle."""

    def area(self, radius):
        """Returns the area."""
        return math.pi * radius**2  # by Archimedes
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("A module.", "The module.", True),
        ('    """A circle."""\n\n', "", True),
        ("Returns the area.", "Returns teh area.", True),
        ("  # by Archimedes", "", True),
        ("math.pi * radius**2", "(math.pi\n            * radius ** 2)", True),
        ("radius**2", "radius**3", False),
        ("radius**2", "radius**2.0", False),
        ("def area", "def content", False),
        ("import math\n", "import math\n\n'a text'\n", False),  # no docstring: it would be the value of a cell
    ],
)
def test_code_is_the_same_when_only_prose_and_layout_differ(old, new, same):
    assert SOURCE.replace(old, new) != SOURCE
    assert (runs.meaning_hash(SOURCE) == runs.meaning_hash(SOURCE.replace(old, new))) == same


def test_a_hash_is_the_same_on_every_python_that_the_project_is_for():
    """A text with what `ast` writes out differently in 3.11, 3.12 and 3.13; all three gave this hash."""
    source = 'class A: pass\nasync def f(a, *, b=None): return f"{a!r:>{b}}" "c" f"{b=}", {**a}, ..., 1j, b"\\xff"\n'
    assert runs.meaning_hash(source) == "361d143fa50821f1f592eba2d385a3c9b448d3a95b3cfc516bf2283fb318a692"


@pytest.mark.parametrize("text", ["def half(", "x = '\0'", "'\ud800'"])
def test_a_text_that_is_no_python_is_hashed_as_it_is(text):
    assert runs.meaning_hash(text) == runs.meaning_hash(text) != runs.meaning_hash(text + " ")


def package(folder: Path, monkeypatch) -> Path:
    """A copy of the package's sources, which hashes are taken of from now on."""
    shutil.copytree(ROOT / "grpo_utils", folder / "grpo_utils", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(runs.sources, "ROOT", folder)
    return folder / "grpo_utils"


def test_a_typo_in_a_docstring_is_no_other_code_and_a_changed_number_is(tmp_path, monkeypatch):
    folder = package(tmp_path, monkeypatch)
    before = runs.code_hash(), runs.code_hash("rewards", "training")
    module = folder / "rewards" / "code.py"
    text = module.read_text()
    module.write_text(text.replace('"""', '"""Oh. ', 1) + "\n# a remark\n")
    assert (runs.code_hash(), runs.code_hash("rewards", "training")) == before
    module.write_text(text + "\nMORE = 1\n")
    changed = runs.code_hash(), runs.code_hash("rewards", "training")
    assert changed[0] != before[0]
    assert changed[1] != before[1]
    assert runs.code_hash("policy") == runs.code_hash("policy")
    module.rename(module.with_name("renamed.py"))
    assert runs.code_hash("rewards") not in changed


def test_a_module_that_is_named_and_missing_is_not_hashed_as_nothing(tmp_path, monkeypatch):
    package(tmp_path, monkeypatch)
    with pytest.raises(FileNotFoundError):
        runs.code_hash("no_such_module.py")


@pytest.mark.parametrize("name", [*training.grpo.SOURCES, *evaluation.records.SOURCES])
def test_what_a_hash_is_taken_of_is_there(name):
    """A folder that moved away would be hashed as one without files."""
    assert (ROOT / "grpo_utils" / name).exists()

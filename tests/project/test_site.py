"""The site: its check finds what is planted, and its pages say truly where their outputs are from.

`make site` and `make site-check` build and check the whole site, in a real browser; these tests need neither.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

from grpo_utils import runs, tasks
from grpo_utils.runs import ROOT, chain


def load(name: str) -> ModuleType:
    """Imports one of the scripts in `docs/`, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build, check = load("build"), load("check")
SOUND = (
    '<h1 id="top">x</h1><a href="#top">up</a> <a href="sub/b.html#there">b</a> <a href="https://example.org/">out</a>'
)


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("", None),
        ('<img src="data:image/png;base64,AA==">', None),
        ('<a href="gone.html">x</a>', "gone.html leads nowhere"),
        ('<form action="gone.html"></form>', "gone.html leads nowhere"),
        ('<a href="sub/b.html#gone">x</a>', "sub/b.html#gone leads nowhere"),
        ('<img src="gone.png">', "gone.png leads nowhere"),
        (
            '<script src="https://cdn.example.org/a.js"></script>',
            "loads https://cdn.example.org/a.js from another host",
        ),
        ('<link rel="stylesheet" href="//fonts.example.org/f">', "loads //fonts.example.org/f from another host"),
        ("<p>/home/me/outputs</p>", "the page names /home/me/"),
    ],
)
def test_a_fault_in_a_page_is_found_and_a_sound_page_has_none(tmp_path, planted, fault):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(SOUND + planted)
    (tmp_path / "sub" / "b.html").write_text('<p id="there"><a href="../index.html">back</a></p>')
    found, external = check.faults(tmp_path, ("/home/me/",))
    assert external == {"https://example.org/"}
    assert [one.partition(": ")[2] for one in found][:1] == ([fault] if fault else [])


def write(path: Path, recipe: str | None) -> None:
    """Writes a notebook of one cell, as papermill leaves it, with outputs of a recipe."""
    metadata = {"papermill": {"output_path": str(ROOT)}} | ({"grpo": {"recipe": recipe}} if recipe else {})
    cells = [nbformat.v4.new_markdown_cell("# One"), nbformat.v4.new_code_cell("1 + 1")]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)


@pytest.mark.parametrize(
    ("stamp", "recipe", "words"),
    [
        (None, None, "Not executed."),
        (None, "cpu-code", "Outputs of recipe `cpu-code`, as the repository keeps them."),
        ("today's", "cpu-code", "Executed by `reproduce --only 01`."),
        ("of another version", None, "Not executed."),
    ],
)
def test_a_notebook_s_page_says_where_its_outputs_are_from_and_names_no_path(
    tmp_path, monkeypatch, stamp, recipe, words
):
    source, smoke = tmp_path / "01_one.ipynb", runs.load_recipe("smoke-code")
    monkeypatch.setattr(chain, "CHAIN", tmp_path)
    monkeypatch.setattr(build, "ROOT", tmp_path)
    write(source, recipe)
    run = runs.outputs_folder() / smoke.name
    if stamp:
        write(run / "notebooks" / source.name, None)
        today = chain.stamps(smoke, tasks.data_fingerprint(smoke))[source]
        chain.stamp_path(run, source).write_text(today if stamp == "today's" else stamp)
    ((shown, note),) = build.origins(smoke, "reproduce").values()
    page = tmp_path / "site" / build.stage_notebook(source, tmp_path / "site", shown, note)
    assert note == words
    assert nbformat.read(page, as_version=4).cells[1].source == f"*{note}*"
    assert str(ROOT) not in page.read_text()


def test_every_module_that_one_imports_has_a_page_in_the_reference(tmp_path):
    """The sandbox's judge and jail are processes of their own: their objects answer over a pipe that is not there."""
    names = {page.stem for page in build.stage_reference(tmp_path)}
    modules = {path.relative_to(ROOT / "grpo_utils").with_suffix("") for path in (ROOT / "grpo_utils").rglob("*.py")}
    expected = {".".join(path.parts).removesuffix(".__init__") for path in modules} - {"__init__"}
    inner = ("sandbox.judge", "sandbox.jail")
    assert names == {name for name in expected if not name.endswith("__main__") and not name.startswith(inner)}

"""Committed notebooks are clean: prose before code, short cells, few words, exercises, links, the two parameters."""

import ast
import importlib
import inspect
import re
import shutil
import subprocess

import nbformat
import papermill
import pytest

from grpo_utils.runs import ROOT, chain

NOTEBOOKS = chain.list_notebooks()


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def test_the_chain_has_its_five_chapters():
    assert [path.name[:2] for path in NOTEBOOKS[:5]] == ["01", "02", "03", "04", "05"]


def test_cells_are_short_and_prose_stands_between_them(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert max(len(cell.source.splitlines()) for cell in code) <= 25
    assert len(notebook.cells) - len(code) >= 0.5 * len(code)
    assert notebook.cells[0].cell_type == "markdown"
    for word in ("You will learn", "**Reads**", "**Writes**", "**Takes**"):
        assert word in notebook.cells[0].source


def test_a_chapter_is_short_and_ends_with_exercises_and_reading(notebook, request):
    if " Exercises\n" not in "".join(cell.source for cell in notebook.cells):
        pytest.skip("to come")
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert len(prose.split()) <= 2000
    assert "**You should see** " in prose
    exercises, reading = re.split(
        r"^## \d+\.\d+ Further reading$", re.split(r"\d+ Exercises$", prose, flags=re.M)[1], flags=re.M
    )
    assert re.findall(r"^\d\. \((\w+)\)", exercises, flags=re.M) == ["easy", "medium", "hard"]
    (solutions,) = re.findall(r"\]\((solutions/.*?)\)", exercises)
    assert (ROOT / "notebooks" / solutions).is_file()
    assert request.node.callspec.params["notebook"].name[:2] == solutions.removeprefix("solutions/")[:2]
    assert 3 <= len(re.findall(r"^- \[.*?\]\(https://", reading, flags=re.M)) <= 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_parameters_are_recipe_and_overrides_with_types(path):
    parameters = papermill.inspect_notebook(str(path))
    assert {name: found["inferred_type_name"] for name, found in parameters.items()} == {
        "RECIPE": "str",
        "OVERRIDES": "dict",
    }


def test_a_notebook_can_be_opened_on_colab_and_its_setup_cell_does_nothing_here(notebook, request, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    exec(setup.source, {})
    assert "colab.setup(" in setup.source
    assert setup.source == nbformat.read(NOTEBOOKS[0], as_version=4).cells[1].source
    name = request.node.callspec.params["notebook"].name
    page = rf"https://colab\.research\.google\.com/github/[\w.-]+/[\w.-]+/blob/main/notebooks/{name}\)"
    assert re.search(page, notebook.cells[0].source)


def test_one_command_writes_the_address_of_a_copy_into_all_notebooks(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")

    def colab(repository: str) -> int:
        make = ["make", "--silent", "colab", f"REPOSITORY={repository}"]
        return subprocess.run(make, cwd=tmp_path, capture_output=True, check=False).returncode

    texts = {}
    for repository in ("me/mine", "we.too/ours_2"):
        assert colab(repository) == 0
        for path in (tmp_path / "notebooks").glob("*.ipynb"):
            text = path.read_text(encoding="utf-8")
            assert text.count(repository) == 2
            texts.setdefault(path.name, text.replace(repository, "?"))
            assert texts[path.name] == text.replace(repository, "?")
    assert colab("") == colab("https://github.com/me/mine") == colab("me/mine#x") == 2


def test_what_notebooks_and_scripts_take_from_the_package_exists():
    """A name that is used late in a long run would be missed late."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        sources[path.name] = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for name, source in sources.items():
        tree = ast.parse(source)
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("grpo_utils"):
                for alias in node.names:
                    module = importlib.import_module(node.module)
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")
                    if inspect.ismodule(found := getattr(module, alias.name)):
                        modules[alias.asname or alias.name] = found
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                assert hasattr(modules[node.value.id], node.attr), f"{name}: {node.value.id}.{node.attr}"

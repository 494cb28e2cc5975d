"""Committed notebooks are clean: prose before code, short cells, no output, the two parameters."""

import shutil
import subprocess

import nbformat
import papermill
import pytest

from grpo_utils import reproduce
from grpo_utils.tasks import ROOT

NOTEBOOKS = reproduce.notebooks()


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def test_the_chain_has_its_five_chapters():
    assert [path.name[:2] for path in NOTEBOOKS[:5]] == ["01", "02", "03", "04", "05"]


def test_no_output_and_no_execution_count_is_committed(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


def test_cells_are_short_and_prose_stands_between_them(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert max(len(cell.source.splitlines()) for cell in code) <= 25
    assert len(notebook.cells) - len(code) >= 0.5 * len(code)
    assert notebook.cells[0].cell_type == "markdown"
    for word in ("You will learn", "**Reads**", "**Writes**", "**Takes**"):
        assert word in notebook.cells[0].source


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
    page = f"github/YOU/YOUR-COPY/blob/main/notebooks/{name})"
    assert f"https://colab.research.google.com/{page}" in notebook.cells[0].source


def test_one_command_writes_the_address_of_a_copy_into_all_notebooks(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    make = ["make", "--silent", "colab"]
    assert subprocess.run(make, cwd=tmp_path, capture_output=True, check=False).returncode != 0
    for repository in ("me/mine", "we.too/ours_2"):
        subprocess.run([*make, f"REPOSITORY={repository}"], cwd=tmp_path, check=True)
        for path in NOTEBOOKS:
            text = (tmp_path / "notebooks" / path.name).read_text(encoding="utf-8")
            assert text.replace(repository, "YOU/YOUR-COPY") == path.read_text(encoding="utf-8")
            assert text.count(repository) == 2

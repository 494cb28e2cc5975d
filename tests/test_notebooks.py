"""Committed notebooks are clean: prose before code, short cells, no output, the two parameters."""

import nbformat
import papermill
import pytest

from grpo_utils import reproduce

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

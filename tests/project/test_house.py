"""The rooms of the package: how many, who imports whom, and that the picture of them is true."""

import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from grpo_utils.runs import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import house

PACKAGE = ROOT / "grpo_utils"


def test_the_picture_is_that_of_the_imports():
    assert house.FILE.read_text(encoding="utf-8") == house.draw(house.arrows())


def test_there_are_nine_rooms_few_arrows_and_no_circle():
    rooms = house.arrows()
    assert {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "__init__.py", "__main__.py"} == {
        room if room != "extractors" else "extractors.py" for room in rooms if room != house.COMMAND
    }
    assert len(rooms) == 10
    assert sum(map(len, rooms.values())) <= 45
    assert max(house.floors(rooms).values()) < len(rooms)


def test_a_circle_is_told():
    with pytest.raises(ValueError, match=r"circle: \['a', 'b'\]"):
        house.floors({"a": {"b"}, "b": {"a"}, "c": set()})


def modules() -> dict[str, set[str]]:
    """Every module of the package with those that it imports."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
                base = ".".join([*above, *filter(None, [node.module])])
                wanted = {f"{base}.{alias.name}" for alias in node.names} | {base}
                found[name] |= (wanted & files.keys()) - {name}
    return found


def test_no_files_import_each_other_in_a_circle():
    """A room's `__init__` imports its files, and they each other, by name: it is left out."""
    rooms = {name for name in modules() if (ROOT / Path(*name.split("."))).is_dir()}
    graph = {name: {one for one in below if one not in rooms} for name, below in modules().items() if name not in rooms}
    assert house.floors(graph)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_cell_of_a_notebook_imports_a_room_in_one_line(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            lines = re.findall(r"^(?:from|import) (grpo_utils\S*)", "".join(cell["source"]), flags=re.MULTILINE)
            assert max(Counter(lines).values(), default=0) <= 1, lines

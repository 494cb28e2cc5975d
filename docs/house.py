"""Draws the rooms of the package from its imports: `python docs/house.py` writes docs/house.svg.

A room stands above all that it imports. Arrows that a longer path implies are left out. A test compares the file with
the imports, and counts all arrows.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from diagrams import box, route, svg, text

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_name("house.svg")
COMMAND = "grpo"  # how the room of `__main__` is called
WIDE, HIGH, ACROSS, DOWN, MARGIN = 190, 50, 220, 84, 12  # pixels: of a room, from one to the next, and around all
SAYS = {
    "grpo": "the commands",
    "show": "figures, panel, pages",
    "evaluation": "policy x tasks -> tables",
    "training": "recipe -> policy",
    "policy": "model, completions",
    "rewards": "completions -> numbers",
    "tasks": "data set -> prompts",
    "runs": "recipe, folder, chain",
    "extractors": "text -> tags, numbers",
    "sandbox": "code + tests -> verdict",
}
STYLE = (
    "text{font:bold 15px sans-serif;text-anchor:middle;fill:#1a1a1a}text.says{font:12px sans-serif}"
    "rect{fill:#fff;stroke:#0072b2;stroke-width:1.5}path{fill:none;stroke:#0072b2;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}rect{fill:#1b1f24;stroke:#56b4e9}path{stroke:#56b4e9}}"
)

Arrows = Mapping[str, set[str]]


def arrows(package: Path = ROOT / "grpo_utils") -> Arrows:
    """Returns room -> the rooms that it imports, wherever in its code."""
    found: dict[str, set[str]] = defaultdict(set)
    rooms = {_room(path.relative_to(package)) for path in package.rglob("*.py")} - {"__init__"}
    for path in package.rglob("*.py"):
        own = _room(path.relative_to(package))
        found[own] |= (set(_imported(ast.parse(path.read_text(encoding="utf-8")))) & rooms) - {own}
    return {COMMAND if room == "__main__" else room: found[room] for room in sorted(rooms)}


def _room(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("grpo_utils"):
            inner = (node.module or "").split(".")[1:]
            yield from inner[:1] or (alias.name for alias in node.names)


def floors(rooms: Arrows) -> dict[str, int]:
    """Returns room -> its floor: one above the highest room that it imports.

    Raises:
        ValueError: rooms import each other in a circle.
    """
    level: dict[str, int] = {}
    while len(level) < len(rooms):
        ready = [room for room, below in rooms.items() if room not in level and below <= level.keys()]
        if not ready:
            raise ValueError(f"a circle: {sorted(rooms.keys() - level.keys())}")
        level |= {room: max((level[one] + 1 for one in rooms[room]), default=0) for room in ready}
    return level


def needed(rooms: Arrows) -> set[tuple[str, str]]:
    """Returns the arrows that no longer path implies."""

    def reach(room: str) -> set[str]:
        return set().union(*({one} | reach(one) for one in rooms[room]))

    implied = {room: set().union(*(reach(one) for one in below)) for room, below in rooms.items()}
    return {(room, one) for room, below in rooms.items() for one in below - implied[room]}


def places(rooms: Arrows) -> dict[str, tuple[float, int]]:
    """Returns where the middle of a room's upper edge is: over what it stands on, side by side with its neighbours."""
    level, strong = floors(rooms), needed(rooms)
    top = max(level.values())
    found: dict[str, tuple[float, int]] = {}
    for floor in range(top + 1):
        here = sorted(room for room in rooms if level[room] == floor)
        below = {room: [found[one][0] for upper, one in strong if upper == room] for room in here}
        wished = {room: fmean(below[room]) if below[room] else 0.0 for room in here}
        first = fmean(wished.values()) - ACROSS * (len(here) - 1) / 2
        for index, room in enumerate(sorted(here, key=lambda room: wished[room])):
            found[room] = (first + ACROSS * index, DOWN * (top - floor))
    left = min(x for x, _ in found.values()) - WIDE / 2 - MARGIN
    return {room: (x - left, y + MARGIN) for room, (x, y) in found.items()}


def draw(rooms: Arrows) -> str:
    """Returns the picture as SVG, for light and dark pages."""
    place = places(rooms)
    lines, boxes = [], []
    for upper, lower in sorted(needed(rooms)):
        (x1, y1), (x2, y2) = place[upper], place[lower]
        middle = (y1 + HIGH + y2) / 2
        lines.append(route([(x1, y1 + HIGH), (x1, middle), (x2, middle), (x2, y2)], is_bent=True))
    for room, (x, y) in place.items():
        boxes += [box(x - WIDE / 2, y, WIDE, HIGH), text(x, y + 21, room), text(x, y + 39, SAYS[room], "says")]
    width = max(x for x, _ in place.values()) + WIDE / 2 + MARGIN
    height = max(y for _, y in place.values()) + HIGH + MARGIN
    return svg(width, height, STYLE, [*lines, *boxes])


if __name__ == "__main__":
    FILE.write_text(draw(arrows()), encoding="utf-8")
    print(FILE)

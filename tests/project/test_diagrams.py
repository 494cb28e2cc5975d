"""The diagrams: drawn by the code as it is, readable on any page, true, and shown by a notebook."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from grpo_utils import evaluation, tasks
from grpo_utils.evaluation import judge_completions
from grpo_utils.runs import ROOT, load_recipe
from grpo_utils.sandbox import Sandbox

sys.path.insert(0, str(ROOT / "docs"))
import diagrams

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
EM = {"b": (14, 0.6), "s": (12, 0.53), "m": (12, 0.61)}  # pixels, and how wide a character is in these, on average
LARGEST = 30_000  # bytes


def markdown(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_the_files_are_what_is_drawn():
    files = {path.stem: path.read_text(encoding="utf-8") for path in diagrams.FOLDER.iterdir()}
    assert files == {name: diagrams.draw(diagram) for name, diagram in diagrams.DIAGRAMS.items()}


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_a_diagram_is_small_has_a_title_and_both_colours_and_its_text_within(name):
    file = diagrams.FOLDER / f"{name}.svg"
    root = ElementTree.parse(file).getroot()
    assert file.stat().st_size < LARGEST
    assert len(root.findtext(f"{SVG}title") or "") > 30
    style = root.findtext(f"{SVG}style") or ""
    assert "text{fill:#1a1a1a" in style
    assert "@media(prefers-color-scheme:dark){text{fill:#eee" in style
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for text in root.iter(f"{SVG}text"):
        kinds, words = text.get("class", "").split(), text.text or ""
        size, em = next((EM[kind] for kind in kinds if kind in EM), (13, 0.53))
        x, y, wide = float(text.attrib["x"]), float(text.attrib["y"]), size * em * len(words)
        left = x if "l" in kinds else x - wide if "r" in kinds else x - wide / 2
        assert left >= 0, words
        assert left + wide <= width, words
        assert size <= y <= height - 3, words


def test_no_text_is_smaller_than_12_pixels():
    assert min(map(int, re.findall(r"(\d+)px (?:sans|mono)", diagrams.STYLE))) >= 12
    assert min(map(int, re.findall(r"font-size:(\d+)px", diagrams.STYLE))) >= 12


def test_the_chain_is_that_of_the_chapters_heads():
    for number, (title, (_, sources, _)) in enumerate(diagrams.CHAPTERS.items(), 1):
        (chapter,) = (ROOT / "notebooks").glob(f"{number:02d}_*.ipynb")
        head = markdown(chapter)
        assert head.startswith(f"# {number} {title}\n")
        reads = head[head.index("**Reads**") : head.index("**Writes**")]
        named = re.findall(r"chapters? (\d)(?:(?:, \d)* and (\d))?", reads)
        assert sorted({int(one) for pair in named for one in pair if one}) == sources, chapter.name


def test_each_completion_of_the_grades_is_right_by_one_rule_more():
    recipe = load_recipe("cpu-math")
    task = tasks.MathsTask(task_id=1, text="", solution="", answer="42")
    svg = ElementTree.fromstring(diagrams.draw(diagrams.grades))
    texts = [text.text or "" for text in svg.iter(f"{SVG}text") if "m" in text.attrib["class"].split()]
    with Sandbox() as sandbox:
        scores = judge_completions([task] * len(texts), texts, recipe, sandbox)
    assert [[score[rule] for rule in ("strict", "lenient", "oracle")].count(True) for score in scores] == [0, 1, 2, 3]


def test_the_paired_interval_is_the_package_s():
    gained, lost = diagrams.GAINED, diagrams.LOST
    found = evaluation.difference([1.0] * gained + [-1.0] * lost + [0.0] * (diagrams.TASKS - gained - lost))
    (low, high), paired = diagrams.intervals()
    assert paired == pytest.approx((found.low, found.high), abs=1e-3)
    assert low < 0 < paired[0] < paired[1] < high
    assert found.verdict == "up"


def test_the_tokens_of_an_even_loss_weigh_1_together():
    svg = ElementTree.fromstring(diagrams.draw(diagrams.losses))
    tall: dict[float, float] = {}
    for bar in svg.iter(f"{SVG}rect"):
        low, high = float(bar.attrib["y"]) + float(bar.attrib["height"]), float(bar.attrib["height"])
        tall[round(low)] = tall.get(round(low), 0.0) + high / 420
    assert list(tall.values()) == pytest.approx([1, 1, 1, 24 / 64], abs=0.01)


@pytest.mark.parametrize("name", ["loop", "advantages", "clip"])
def test_a_diagram_is_shown_by_a_notebook(name):
    assert any(f"](../docs/diagrams/{name}.svg)" in markdown(notebook) for notebook in NOTEBOOKS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: str(path.relative_to(ROOT / "notebooks")))
def test_an_image_of_a_notebook_is_there_and_says_what_it_shows(notebook):
    for words, address in IMAGE.findall(markdown(notebook)):
        assert len(words) > 30, f"the image {address} has no alternative text"
        assert "://" in address or (notebook.parent / address).is_file(), address

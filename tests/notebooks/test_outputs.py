"""What the notebooks keep of their outputs: it agrees with their sources, and is worth reading."""

import base64
import io
import sys
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from grpo_utils.runs import ROOT, UserError, chain

sys.path.insert(0, str(ROOT / "docs"))
import outputs

KEPT = [*chain.list_notebooks(), *sorted(outputs.SOLUTIONS.glob("*.ipynb"))]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_outputs_agree_with_the_sources(path):
    assert list(outputs.find_faults(path)) == []


def test_all_notebooks_together_are_small():
    assert sum(path.stat().st_size for path in KEPT) < outputs.ALL


def stream(text: str, name: str = "stdout") -> nbformat.NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


@pytest.fixture
def chapter(tmp_path) -> Path:
    """A small chapter, executed and kept."""
    cells = [
        nbformat.v4.new_markdown_cell("# 9 A chapter"),
        nbformat.v4.new_code_cell("rate = 0.283\nprint(rate)"),
        nbformat.v4.new_markdown_cell(
            f"{outputs.RUN}, greedy passes 28.3 % of tasks.\n\nOf 500 tasks nothing is said."
        ),
    ]
    path, executed = tmp_path / "09_chapter.ipynb", tmp_path / "executed.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    cells[1].outputs = [stream("0.283\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), executed)
    outputs.keep_outputs(path, executed, "smoke-code")
    assert list(outputs.find_faults(path)) == []
    return path


def change(path: Path, cell: int, old: str, new: str) -> list[str]:
    """The faults of a chapter in which one cell, or its output, says something else."""
    notebook = nbformat.read(path, as_version=4)
    held = notebook.cells[cell].outputs[0] if "text" in old else notebook.cells[cell]
    key = "text" if "text" in old else "source"
    held[key] = held[key].replace(old.removeprefix("text "), new)
    nbformat.write(notebook, path)
    return list(outputs.find_faults(path))


def test_other_code_than_the_outputs_are_of_is_found_and_another_comment_is_not(chapter):
    assert change(chapter, 1, "print(rate)", "print(rate)  # the share") == []
    (fault,) = change(chapter, 1, "rate = 0.283", "rate = 0.3")
    assert 'make notebooks ARGS="--only 09"' in fault


@pytest.mark.parametrize(
    ("new", "unsaid"), [("28.4 %", "28.4 %"), ("28.3", "28.3"), ("0.283", None), ("28.30 %", "28.30 %")]
)
def test_a_number_in_prose_that_no_output_holds_is_found(new, unsaid, chapter):
    faults = change(chapter, 2, "28.3 %", new)
    assert [repr(unsaid) in fault for fault in faults] == [True] * (unsaid is not None)


@pytest.mark.parametrize(
    "text",
    [
        *("see /home/me/run\n", "/tmp/pytest-1/x\n", "file:/root/x\n", "/workspace/x\n", "C:\\Users\\me\n"),
        *("3.5 it/s\n", "3.2it/s\n", "1.2s/completion\n", "step 1  8.9 s a step\n", "at 450 tokens per second\n"),
    ],
)
def test_a_path_and_a_pace_are_found(text, chapter):
    (fault,) = change(chapter, 1, "text 0.283\n", f"0.283\n{text}")
    assert "path or a pace" in fault


def test_an_answer_tag_and_a_division_are_no_paths(chapter):
    assert change(chapter, 1, "text 0.283\n", "0.283 </answer> 3/4 a /usr\n") == []


@pytest.mark.parametrize(("says", "fault"), [("-6.7", 0), ("6.7", 0), ("-28.3", 1), ("[6.7](https://x.org/12)", 0)])
def test_a_minus_in_prose_stands_in_the_output_and_an_address_is_no_number(says, fault, chapter):
    change(chapter, 1, "text 0.283\n", "0.283 28.3 -6.7\n")
    assert len(change(chapter, 2, "28.3 %", says)) == fault


def test_another_recipe_must_be_said_below_the_title(chapter, monkeypatch):
    other = {"smoke-code": ROOT / "recipes" / "cpu-code.yaml"}
    monkeypatch.setattr(outputs.runs, "recipe_files", lambda: other)
    (fault,) = outputs.find_faults(chapter)
    assert outputs.OLDER in fault
    assert change(chapter, 0, "A chapter", f"A chapter\n\n{outputs.OLDER}") == []


def test_an_error_and_outputs_that_nobody_kept_are_found(chapter):
    notebook = nbformat.read(chapter, as_version=4)
    notebook.cells[1].outputs.append(nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[]))
    nbformat.write(notebook, chapter)
    assert list(outputs.find_faults(chapter)) == ["ends in an error: ValueError."]
    del notebook.metadata["grpo"]
    nbformat.write(notebook, chapter)
    assert list(outputs.find_faults(chapter)) == ["has outputs that `make notebooks` did not write."]


def test_a_copy_of_other_code_is_not_kept(chapter, tmp_path):
    other = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    nbformat.write(other, tmp_path / "other.ipynb")
    with pytest.raises(UserError, match="from other code"):
        outputs.keep_outputs(chapter, tmp_path / "other.ipynb", "smoke-code")


def test_bars_keep_their_last_state_and_lines_lose_their_pace():
    bar = "\rtest.0shot:   0%|          | 0/6 [00:00<?, ?completion/s]"
    bar += "\rtest.0shot: 100%|██████████| 6/6 [00:07<00:00,  1.24s/completion, strict=0.250]\n"
    warned = "/a/b/guard.py:12: SignalWarning: Groups are equal.\n  warnings.warn(text)\n"
    line = "step    1 of 2  reward 0.62  tokens per second 419  8.9 s a step  1 day, 0:01:30 left\n"
    said, logged = outputs.trim([stream(line), stream(bar, "stderr"), stream("done\n"), stream(warned, "stderr")], 3)
    assert said.text == "step    1 of 2  reward 0.62\ndone\n"
    assert logged.text == "test.0shot: 6/6, strict=0.250\nSignalWarning: Groups are equal.\n"


def test_a_figure_becomes_small_and_a_table_loses_its_random_names():
    buffer = io.BytesIO()
    Image.effect_noise((400, 300), 40).convert("RGBA").save(buffer, "png")
    noisy = base64.b64encode(buffer.getvalue()).decode()
    html = '<style scoped>\n  td {x}\n</style>\n<style>#T_3f2a1_row0 {}</style><table id="T_3f2a1"></table>'
    data = {"image/png": noisy, "text/html": html, "application/vnd.jupyter.widget-view+json": {}}
    (shown,) = outputs.trim([nbformat.v4.new_output("display_data", data=data)], 7)
    assert set(shown.data) == {"image/png", "text/html"}
    assert len(shown.data["image/png"]) < len(noisy)
    assert shown.data["text/html"] == '<style>#T_7_row0 {}</style><table id="T_7"></table>'

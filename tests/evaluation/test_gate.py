"""The gate before training: what it counts, and what it says of it."""

import json
import sys

import pytest

from grpo_utils import evaluation, runs, tasks
from grpo_utils.evaluation import Gate, difference, rate

RECIPE = runs.load_recipe("smoke-code")
TASKS = tasks.load_tasks("starter", "validation")


def measured(run, greedy: list[bool], passes: list[int]) -> None:
    """A record of the warm start at the gate: of each task the greedy completion and eight samples."""
    rows = []
    for task, first, c in zip(TASKS, greedy, passes, strict=False):
        completions = [{"strict": one, "visible": one} for one in (first, *[True] * c, *[False] * (8 - c))]
        rows.append({"task_id": task.task_id, "grade": task.grade, "completions": completions})
    settings = {"checkpoint": "warm-start", "split": "validation-8-at-0.7", "shots": 1}
    path = runs.record_path(run, "warm-start", settings["split"], 1)
    runs.write_file(path, json.dumps({"settings": settings, "update_norm": 1.0, "tasks": rows}))


@pytest.fixture
def gate(tmp_path, monkeypatch):
    def of(greedy: list[bool], passes: list[int]) -> Gate:
        asked = []
        module = sys.modules["grpo_utils.evaluation.gate"]  # the package's `gate` is the function in it
        monkeypatch.setattr(module, "sweep", lambda *args, **more: asked.append((args[2], more["drawn"].samples)))
        measured(tmp_path, greedy, passes)
        found = evaluation.gate(RECIPE, tmp_path)
        assert asked == [(["warm-start"], 8)]
        return found

    return of


def test_the_gate_counts_greedy_samples_and_mixed_groups(gate):
    found = gate([True, False, False, True], [8, 0, 1, 4])
    assert found.greedy == rate([1, 0, 0, 1])
    assert found.sampled == rate([1, 0, 1 / 8, 1 / 2])
    assert found.at_8 == rate([1, 0, 1, 1])
    assert found.room == difference([0, 0, 1, 0])
    assert found.mixed == rate([0, 0, 1, 1])
    assert found.tasks == 4


@pytest.mark.parametrize(
    ("greedy", "passes", "said"),
    [
        ([False] * 60, [0] * 50 + [1] * 10, "Not yet: 17% of the groups are mixed"),
        ([False] * 60, [2] * 60, "Worth training: pass@8 lies 100 points above greedy"),
        ([True] * 60, [4] * 60, "pass@8 lies only 0 points above it."),
    ],
)
def test_the_sentence_says_what_to_expect_and_whether_the_numbers_leave_it_open(gate, greedy, passes, said):
    sentence = gate(greedy, passes).sentence
    assert said in sentence
    assert "Undecided" not in sentence


@pytest.mark.parametrize(("passes", "open_"), [([1, 0, 0, 0], "50%"), ([4, 4, 4, 0], "25%")])
def test_of_few_tasks_the_sentence_says_that_they_leave_it_open(gate, passes, open_):
    assert gate([False] * 4, passes).sentence.endswith(f" Undecided, for the interval holds {open_}.")


def test_the_gate_prints_every_number_with_its_interval(gate):
    lines = str(gate([True, False], [8, 1])).splitlines()
    assert lines[0] == "Worth training? warm-start on 2 validation tasks, strict, with 95 % intervals:"
    assert [line.split("  ")[1] for line in lines[1:-1]] == [
        *("greedy", "T = 0.7, pass@1", "T = 0.7, pass@8", "mixed groups", "pass@8 - greedy")
    ]
    assert all("[" in line for line in lines[1:-1])

"""The gate before training: what it counts, and what it says of it."""

import json
import sys

import pytest

from grpo_utils import evaluation, runs, tasks
from grpo_utils.evaluation import Gate, difference, mixed_share, rate

SETTINGS = {"dataset.pass_rate": [0.01, 0.99], "evaluation.samples.train": {1: 8}, "grpo.num_generations": 4}
RECIPE = runs.load_recipe("smoke-code", SETTINGS)
TASKS = tasks.load_tasks("starter", "train")
PRACTICE = [2, 4, 6, 0, 8]  # passes of eight of the training tasks, of which the filter keeps the first three


def write(run, split: str, greedy: list[bool], passes: list[int]) -> None:
    """A record of the warm start: of each task the greedy completion and eight samples."""
    rows = []
    for task, first, c in zip(TASKS, greedy, passes, strict=False):
        completions = [{"strict": one, "visible": one} for one in (first, *[True] * c, *[False] * (8 - c))]
        rows.append({"task_id": task.task_id, "grade": task.grade, "completions": completions})
    settings = {"checkpoint": "warm-start", "split": split, "shots": 1}
    record = {"settings": settings, "update_norm": 1.0, "tasks": rows}
    runs.write_file(runs.record_path(run, "warm-start", split, 1), json.dumps(record))


@pytest.fixture
def gate(tmp_path, monkeypatch):
    def of(greedy: list[bool], passes: list[int], practice: list[int] = PRACTICE) -> Gate:
        asked = []
        module = sys.modules["grpo_utils.evaluation.gate"]  # the package's `gate` is the function in it
        monkeypatch.setattr(module, "sweep", lambda *args, **more: asked.append((*args[2:], more.get("drawn"))))
        write(tmp_path, "train", [True] * len(practice), practice)
        write(tmp_path, "validation-8-at-0.7", greedy, passes)
        found = evaluation.gate(RECIPE, tmp_path)
        assert asked == [(["warm-start"], "train", None), (["warm-start"], "validation", evaluation.Drawn(8, 0.7))]
        return found

    return of


def test_the_gate_counts_greedy_and_samples_apart_and_forecasts_the_groups_of_practice(gate):
    found = gate([True, False, False, True], [8, 0, 1, 4])
    assert found.greedy == rate([1, 0, 0, 1])
    assert found.sampled == rate([1, 0, 1 / 8, 1 / 2])
    assert found.at_8 == rate([1, 0, 1, 1])
    assert found.room == difference([0, 0, 1, 0])
    assert found.mixed == mixed_share(PRACTICE, 8, RECIPE.grpo["num_generations"], 0.01, 0.99)
    assert (found.tasks, found.practice) == (4, 0.5)


@pytest.mark.parametrize(
    ("greedy", "passes", "practice", "said"),
    [
        ([False] * 60, [2] * 60, [0] * 50 + [1] * 10, "others teach nothing. Most fail"),
        ([False] * 60, [2] * 60, [8] * 50 + [7] * 10, "others teach nothing. Most pass"),
        ([False] * 60, [2] * 60, [2, 3, 4, 5, 6] * 20, "Worth training: pass@8 lies 100 points above greedy"),
        ([False] * 60, [2] * 60, [8] * 60, "others teach nothing. Most pass"),
        ([False] * 60, [2] * 60, [0] * 60, "others teach nothing. Most fail"),
        ([True] * 60, [4] * 60, [2, 3, 4, 5, 6] * 20, "pass@8 is no higher."),
        ([True] * 60, [4] * 30 + [0] * 30, [2, 3, 4, 5, 6] * 20, "pass@8 is no higher."),
        ([True, False, *[True] * 58], [4] * 60, [2, 3, 4, 5, 6] * 20, "pass@8 lies only 2 points above it."),
    ],
)
def test_the_sentence_says_what_to_expect(gate, greedy, passes, practice, said):
    assert said in gate(greedy, passes, practice).sentence


def test_of_few_tasks_the_sentence_names_every_threshold_that_they_leave_open(gate):
    sentence = gate([False] * 4, [4, 4, 0, 0]).sentence
    assert sentence.endswith("Undecided, for the interval holds the threshold: room (25%), mixed groups (50%).")
    assert "Undecided" not in gate([True] * 60, [4] * 60, [2, 3, 4, 5, 6] * 20).sentence


def test_the_gate_prints_every_number_with_its_interval(gate):
    lines = str(gate([True, False], [8, 1])).splitlines()
    assert lines[0] == "Worth training? warm-start on 2 validation tasks, strict, with 95 % intervals:"
    names = ["greedy", "T = 0.7, pass@1", "T = 0.7, pass@8", "pass@8 - greedy", "mixed groups"]
    assert all(line.startswith(f"  {name}") and "[" in line for line, name in zip(lines[1:-1], names, strict=True))


def test_a_recipe_without_a_filter_tries_only_some_of_many_tasks():
    module = sys.modules["grpo_utils.evaluation.gate"]
    recipe = runs.load_recipe("cpu-code", {"dataset.pass_rate": None, "dataset.max_grade": None})
    assert module._shortened(recipe, "train").dataset.limits == {"train": 160}
    assert module._shortened(RECIPE, "validation").dataset.limits == {"train": 4, "validation": 3, "test": 6}

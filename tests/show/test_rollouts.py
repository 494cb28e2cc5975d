"""Stored rollouts: each is shown with its task, its rewards and what the sandbox says; a damaged file is named."""

from typing import Any

import pandas as pd
import pytest

from grpo_utils import runs, tasks
from grpo_utils.show import rollouts
from grpo_utils.show.rollouts import Rollouts

RECIPE = runs.load_recipe("smoke-code")
TASKS = tasks.load_split(RECIPE, "train")
HOSTILE = "</pre><script>alert(1)</script>\x1b[31m\u202e"


def stored(task: tasks.Task, completion: str, paid: float, advantage: float) -> dict[str, Any]:
    """A row as TRL writes it."""
    row = {"step": 3, "prompt": "the whole chat", "completion": completion, "task_id": task.task_id}
    row |= {"tokens": len(completion) // 10 if "answer" in completion else 999, "strict": paid}
    return row | {"tests": paid, "strict_format": None, "advantage": advantage}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run" / "checkpoints" / "completions"
    folder.mkdir(parents=True)
    right = str(TASKS[0].reference_answer(RECIPE.prompt))
    wrong = TASKS[0].wrong_answer(RECIPE.prompt.tags)
    rows = [
        stored(TASKS[0], wrong, 0.0, -0.7),
        stored(TASKS[1], HOSTILE, 0.0, 0.0),
        stored(TASKS[0], right, 1.0, 0.7),
    ]
    pd.DataFrame(rows).to_parquet(folder / "completions_00003.parquet")
    return tmp_path / "run"


def test_a_group_is_shown_with_its_task_best_first(run):
    first, second = Rollouts(RECIPE, run)["step 3"]
    assert first.question == TASKS[0].question(RECIPE.prompt)
    assert first.title.endswith("(mean reward 0.50)")
    best, worst = first.completions
    assert best.verdict == "passed"
    assert best.code == TASKS[0].strict_answer(best.text, "answer")
    assert best.scores == pytest.approx(
        {"advantage": 0.7, "reward": 1.0, "tests": 1.0, "strict_format": float("nan"), "tokens": len(best.text) // 10},
        nan_ok=True,
    )
    assert worst.verdict == f"wrong answer at `{TASKS[0].requirements[0]}`"
    assert [one.verdict for one in second.completions] == ["no answer (cut off at the limit of tokens)"]


def test_steps_are_in_order_and_read_only_when_they_are_asked_for(run):
    folder = run / "checkpoints" / "completions"
    (folder / "completions_00020.parquet").write_bytes(b"PAR1 cut short")
    written = Rollouts(RECIPE, run)
    assert list(written) == ["step 3", "step 20"]
    with pytest.raises(runs.RunError, match=r"completions_00020\.parquet is damaged"):
        written["step 20"]


def test_completions_can_be_chosen_by_step_and_by_what_became_of_them_and_sorted(run):
    def shown(**chosen: Any) -> list[tuple[float, str]]:
        (entries,) = Rollouts(RECIPE, run, [3], **chosen).values()
        return [(one.scores["tests"], one.text) for entry in entries for one in entry.completions]

    everything = shown()
    assert sorted(shown(only="passed") + shown(only="failed")) == sorted(everything)
    assert [paid for paid, _ in shown(only="passed")] == [1.0]
    assert [text for _, text in shown(only="cut-off")] == [HOSTILE]
    assert [HOSTILE in text for _, text in shown(only="failed", by="tokens")] == [True, False]
    assert [HOSTILE in text for _, text in shown(only="failed", by="advantage")] == [True, False]
    with pytest.raises(runs.UserError, match=r"There is no step 4 in .*, which has 3 to 3"):
        Rollouts(RECIPE, run, [4])
    with pytest.raises(runs.UserError, match=r"no score 'test' \(did you mean 'tests'\?\) to sort by: advantage"):
        Rollouts(RECIPE, run, by="test")


def test_a_table_without_a_reward_of_the_recipe_is_called_damaged(run):
    path = run / "checkpoints" / "completions" / "completions_00003.parquet"
    pd.read_parquet(path).drop(columns="tests").to_parquet(path)
    with pytest.raises(runs.RunError, match="damaged"):
        Rollouts(RECIPE, run)["step 3"]


@pytest.mark.parametrize("task_id", [-1, "another"])
def test_a_task_of_another_data_set_is_told(run, task_id):
    path = run / "checkpoints" / "completions" / "completions_00003.parquet"
    pd.read_parquet(path).assign(task_id=task_id).to_parquet(path)
    with pytest.raises(runs.RunError, match="the data set has changed"):
        Rollouts(RECIPE, run)["step 3"]


def test_a_run_that_was_not_trained_names_the_notebook(tmp_path):
    with pytest.raises(runs.RunError, match="run notebook 04_grpo_training first"):
        Rollouts(RECIPE, tmp_path)


def test_the_static_page_holds_the_rollouts_and_runs_nothing_of_theirs(run):
    page = rollouts.write_rollouts(RECIPE, run).read_text(encoding="utf-8")
    assert "This page includes 1 of 1 step, 2 prompts and 3 completions." in page
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in page

"""The table of configurations: every one can be trained, and its row says what was measured."""

import numpy as np
import pandas as pd
import pytest

from grpo_utils import runs, tasks, training
from grpo_utils.training.checks import check_enough


@pytest.fixture(scope="module")
def script(load_benchmark):
    return load_benchmark("configurations")


def test_every_configuration_is_one_that_trl_takes_and_differs_from_the_others(script):
    recipes = []
    for why, own in script.CONFIGURATIONS.values():
        recipe = runs.load_recipe("cpu-code", script.PLAIN | own)
        training.check_arguments(recipe)
        check_enough(recipe, tasks.load_split(recipe, "train"))
        recipes.append(recipe.to_yaml())
        assert why
    assert len({*recipes}) == len(recipes)


def test_a_row_has_its_changes_with_intervals_and_the_table_names_what_was_not_run(script):
    greedy, sampled = np.arange(20) % 2 == 0, np.arange(20) % 4 == 0
    kinds = [(-1, greedy), *((i, sampled) for i in range(8))]
    rows = [
        {"sample": i, "task_id": task, "strict": bool(one)} for i, passed in kinds for task, one in enumerate(passed)
    ]
    before = script.scores(pd.DataFrame(rows))
    assert before.mean().to_dict() == {"greedy": 0.5, "sampled": 0.25, "pass@8": 0.25}
    changes = {score: script.compared(before[score], before["greedy"]) for score in before}
    assert changes["greedy"]["change"].startswith("+0.0 [-")
    assert changes["sampled"] == {"before": 25.0, "after": 50.0} | {
        key: changes["sampled"][key] for key in ("change", "p")
    }
    row = {"name": "plain", "why": "as it is", "steps": 40, "seconds a step": 9.5, "tasks": 20, "entropy": 0.1}
    row |= {"groups without spread": 0.05, "date": "2026-01-01", "commit": "abc1234", "processor": "one"} | changes
    page = script.table([row])
    assert f"25.0 to 50.0: {changes['sampled']['change']}" in page
    assert "Not run yet: 80 steps, all layers" in page


def test_a_run_begins_with_the_warm_start_of_another_and_its_records_wherever_it_was_killed(
    script, tmp_path, monkeypatch
):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path))
    source, recipe = tmp_path / "source", runs.load_recipe("smoke-code", {"name": "other"})
    files = {"checkpoints/made_with.txt", "checkpoints/warm-start/adapter", "evaluations/warm-start.train.0shot.json"}
    for name in files:
        runs.write_file(source / name, name)
    runs.write_file(source / "evaluations/base.test.0shot.json", "no warm start's")
    runs.write_file(tmp_path / "other/checkpoints/warm-start.partial/adapter", "half of")  # what a kill left
    run = script.begin(recipe, source)
    kept = {str(path.relative_to(run)): path.read_text() for path in run.glob("*/**/*") if path.is_file()}
    assert kept == {name: name for name in files}
    (source / "checkpoints/warm-start/adapter").write_text("another")
    script.begin(recipe, source)
    assert (run / "checkpoints/warm-start/adapter").read_text() == "checkpoints/warm-start/adapter"

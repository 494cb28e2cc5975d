"""A training beside a run's own: found again as it was, and emptied when something that made it has changed."""

import pytest

from grpo_utils import runs, training


def grader(text: str) -> float:
    return float("return" in text)


def other(text: str) -> float:
    return float("exit" in text)


def test_a_variant_begins_with_the_start_and_again_when_recipe_or_grader_changed(tmp_path):
    recipe, start, folder = runs.load_recipe("smoke-code"), tmp_path / "start" / "checkpoints", tmp_path / "one"
    training.begin_variant(folder, recipe, start, [grader])
    assert {path.name for path in folder.iterdir()} == {"made_with.txt"}
    (start / "warm-start").mkdir(parents=True)
    trained = folder / "checkpoints" / "checkpoint-2"
    changed = runs.load_recipe("smoke-code", {"grpo.max_steps": 3})
    for settings, graders in ((recipe, [grader]), (changed, [grader]), (changed, [other])):
        training.begin_variant(folder, settings, start, graders)
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["warm-start"]
        trained.mkdir()
        training.begin_variant(folder, settings, start, graders)
        assert trained.is_dir()


@pytest.mark.parametrize(("accumulation", "completions", "half"), [(4, 8, 2), (2, 8, 1), (3, 8, 3), (2, 4, 2)])
def test_half_a_batch_has_whole_groups(accumulation, completions, half):
    block = {"gradient_accumulation_steps": accumulation, "per_device_train_batch_size": completions}
    block["num_generations"] = 8
    recipe = runs.load_recipe("smoke-code", {f"grpo.{key}": value for key, value in block.items()})
    assert training.half_batch(recipe) == half

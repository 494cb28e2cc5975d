"""Recipes: what ships is valid, and what is wrong is named with its nearest right spelling."""

import pytest
from peft import LoraConfig

from grpo_utils import recipes, rewards, training
from grpo_utils.recipes import RecipeError


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_builds_what_the_trainer_needs(name, tmp_path):
    recipe = recipes.load(name)
    training.check_arguments(recipe)
    config = training.grpo_config(recipe, tmp_path)
    assert config.max_steps == recipe.grpo["max_steps"]
    assert config.reward_weights == list(recipe.weights.values())
    assert LoraConfig(**recipe.lora).r == recipe.lora["r"]
    functions, _ = rewards.of_recipe(recipe)
    assert [function.__name__ for function in functions] == list(recipe.rewards)


@pytest.mark.parametrize("name", recipes.names())
def test_the_resolved_recipe_reads_back_to_an_equal_one(name, tmp_path):
    recipe = recipes.load(name, {"seed": 7})
    path = tmp_path / "resolved.yaml"
    path.write_text(recipe.to_yaml())
    assert recipes.load(path) == recipe


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"promt.shots": 1}, r"Unknown key 'promt' in .*cpu-code.yaml \(did you mean 'prompt'\?\)"),
        ({"prompt.shot": 1}, r"Unknown key 'prompt.shot' in .* \(did you mean 'shots'\?\)"),
        ({"prompt.shots": -1}, r"Key 'prompt.shots' in .* is wrong: .*, not -1"),
        ({"seed": "x"}, r"Key 'seed' in .* is wrong"),
        ({"seed.x": 1}, r"Override 'seed.x' does not fit"),
        ({"rewards": {}}, r"Key 'rewards' in .* is wrong"),
        ({"name": "../elsewhere"}, r"Key 'name' in .* is wrong"),
        ({"dataset.limits": {"tset": 3}}, r"Key 'dataset.limits.tset"),
        ({"prompt.shots": 2}, r"evaluation.samples.validation lacks prompt.shots, the number 2"),
        ({"evaluation.samples.train": {}}, r"evaluation.samples.train must have one number of shots"),
        ({"grpo.log_completions": False}, r"yaml: grpo.log_completions must stay true: the notebooks"),
        ({"grpo": {"max_steps": 1}}, r"yaml: grpo.num_generations is missing"),
        ({"evaluation.samples.test": {0: 0}}, r"must sample the training prompt at least once"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(overrides, message):
    with pytest.raises(RecipeError, match=message):
        recipes.load("cpu-code", overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"grpo.learning_rat": 1e-4}, r"'grpo.learning_rat'.*'learning_rate'"),
        ({"warm_start.max_step": 4}, r"'warm_start.max_step'.*'max_steps'"),
        ({"warm_start.seed": 4}, r"'warm_start.seed', which follows from its other blocks"),
        ({"lora.rank": 4}, r"'lora.rank'"),
        ({"lora.task_type": "CAUSAL_LM"}, r"'lora.task_type', which follows from its other blocks"),
        ({"rewards.test": 1.0}, r"'rewards.test'.*'tests'"),
        ({"grpo.seed": 1}, r"'grpo.seed', which follows from its other blocks"),
        ({"grpo.num_generations": 7}, r"grpo block .* does not fit together"),
        ({"lora.target_modules": "all-linear"}, r"'lora.target_modules' a list"),
    ],
)
def test_an_argument_that_the_installed_versions_do_not_know_is_refused(overrides, message):
    with pytest.raises(RecipeError, match=message):
        training.check_arguments(recipes.load("cpu-code", overrides))


def test_an_unknown_recipe_names_the_nearest_one():
    with pytest.raises(RecipeError, match=r"'cpu-cod' \(did you mean 'cpu-code'\?\)"):
        recipes.load("cpu-cod")


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2", "just words", ""])
def test_a_file_that_is_no_recipe_is_refused_by_name(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"mine\.yaml"):
        recipes.load(path)


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(recipes.load("cpu-code").to_yaml().replace("lora:", "lara:"))
    with pytest.raises(RecipeError, match=r"'lora' is missing"):
        recipes.load(path)

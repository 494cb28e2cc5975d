"""The controls beside GRPO's claim: each can be trained, and the page says what was measured and what was not."""

import pytest

from grpo_utils import rewards, runs, training
from grpo_utils.evaluation import difference


@pytest.fixture(scope="module")
def script(load_benchmark):
    yield load_benchmark("controls")
    rewards.REGISTRY.pop("coin_flip")  # other tests look at every reward that there is


@pytest.mark.parametrize("recipe", ["cpu-code", "cpu-lists"])
def test_the_rewards_of_the_controls_are_ones_that_a_recipe_can_name(script, recipe, tmp_path):
    runs.write_file(tmp_path / "mine" / "recipe.yaml", runs.load_recipe(recipe).to_yaml())
    for paid in ({"coin_flip": 1.0}, {"strict_format": 1.0}):
        control = script.named(tmp_path / "mine", "control", {"rewards": paid})
        assert (control.name, control.rewards) == ("mine-control", paid)
        training.check_arguments(control)


def test_a_coin_flip_does_not_read_the_completion(script):
    paid = script.coin_flip(["the same"] * 1000)
    assert {*paid} == {0.0, 1.0}
    assert 400 < sum(paid) < 600


def arm(greedy, sampled, seconds):
    columns = {"greedy strict": greedy, "sampled strict": sampled, "sampled lenient": sampled}
    return columns | {"sampled format": [1.0] * 40, "in format": 80, "of these right": 20, "seconds": seconds}


def test_the_page_compares_grpo_with_every_arm_and_names_what_is_open(script):
    before, after = [0.0, 1.0] * 20, [1.0] * 40
    arms = {"warm start": arm(before, before, 0), "GRPO": arm(after, after, 100)}
    page = script.page("cpu-lists", {"arms": arms, "validation": {}, "processor": "one"})
    change = difference([1.0, 0.0] * 20).in_points()
    assert (
        f"| warm start | where GRPO begins | 0 | 50.0 | 50.0 | 50.0 | 100.0 | 25.0 | {change}, up | {change}, up |"
        in page
    )
    assert "Not run yet: more supervised steps, rejection sampling, a coin flip, format alone." in page
    assert script.page("cpu-lists", {"arms": {"GRPO": arms["GRPO"]}, "validation": {}, "processor": "one"})


def test_each_policy_is_compared_at_its_best_temperature(script):
    start = {"0": [0, 1] * 5, "0.3": [8] * 10, "0.7": [0] * 10, "1": [16] * 10}
    found = {"warm start": start, "GRPO": start | {"1": [32] * 10}}
    lines = script.validation_lines(found)
    assert "| warm start | 50.0 | 100.0 | 0.0 | 50.0 |" in lines
    best = "Each at its best on these tasks, GRPO at T = 0.3 less the warm start at T = 0.3: +0.0"
    assert [line for line in lines if line.startswith(best)]
    (curve,) = [line for line in lines if line.startswith("| GRPO | 1.000")]
    assert curve.count("1.000 [") == 6

"""Damaged inputs, GRPO_FUZZ of them: no exception that is not documented, and time that grows with the size."""

import os
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_utils import runs
from grpo_utils.runs import commands

from . import fuzz

SHARE = {"extractors": 0.955, "recipe": 0.005, "tasks": 0.02, "records": 0.02}  # a recipe takes a thousand times longer
COUNT = int(os.environ.get("GRPO_FUZZ", "200000"))


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "FOLDER", tmp_path)


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_no_damaged_input_raises_what_is_not_documented(target):
    for number, data in enumerate(fuzz.mutants(target, round(COUNT * SHARE[target]))):
        try:
            fuzz.TARGETS[target](data)
        except Exception as error:  # whatever it is, the mutant that did it is named
            raise AssertionError(f"mutant {number} of {target}: {data[:2000]!r}") from error


@pytest.mark.parametrize("target", fuzz.TARGETS)
@pytest.mark.parametrize("piece", [b"[", b'{"a":', b"<answer>", b"1,", b"- a\n", b"&a [*a]\n", b"(", b"-", b"x" * 20])
def test_time_grows_with_the_size_and_not_with_its_square(target, piece):
    """Four times the size may take eight times as long; a square would take sixteen."""
    size = 5_000 if target == "recipe" else 50_000  # YAML is read by Python code
    small, large = (min(_seconds(target, piece * (n // len(piece))) for _ in range(3)) for n in (size, 4 * size))
    assert large < 8 * small + 0.05


def _seconds(target: str, data: bytes) -> float:
    began = time.process_time()
    fuzz.TARGETS[target](data)
    return time.process_time() - began


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from(
    ["", ".", "seed", "grpo", "prompt.tags", "model.name", "evaluation.samples", "rewards.tests", "a.b"]
)


def assert_loads_or_is_one_sentence(load: Callable[[], runs.Recipe]) -> None:
    try:
        assert load().to_yaml()
    except runs.RecipeError as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS | st.text(max_size=12), VALUES, max_size=3))
def test_no_override_raises_anything_but_a_recipe_error(overrides):
    assert_loads_or_is_one_sentence(lambda: runs.load_recipe("smoke-code", overrides))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40) | st.sampled_from(["2001-99-99", "[" * 5000, "!!int x", "1" * 5000]))
def test_no_value_on_the_command_line_raises_anything_but_a_recipe_error(value):
    parameters = ("smoke-code", [f"seed={value}"], None)
    assert_loads_or_is_one_sentence(lambda: runs.load_recipe(*commands.parameters_of(*parameters)))

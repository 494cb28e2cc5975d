"""SignalGuard: silent on a healthy log, and each rule fires on the log that has its disease, and no other does."""

import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_utils.runs import ROOT, Dataset
from grpo_utils.training import RULES, SignalGuard, SignalWarning

LOGS = Path(__file__).parents[1] / "data" / "logs"
HEALTHY = [json.loads(line) for line in (LOGS / "healthy.jsonl").read_text().splitlines()][1:]  # the first is a header
DISEASES = json.loads((LOGS / "diseases.json").read_text())["diseases"]


def ill(disease: dict) -> list[dict]:
    before, after = disease.get("before", {}), disease["set"]
    return [entry | (after if entry["step"] >= disease["from_step"] else before) for entry in HEALTHY]


WEIGHTS = {"tests": 1.0, "runs": 0.25, "strict_format": 0.25}
NUMBERS = st.none() | st.floats() | st.sampled_from([0.0, 1.0, 1e308, -1e308, "", [1.0]])
KEYS = [*HEALTHY[0], "kl", "rewards/other/mean", "rewards/other/std", "rewards/", "rewards//mean"]


def train(guard: SignalGuard, log: list[dict], history: list[dict] | None = None) -> None:
    """Hands a log to the guard as the trainer does."""
    state = SimpleNamespace(global_step=0, log_history=history or [])
    guard.on_train_begin(None, state, None)
    for entry in log:
        state.global_step = entry["step"]
        guard.on_log(None, state, None, logs=entry)


def test_a_healthy_log_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(SignalGuard(), HEALTHY)


@pytest.mark.parametrize("disease", DISEASES, ids=lambda disease: disease["rule"])
def test_a_rule_warns_once_and_names_a_setting_or_a_place_to_look(disease):
    guard = SignalGuard(weights=WEIGHTS)
    with pytest.warns(SignalWarning) as caught:
        train(guard, ill(disease))
    assert guard.fired == {disease["rule"]}
    assert len(caught) == 1
    text = str(caught[0].message)
    assert any(word in text for word in ("grpo.", "dataset.", "rewards", "notebook 01"))
    assert set(re.findall(r"dataset\.(\w+)", text)) <= set(Dataset.model_fields)


def test_the_unplanned_hack_of_chapter_7_would_have_been_seen_in_its_first_steps():
    path = ROOT / "benchmarks" / "results" / "unplanned-hack.jsonl"
    header, *log = [json.loads(line) for line in path.read_text().splitlines()]
    guard, seen = SignalGuard(weights=header["rewards"]), {}
    for entry in log:
        guard.watch(entry)
        seen |= dict.fromkeys(guard.fired - seen.keys(), entry["step"])
    assert seen == {"cut_off": 10, "traded_reward": seen["traded_reward"]}
    assert seen["traded_reward"] <= 20


def test_every_rule_has_a_log_with_its_disease():
    assert {disease["rule"] for disease in DISEASES} == set(RULES)


def test_a_warning_names_the_step():
    with pytest.warns(SignalWarning, match="Step 10: "):
        train(SignalGuard(), ill(DISEASES[1]))


def test_a_reward_that_is_satisfied_late_is_not_called_dead():
    satisfied = {"from_step": 12, "set": {"rewards/strict_format/mean": 1.0, "rewards/strict_format/std": 0.0}}
    guard = SignalGuard()
    train(guard, ill(satisfied))
    assert guard.fired == set()


def test_rewards_cancel_only_by_their_weights():
    cancelling = ill(next(disease for disease in DISEASES if disease["rule"] == "cancelling_rewards"))
    guard = SignalGuard(
        weights={**WEIGHTS, "runs": 0.0, "strict_format": 0.0}
    )  # one part is left: a small sum is then the sum of one small reward
    assert [message for entry in cancelling for message in guard.watch(entry)] == []


def test_a_resumed_run_goes_on_with_its_log_and_is_not_warned_twice():
    log = ill(DISEASES[0])
    guard = SignalGuard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(guard, log[25:], history=log[:25])
    assert guard.fired == {"groups_without_spread"}


def test_a_reward_that_was_known_for_no_completion_does_no_harm():
    unknown = {"from_step": 1, "set": {"rewards/runs/mean": None, "rewards/runs/std": None}}
    guard = SignalGuard()
    train(guard, ill(unknown))
    assert guard.fired == set()


@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), NUMBERS, min_size=2) | st.just({})),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(["tests", "runs", "stranger"]), st.floats()),
)
def test_no_log_and_no_weights_end_a_training(log, window, weights):
    guard = SignalGuard(window=window, weights=weights)
    texts = [message for entry in log for message in guard.watch({"reward": 0.5, **entry})]
    assert len(texts) == len(guard.fired)
    assert all("None" not in text for text in texts)
    assert not [text for text in texts if "nan" in text and not re.match("The [a-z_]+ is nan", text)]


@given(st.lists(st.fixed_dictionaries({"reward": st.floats(0, 1), "kl": st.floats(0, 1e3)})))
def test_a_window_of_one_entry_judges_what_one_entry_can_show(log):
    guard = SignalGuard(window=1)
    for entry in log:
        guard.watch(entry)
    assert "kl_jump" not in guard.fired


def test_a_window_without_entries_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        SignalGuard(window=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["frac_reward_zero_std", "completions/clipped_ratio", "entropy", "reward_std"])
def test_a_value_that_is_not_finite_is_judged_by_no_rule(key, value):
    guard = SignalGuard(weights=WEIGHTS)
    train(guard, ill({"from_step": 1, "set": {key: value}}))
    assert guard.fired == set()


def test_a_resumed_run_knows_its_weights_by_name():
    """A checkpoint keeps the log with its keys in alphabetical order, so that the first reward is another one."""
    log = ill(next(disease for disease in DISEASES if disease["rule"] == "cancelling_rewards"))
    stored = [dict(sorted(entry.items())) for entry in log[:5]]
    with pytest.warns(SignalWarning, match=r"rewards 'tests', 'runs' vary"):
        train(SignalGuard(weights={**WEIGHTS, "strict_format": 0.0}), log[5:], history=stored)


def test_a_step_in_which_a_reward_is_unknown_hides_no_dead_one_and_a_weight_of_0_only_watches():
    entry = {"reward": 0.0, "rewards/tests/mean": 0.0, "rewards/tests/std": 0.0}
    for weight, said in ((1.0, ["dead_reward"]), (0.0, [])):
        guard = SignalGuard(window=3, weights={"tests": weight})
        for spread in (float("nan"), 0.0, 0.0, 0.0):
            guard.watch(entry | {"rewards/tests/std": spread})
        assert sorted(guard.fired) == said

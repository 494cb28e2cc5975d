"""SignalGuard: silent on a healthy log, and each rule fires on the log that has its disease, and no other does."""

import json
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_utils.recipes import Dataset
from grpo_utils.signal_guard import RULES, SignalGuard, SignalWarning

LOGS = Path(__file__).parent / "data" / "logs"
HEALTHY = [json.loads(line) for line in (LOGS / "healthy.jsonl").read_text().splitlines()][1:]  # the first is a header
DISEASES = json.loads((LOGS / "diseases.json").read_text())["diseases"]


def ill(disease: dict) -> list[dict]:
    before, after = disease.get("before", {}), disease["set"]
    return [entry | (after if entry["step"] >= disease["from_step"] else before) for entry in HEALTHY]


def train(guard: SignalGuard, log: list[dict], history: list[dict] | None = None) -> SimpleNamespace:
    """Hands a log to the guard as the trainer does, until it stops the run."""
    state, control = SimpleNamespace(global_step=0, log_history=history or []), SimpleNamespace()
    control.should_training_stop = False
    guard.on_train_begin(SimpleNamespace(reward_weights=[1.0, 0.25, 0.25]), state, control)
    for entry in log:
        state.global_step = entry["step"]
        guard.on_log(None, state, control, logs=entry)
        if control.should_training_stop:
            break
    return state


def test_a_healthy_log_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(SignalGuard(), HEALTHY)


@pytest.mark.parametrize("disease", DISEASES, ids=lambda disease: disease["rule"])
def test_a_rule_warns_once_and_names_a_setting_or_a_place_to_look(disease):
    guard = SignalGuard()
    with pytest.warns(SignalWarning) as caught:
        train(guard, ill(disease))
    assert guard.fired == {disease["rule"]}
    assert len(caught) == 1
    text = str(caught[0].message)
    assert any(word in text for word in ("grpo.", "dataset.", "rewards", "notebook 01"))
    assert set(re.findall(r"dataset\.(\w+)", text)) <= set(Dataset.model_fields)


def test_every_rule_has_a_log_with_its_disease():
    assert {disease["rule"] for disease in DISEASES} == set(RULES)


def test_a_guard_that_may_stop_the_run_ends_it_at_the_first_warning():
    with pytest.warns(SignalWarning, match="Step 10: "):
        state = train(SignalGuard(stop=True), ill(DISEASES[1]))
    assert state.global_step == 10


def test_a_reward_that_is_satisfied_late_is_not_called_dead():
    satisfied = {"from_step": 12, "set": {"rewards/strict_format/mean": 1.0, "rewards/strict_format/std": 0.0}}
    guard = SignalGuard()
    train(guard, ill(satisfied))
    assert guard.fired == set()


def test_rewards_cancel_only_by_their_weights():
    cancelling = ill(next(disease for disease in DISEASES if disease["rule"] == "cancelling_rewards"))
    guard = SignalGuard()
    guard.weights = [1.0, 0.0, 0.0]  # one part is left: a small sum is then the sum of one small reward
    assert [message for entry in cancelling for message in guard.watch(entry)] == []


def test_a_resumed_run_goes_on_with_its_log_and_is_not_warned_twice():
    log = ill(DISEASES[0])
    guard = SignalGuard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(guard, log[25:], history=log[:25])
    assert guard.fired == {"equal_groups"}


def test_a_reward_that_was_known_for_no_completion_does_no_harm():
    unknown = {"from_step": 1, "set": {"rewards/runs/mean": None, "rewards/runs/std": None}}
    guard = SignalGuard()
    train(guard, ill(unknown))
    assert guard.fired == set()

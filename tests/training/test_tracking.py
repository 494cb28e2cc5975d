"""What leaves a training while it runs: its log to a callback, and to the tracker that a recipe names."""

from types import SimpleNamespace

import pytest
import wandb

from grpo_utils import runs, training
from grpo_utils.runs import RecipeError


def test_a_training_that_goes_on_hands_over_its_earlier_steps_first(tmp_path):
    seen: list[training.grpo.LogEntry] = []
    log = training.TrainingLog(tmp_path / "log.jsonl", seen.append)
    state = SimpleNamespace(
        log_history=[{"loss": 0.5, "step": 1}, {"loss": 0.4, "step": 2}], global_step=3, max_steps=4
    )
    log.on_train_begin(None, state, None)
    log.on_log(None, state, None, logs={"loss": 0.3})
    assert [entry.pop("going_on", None) for entry in seen] == [3, 3, None]
    assert [(entry["step"], entry["loss"]) for entry in seen] == [(1, 0.5), (2, 0.4), (3, 0.3)]
    assert [{**entry, "max_steps": 4} for entry in runs.read_log(tmp_path / "log.jsonl")] == seen


def test_one_key_sends_both_trainings_to_a_tracker_offline_without_a_key_of_its_own(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.setenv(name, "")  # so that it is unset again in the end
        monkeypatch.delenv(name)
    settings = {"tracking": "wandb", "model.name": str(tiny_model), "lora.layers_to_transform": [1]}
    recipe = runs.load_recipe("smoke-code", settings | {"grpo.max_completion_length": 8})
    training.train(recipe, runs.start_run(recipe))
    tracked = wandb.run
    assert tracked is not None
    assert tracked.offline
    assert tracked.name == "smoke-code"
    tracked.finish()
    (stored,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for logged in (b"train/rewards/tests/mean", b"train/mean_token_accuracy"):  # of GRPO, of the warm start
        assert logged in stored.read_bytes()


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(training.grpo.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="has tracking 'trackio': pip install trackio"):
        training.check_arguments(runs.load_recipe("smoke-code", {"tracking": "trackio"}))

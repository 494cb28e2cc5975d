"""A training that goes on from a checkpoint, in a new trainer, takes the steps that it would have taken undisturbed."""

import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from grpo_utils import policy, rewards, runs, tasks, training

WEIGHTS = "adapter_model.safetensors"
TIMES = ("step_time", "train_runtime", "train_samples_per_second", "train_steps_per_second")


@pytest.fixture
def load(tiny_model, monkeypatch) -> Callable[..., runs.Recipe]:
    """Steps of one group of four, by a small random model that learns to write letters; an epoch is two tasks long.

    No two random texts have the same share of letters, so that every step learns something, on any processor.
    """
    monkeypatch.setitem(rewards.REGISTRY, "letters", None)

    @rewards.reward(0.0, 1.0)
    def letters(completions, **columns) -> list[float]:
        return [sum(map(str.isalpha, text)) / (len(text) or 1) for text in rewards.texts(completions)]

    def tiny(warm: bool = False, **grpo: Any) -> runs.Recipe:
        settings: dict[str, Any] = {"model": {"name": str(tiny_model), "dtype": "float32"}, "prompt.shots": 0}
        settings |= {"lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}}
        settings |= {"rewards": {"letters": 1.0}, "dataset.limits.train": 2}
        settings |= {f"evaluation.samples.{split}": {0: 1} for split in ("train", "validation", "test")}
        chosen: dict[str, Any] = {"num_generations": 4, "temperature": 1.0, "max_completion_length": 24}
        chosen |= {"learning_rate": 1e-2} | grpo
        settings |= {f"grpo.{key}": value for key, value in chosen.items()}
        return runs.load_recipe("smoke-code", settings if warm else settings | {"warm_start": None})

    return tiny


def log(run: Path) -> list[dict[str, Any]]:
    """Everything that was logged, but times."""
    entries = runs.read_log(run / "training_log.jsonl")
    return [{key: value for key, value in entry.items() if key not in TIMES} for entry in entries]


def weights(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {folder.name: load_file(folder / WEIGHTS) for folder in runs.checkpoints(run)}


def assert_resumed_as_undisturbed(recipe: runs.Recipe, steps: list[int]) -> list[dict[str, Any]]:
    """Trains, loses the last checkpoint and trains again; `steps` is where checkpoints fall. Returns the log."""
    run = runs.start_run(recipe)
    training.train(recipe, run)
    expected, adapters = log(run), weights(run)
    assert list(adapters) == [f"checkpoint-{step}" for step in steps]
    # the last steps learn something, or the comparison shows nothing
    assert [entry for entry in expected if entry["step"] > steps[-2] and entry.get("grad_norm")]
    shutil.rmtree(run / "checkpoints" / f"checkpoint-{steps[-1]}")
    training.train(recipe, run)
    assert log(run) == expected
    found = weights(run)
    assert list(found) == list(adapters)
    for name, adapter in adapters.items():
        assert all(torch.equal(tensor, found[name][key]) for key, tensor in adapter.items()), name
    return expected


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_resumed_is_undisturbed(beta, warm, iterations, load):
    """From the middle of the second epoch or the end of the first: TRL's sampler draws another order for each."""
    steps = [3, 5] if iterations == 1 else [4, 6]
    recipe = load(warm, beta=beta, num_iterations=iterations, save_steps=steps[0], max_steps=steps[1])
    entries = assert_resumed_as_undisturbed(recipe, steps)
    divergence = [entry["kl"] for entry in entries if "kl" in entry]
    assert len(divergence) == (steps[1] if beta else 0)
    if beta:  # measured to the warm start, or without one to the base: so at first there is none
        assert divergence[0] == pytest.approx(0.0, abs=1e-9)
        assert divergence[-1] > 0.0


def test_a_run_that_is_made_longer_takes_the_steps_that_it_would_have_taken(load, monkeypatch):
    long = load(True, max_steps=4, save_steps=2)
    undisturbed = runs.start_run(long)
    training.train(long, undisturbed)
    short = load(True, max_steps=2, save_steps=2).model_copy(update={"name": "short"})
    run = runs.start_run(short)
    training.train(short, run)
    longer = runs.extend_run(short, 4)
    assert runs.existing_run(longer) == run
    training.train(longer, run)
    steps = [[entry for entry in log(folder) if "reward" in entry] for folder in (undisturbed, run)]
    assert len(steps[0]) == 4
    assert steps[0] == steps[1]
    expected, found = weights(undisturbed)["checkpoint-4"], weights(run)["checkpoint-4"]
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())


@pytest.mark.parametrize(
    ("grpo", "steps", "message"),
    [
        ({}, 2, "has 2 steps: to go on, name a larger number than 2"),
        ({"lr_scheduler_type": "linear"}, 4, "follows linear over all its steps"),
        ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1}, 4, "would have been others"),
    ],
)
def test_a_run_is_not_made_longer_where_its_first_steps_would_have_been_others(load, grpo, steps, message):
    recipe = load(max_steps=2, **grpo)
    run = runs.start_run(recipe)
    with pytest.raises(runs.RunError, match=message):
        runs.extend_run(recipe, steps)
    assert runs.existing_run(recipe) == run


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 2}, [2, 3]),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 1, "save_steps": 2}, [2, 3]),
        ({"per_device_train_batch_size": 2, "steps_per_generation": 2, "save_steps": 1}, [2, 3]),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 1, "num_iterations": 3, "save_steps": 2}, [3, 4]),
        ({"logging_steps": 4, "save_steps": 3}, [3, 5]),
    ],
    ids=["accumulation", "two-generations-a-step", "two-steps-a-generation", "a-step-and-a-half", "logging"],
)
def test_checkpoints_fall_between_generations(settings, steps, load):
    assert_resumed_as_undisturbed(load(beta=0.04, max_steps=steps[-1], **settings), steps)


def test_a_signal_waits_for_the_steps_on_the_completions_at_hand(load, capsys):
    assert threading.current_thread() is threading.main_thread()
    recipe = load(beta=0.04, num_iterations=2, max_steps=4, save_steps=4)
    run = runs.start_run(recipe)
    training.train(recipe, run)
    expected, adapters = log(run), weights(run)
    shutil.rmtree(run / "checkpoints" / "checkpoint-4")

    def stop(entry: Any) -> None:
        if entry["step"] == 1:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        training.train(recipe, run, on_log=stop)
    assert "the steps that learn from these completions are ended and saved first" in capsys.readouterr().out
    assert list(weights(run)) == ["checkpoint-2"]
    training.train(recipe, run)
    assert log(run) == expected
    assert list(adapters) == list(weights(run)) == ["checkpoint-4"]
    for key, tensor in adapters["checkpoint-4"].items():
        assert torch.equal(tensor, weights(run)["checkpoint-4"][key])


def test_a_checkpoint_holds_the_policy_alone(load):
    """Not the reference, which is the warm start: it would be as large again in every checkpoint."""
    recipe = load(warm=True, beta=0.04, max_steps=1)
    run = runs.start_run(recipe)
    (checkpoint,) = training.train(recipe, run)
    assert not [path for path in checkpoint.iterdir() if path.is_dir()]
    start = load_file(run / "checkpoints" / runs.WARM_START / WEIGHTS)
    assert load_file(checkpoint / WEIGHTS).keys() == start.keys()


def test_every_completion_is_stored_with_its_task(load):
    recipe = load(max_steps=2, gradient_accumulation_steps=2)
    run = runs.start_run(recipe)
    training.train(recipe, run)
    asked = {task.task_id: task.question(recipe.prompt) for task in tasks.load_split(recipe, "train")}
    stored = [pd.read_parquet(path) for path in (run / "checkpoints" / "completions").glob("*.parquet")]
    assert [len(frame) for frame in stored] == [8, 8]
    for row in pd.concat(stored).itertuples():
        assert "".join(asked[row.task_id].split()) in "".join(row.prompt.split())  # pyright: ignore


def test_an_adapter_on_4_bit_weights_keeps_its_precision(load, monkeypatch):
    """TRL holds it in bfloat16. Here the weights are only said to be in 4 bits: a CPU has no kernels for them."""
    whole = policy.load_policy

    def said_to_be_quantized(recipe: Any) -> policy.Policy:
        base = whole(recipe)
        base.model.is_loaded_in_4bit = True
        return base

    monkeypatch.setattr(policy, "load_policy", said_to_be_quantized)
    recipe = load(max_steps=2)
    assert_resumed_as_undisturbed(recipe, [1, 2])
    (adapter, *_) = weights(runs.outputs_folder() / recipe.name).values()
    assert {tensor.dtype for tensor in adapter.values()} == {torch.bfloat16}


def test_every_completion_of_a_step_has_a_seed_of_its_own():
    def trainer(process: int) -> Any:
        accelerator = SimpleNamespace(num_processes=2, process_index=process)
        return SimpleNamespace(
            args=SimpleNamespace(seed=1), state=SimpleNamespace(global_step=0), accelerator=accelerator
        )

    drawn: list[int] = []
    both = [trainer(0), trainer(1)]
    for step in (0, 0, 0, 1, 1):
        for one in both:
            one.state.global_step = step
            drawn += training.generation.completion_seeds(one, 4)
    assert len(set(drawn)) == len(drawn) == 5 * 2 * 4
    again = trainer(0)  # in a new process, from the checkpoint of step 1
    again.state.global_step = 1
    assert (
        training.generation.completion_seeds(again, 4) + training.generation.completion_seeds(again, 4)
        == drawn[24:28] + drawn[32:36]
    )


def test_a_folder_beside_the_checkpoints_is_the_users(tmp_path):
    for name in ("checkpoint-10", "checkpoint-2", "checkpoint-2-backup", "checkpoint-best", "warm-start-old"):
        runs.write_file(tmp_path / "checkpoints" / name / "weights", "0.5")
        runs.seal_adapter(tmp_path / "checkpoints" / name)
    (tmp_path / "checkpoints" / "checkpoint-11").mkdir()  # a kill cut it short
    assert [folder.name for folder in runs.checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-10"]
    assert runs.drop_damaged(tmp_path) == runs.drop_extra(tmp_path) == runs.checkpoints(tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "checkpoint-10",
        "checkpoint-2",
        "checkpoint-2-backup",
        "checkpoint-best",
        "warm-start-old",
    ]

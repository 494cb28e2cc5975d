"""Training in several processes on a CPU: two of them learn what one learns, and DeepSpeed ZeRO-2 takes its steps."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from grpo_utils import runs, training
from grpo_utils.runs import ROOT


def start(name: str, model: Path, per_device: int, optimiser: str = "sgd") -> tuple[runs.Recipe, Path]:
    """A run of two steps on eight completions each, of a small random model, rewarded for short completions.

    In float32, where the order of a sum is all that differs, and without a warm start, from the same fresh adapter.
    With plain SGD: AdamW's first step is the sign of the gradient, so rounding decides where that is almost zero.
    """
    settings = {"name": name, "model": {"name": str(model), "dtype": "float32"}, "warm_start": None}
    settings |= {"rewards": {"overlong": 1.0}, "prompt.shots": 0, "evaluation.samples.validation": {0: 1}}
    settings |= {"lora.layers_to_transform": None}  # the model has fewer layers than the recipe's
    settings |= {"grpo.per_device_train_batch_size": per_device, "evaluation.samples.test": {0: 1}}
    settings |= {"evaluation.samples.train": {0: 1}}
    settings |= {"grpo.temperature": 1.0, "grpo.max_completion_length": 24, "grpo.optim": optimiser}
    recipe = runs.load_recipe("smoke-code", settings | {"grpo.learning_rate": 0.05 if optimiser == "sgd" else 1e-3})
    return recipe, runs.start_run(recipe)


def train_in_two_processes(launcher: str, run: Path) -> None:
    """Trains a run's recipe with a launcher that ships, on the CPU instead of GPUs."""
    configuration = str(training.launcher_file(launcher))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", configuration]
    command += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*command, "-m", "grpo_utils", "train", "--recipe", str(run / "recipe.yaml")],
        cwd=ROOT, env=os.environ | {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_two_processes_learn_what_one_learns(tiny_model):
    """The same eight completions a step, eight in one process or four in each of two, which exchange gradients by gloo.

    Every completion has a seed of its own, made from its place in the step, so both write the same completions; the
    second step starts from the weights of the first, so it also shows that the processes stay in step. It begins the
    second epoch too: from the checkpoint before, they take it again with the same tasks and numbers.
    """
    recipe, one = start("one", tiny_model, 8)
    training.train(recipe, one)
    _, two = start("two", tiny_model, 4)
    train_in_two_processes("ddp", two)
    logs = [[entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry] for run in (one, two)]
    for expected, found in zip(*logs, strict=True):
        for key in ("step", "reward", "reward_std", "completions/mean_length", "loss", "grad_norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    assert logs[0][0]["grad_norm"] > 0.0, "all completions are equally good: the comparison shows nothing"
    weights = [load_file(runs.checkpoints(run)[-1] / "adapter_model.safetensors") for run in (one, two)]
    for name, tensor in weights[0].items():
        assert tensor.norm() > 0.0
        assert (tensor - weights[1][name]).norm() <= 1e-4 * tensor.norm(), name
    shutil.rmtree(two / "checkpoints" / "checkpoint-2")
    train_in_two_processes("ddp", two)
    again = load_file(two / "checkpoints" / "checkpoint-2" / "adapter_model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in weights[1].items())


ONE_PROCESS = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "NO",
    "mixed_precision": "no",
    "num_processes": 1,
    "use_cpu": True,
}


def test_a_launcher_trains_the_recipe_that_it_is_given_into_the_folder_that_it_is_given(tiny_model, tmp_path):
    """As chapter 9 asks for: a folder within a run, and a recipe that is not the run's."""
    recipe, run = start("outer", tiny_model, 4)
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(ONE_PROCESS))
    changes = {"launcher": str(tmp_path / "one.yaml"), "rewards": {"overlong": 1.0, "truncated": 0.5}}
    checkpoints = training.train(recipe.model_copy(update=changes), run / "inner")
    assert checkpoints == [run / "inner" / "checkpoints" / f"checkpoint-{step}" for step in (1, 2)]
    first, *_ = runs.read_log(run / "inner" / "training_log.jsonl")
    assert "rewards/truncated/mean" in first
    assert not (run / "checkpoints").exists()


@pytest.mark.parametrize(
    ("name", "per_device", "fits"), [("length_penalty", 3, False), ("length_penalty", 4, True), ("overlong", 3, True)]
)
def test_a_reward_that_compares_a_group_needs_it_in_one_process(name, per_device, fits, monkeypatch):
    monkeypatch.setattr(training.grpo.GRPOConfig, "world_size", 2)
    sizes = {"grpo.per_device_train_batch_size": per_device, "grpo.num_generations": 2}
    recipe = runs.load_recipe("smoke-code", {"rewards": {name: 1.0}, **sizes})
    if fits:
        assert training.grpo_config(recipe, Path("unused")).num_generations == 2
    else:
        with pytest.raises(runs.RecipeError, match=r"'length_penalty' looks at a group of 2 .* 2 processes holds 3"):
            training.grpo_config(recipe, Path("unused"))


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed comes with the GPU profile only")
def test_deepspeed_zero_2_takes_two_steps(tiny_model):
    _, run = start("zero", tiny_model, 4, "adamw_torch")
    train_in_two_processes("zero2", run)
    assert [folder.name for folder in runs.checkpoints(run)] == ["checkpoint-1", "checkpoint-2"]

"""Training in several processes on a CPU: two of them learn what one learns, and DeepSpeed ZeRO-2 takes its steps."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from grpo_utils import launch, recipes, runs, training
from grpo_utils.tasks import ROOT

# float32, where the order of a sum is all that differs; no warm start, so that both begin with the same fresh adapter
SETTINGS = {"model.dtype": "float32", "warm_start": None, "grpo.temperature": 1.0, "grpo.max_completion_length": 40}
HALF = {"grpo.per_device_train_batch_size": 4}


def train_in_two_processes(launcher: str, folder: Path) -> None:
    """Trains a run's recipe with a launcher that ships, on the CPU instead of GPUs."""
    configuration = str(launch.configuration(launcher))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", configuration]
    command += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [*command, "-m", "grpo_utils.training", "--recipe", str(folder / "recipe.yaml")],
        cwd=ROOT, env=os.environ | {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_two_processes_learn_what_one_learns():
    """The same eight completions a step, eight in one process or four in each of two, which exchange gradients by gloo.

    Every completion has a seed of its own, made from its place in the step, so both write the same completions; the
    second step starts from the weights of the first, so it also shows that the processes stay in step.
    """
    alone = recipes.load("smoke-code", SETTINGS | {"name": "one"})
    one = runs.start(alone)
    training.train(alone, one)
    two = runs.start(recipes.load("smoke-code", SETTINGS | HALF | {"name": "two"}))
    train_in_two_processes("ddp", two)
    logs = [training.read_log(run / "training_log.jsonl") for run in (one, two)]
    assert [entry["step"] for entry in logs[0]] == [entry["step"] for entry in logs[1]]
    for expected, found in zip(*logs, strict=True):
        for key in ("reward", "reward_std", "completions/mean_length", "loss", "grad_norm"):
            if key in expected:
                assert found[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5), key
    assert any(entry.get("grad_norm", 0.0) > 0.0 for entry in logs[0]), "no gradient: the comparison shows nothing"
    weights = [load_file(runs.checkpoints(run)[-1] / "adapter_model.safetensors") for run in (one, two)]
    for name, tensor in weights[0].items():
        # AdamW divides by the root of its second moment, which blows up rounding where a gradient is almost zero
        assert (tensor - weights[1][name]).norm() <= 0.02 * tensor.norm() + 1e-6, name


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed comes with the GPU profile only")
def test_deepspeed_zero_2_takes_two_steps():
    run = runs.start(recipes.load("smoke-code", SETTINGS | HALF | {"name": "zero"}))
    train_in_two_processes("zero2", run)
    assert [folder.name for folder in runs.checkpoints(run)] == ["checkpoint-1", "checkpoint-2"]

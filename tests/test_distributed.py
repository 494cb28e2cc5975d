"""Training in several processes on a CPU: two of them learn what one learns, and DeepSpeed ZeRO-2 takes its steps."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from grpo_utils import recipes, runs, training
from grpo_utils.tasks import ROOT

# float32, where the order of a sum is all that differs; no warm start, so that both begin with the same fresh adapter
SETTINGS = {"model.dtype": "float32", "warm_start": None, "grpo.temperature": 1.0, "grpo.max_completion_length": 40}


def launch(folder: Path, processes: int, *arguments: str, **environment: str) -> None:
    """Trains `folder`'s recipe with `accelerate launch` on the CPU; fails with the last lines that it printed."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", f"--num_processes={processes}", *arguments]
    done = subprocess.run(
        [*command, "-m", "grpo_utils.training", "--recipe", str(folder / "recipe.yaml")],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, capture_output=True, text=True, timeout=400,
        check=False,
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
    shared = recipes.load("smoke-code", SETTINGS | {"name": "two", "grpo.per_device_train_batch_size": 4})
    two = runs.start(shared)
    launch(two, 2, "--multi_gpu", ACCELERATE_USE_CPU="true")
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
def test_deepspeed_zero_2_takes_two_steps(tmp_path):
    recipe = recipes.load("smoke-code", SETTINGS | {"name": "zero"})
    run = runs.start(recipe)
    settings = tmp_path / "zero2.json"
    settings.write_text(json.dumps({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}))
    launch(run, 1, "--use_deepspeed", f"--deepspeed_config_file={settings}", DS_ACCELERATOR="cpu")
    assert [folder.name for folder in runs.checkpoints(run)] == ["checkpoint-1", "checkpoint-2"]

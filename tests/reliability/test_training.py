"""A training run of a tiny policy: killed, stopped by a signal, and with damaged checkpoints."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_utils import runs

from .conftest import Chain, tiny_settings


def command(folder: Path, model: Path, warm: bool = True, **grpo: Any) -> Chain:
    """`grpo train` on the tiny model, which learns to be brief: six steps, two in an epoch."""
    settings = yaml.safe_load((runs.RECIPES / "smoke-code.yaml").read_text())
    path = folder / "smoke-code.yaml"
    chosen = {"num_generations": 4, "per_device_train_batch_size": 8, "temperature": 1.0, "learning_rate": 1e-2}
    chosen |= {"max_completion_length": 24} | grpo
    own = {"rewards": {"overlong": 1.0}, **{f"grpo.{key}": value for key, value in chosen.items()}}
    for key, value in (tiny_settings(model, steps=6, save=3) | own).items():
        runs.recipe._set(settings, key, value)
    if not warm:
        settings["warm_start"] = None
    folder.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return Chain([sys.executable, "-m", "grpo_utils", "train", "--recipe", str(path)], folder / "outputs")


def log(chain: Chain) -> list[dict[str, Any]]:
    """What was logged, but times."""
    entries = runs.read_log(chain.run / "training_log.jsonl")
    return [
        {key: value for key, value in entry.items() if "time" not in key and "_per_second" not in key}
        for entry in entries
    ]


def adapters(chain: Chain) -> dict[str, str]:
    """Hash of the weights of every checkpoint."""
    found = runs.checkpoints(chain.run)
    return {folder.name: json.loads((folder / runs.SEAL).read_text())["adapter_model.safetensors"] for folder in found}


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory) -> Chain:
    chain = command(tmp_path_factory.mktemp("whole"), tiny_model)
    done = chain.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(adapters(chain)) == ["checkpoint-3", "checkpoint-6"]
    assert len(set(adapters(chain).values())) == 2, "it has learned nothing: comparisons show nothing"
    return chain


# all eight cases, interrupted within one process, are in tests/training/test_resume.py
@pytest.mark.parametrize(("beta", "warm", "iterations"), [(0.0, False, 1), (0.04, True, 2)])
def test_a_killed_training_ends_as_if_nothing_had_happened(beta, warm, iterations, tiny_model, tmp_path):
    """Bit for bit: adapters, and the log with its KL divergence. The kill comes while the third step is being saved."""
    settings = {"beta": beta, "num_iterations": iterations, "save_steps": 1}
    whole, killed = (command(tmp_path / name, tiny_model, warm, **settings) for name in ("whole", "killed"))
    process = killed.start()
    assert process.stdout is not None
    assert any(line.startswith("step    3 ") for line in process.stdout)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    for chain in (whole, killed):
        done = chain.finish()
        assert done.returncode == 0, done.stderr[-2000:]
    assert adapters(killed) == adapters(whole)
    assert log(killed) == log(whole)
    assert [entry for entry in log(whole) if entry["step"] > 3 and entry.get("grad_norm")]
    assert ("kl" in log(whole)[0]) == bool(beta)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_and_the_run_ends_as_if_there_was_none(number, whole, tiny_model, tmp_path):
    chain = command(tmp_path, tiny_model)
    process = chain.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step    1 of 6"):  # not the warm start's, of 1
            process.send_signal(number)
            break
    printed, errors = process.communicate(timeout=1200)
    assert process.returncode == 130, errors[-2000:]
    assert "this step is ended and saved first" in printed
    assert errors.strip().endswith("stopped; the same command goes on where this one stopped")
    (stopped,) = adapters(chain)
    assert stopped in ("checkpoint-1", "checkpoint-2")
    path = chain.run / "training_log.jsonl"
    path.write_text(path.read_text()[:-20])  # as a kill or a full disk leaves it
    assert chain.finish().returncode == 0
    assert adapters(chain) == adapters(whole)
    assert log(chain) == log(whole)


def test_training_goes_back_to_the_checkpoint_before_a_damaged_one(whole, tiny_model, tmp_path):
    chain = command(tmp_path, tiny_model)
    assert chain.finish().returncode == 0
    damaged = chain.run / "checkpoints" / "checkpoint-6" / "optimizer.pt"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    seal = chain.run / "checkpoints" / "checkpoint-3" / runs.SEAL
    before = seal.stat().st_mtime_ns
    done = chain.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    assert "checkpoint-6 is damaged: it and what came after it is made again." in done.stderr
    assert "step    4 " in done.stdout
    assert seal.stat().st_mtime_ns == before  # steps 1 to 3 were not made again
    assert adapters(chain) == adapters(whole)

"""A training run of a tiny policy: stopped by a signal, with damaged checkpoints, and long."""

import json
import signal
import sys
from pathlib import Path

import pytest
import yaml

from grpo_utils import recipes, runs, training

from .conftest import Chain, tiny_settings


def command(folder: Path, model: Path) -> Chain:
    """`python -m grpo_utils.training` on the tiny model: six steps, a checkpoint every third."""
    settings = yaml.safe_load((recipes.FOLDER / "smoke-code.yaml").read_text())
    path = folder / "smoke-code.yaml"
    for key, value in tiny_settings(model, steps=6, save=3).items():
        recipes._set(settings, key, value)
    folder.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return Chain([sys.executable, "-m", "grpo_utils.training", "--recipe", str(path)], folder / "outputs")


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
    return chain


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_and_the_run_ends_as_if_there_was_none(number, whole, tiny_model, tmp_path):
    chain = command(tmp_path, tiny_model)
    process = chain.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step    1 "):
            process.send_signal(number)
            break
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors[-2000:]
    assert "this step is ended and saved first" in printed
    assert errors.strip().endswith("stopped; the same command goes on where this one stopped")
    (stopped,) = adapters(chain)
    assert stopped in ("checkpoint-1", "checkpoint-2")
    log = chain.run / "training_log.jsonl"
    log.write_text(log.read_text()[:-20])  # as a kill or a full disk leaves it
    assert chain.finish().returncode == 0
    assert adapters(chain) == adapters(whole)
    steps = [[entry["step"] for entry in training.read_log(one.run / "training_log.jsonl")] for one in (chain, whole)]
    assert steps[0] == steps[1]


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

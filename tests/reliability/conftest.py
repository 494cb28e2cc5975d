"""Starts chains as programs of their own, so that they can be killed, starved and locked out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_utils import runs
from grpo_utils.runs import ROOT

REAL = [sys.executable, "-m", "grpo_utils", "reproduce", "--recipe", "smoke-code"]
SMALL = [sys.executable, str(Path(__file__).parent / "chain.py")]


class Chain:
    """A command that makes one run, with its own folder of outputs."""

    def __init__(self, command: list[str], outputs: Path) -> None:
        self.command = command
        self.outputs = outputs
        self.run = outputs / "smoke-code"
        self.seconds = 0.0  # that the last `finish` took

    def start(self, *arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
        own = {"GRPO_OUTPUTS_DIR": str(self.outputs), "PYTHONPATH": str(ROOT)}
        foreign = {runs.LOCK_VARIABLE: ""}  # as from another terminal: a lock that a test holds is not the chain's
        environment = os.environ | own | foreign | variables
        return subprocess.Popen(
            [*before, *self.command, *arguments], cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )  # fmt: skip

    def finish(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        process = self.start(*arguments, **options)
        try:
            printed, errors = process.communicate(timeout=1800)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        self.seconds = time.monotonic() - began
        return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)

    def tables(self) -> dict[str, bytes]:
        """What a finished run must have in common with one to which nothing happened."""
        names = ["results.csv", "results.md", "manifest.json"]
        return {name: (self.run / name).read_bytes() for name in names}


def small_chain(folder: Path) -> Chain:
    return Chain([*SMALL, str(folder / "notebooks")], folder / "outputs")


def last_line(errors: str) -> str:
    """The sentence that a command ends with, behind the progress bars."""
    return errors.replace("\r", "\n").strip().splitlines()[-1]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Chain:
    """A small chain to which nothing happens."""
    chain = small_chain(tmp_path_factory.mktemp("undisturbed"))
    done = chain.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    return chain


@pytest.fixture(scope="session")
def real(tmp_path_factory) -> Chain:
    """The real smoke chain, to which nothing happens."""
    chain = Chain(REAL, tmp_path_factory.mktemp("real"))
    done = chain.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    return chain


def tiny_settings(model: Path, steps: int, save: int) -> dict[str, Any]:
    """Overrides of smoke-code that train the tiny model."""
    return {
        "model": {"name": str(model), "dtype": "float32"},
        "lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
        "prompt.shots": 0,
        "evaluation.samples": {"train": {0: 1}, "validation": {0: 1}, "test": {0: 1}},
        "grpo.max_steps": steps,
        "grpo.save_steps": save,
        "grpo.max_completion_length": 8,
    }

"""Starts chains as programs of their own, so that they can be killed, starved and locked out."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_utils.tasks import ROOT

SMALL = [sys.executable, str(Path(__file__).parent / "chain.py")]


class Chain:
    """A command that makes one run, with its own folder of outputs."""

    def __init__(self, command: list[str], outputs: Path) -> None:
        self.command = command
        self.outputs = outputs
        self.run = outputs / "smoke-code"

    def start(self, *arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
        environment = os.environ | {"GRPO_OUTPUTS_DIR": str(self.outputs), "PYTHONPATH": str(ROOT)} | variables
        return subprocess.Popen(
            [*before, *self.command, *arguments], cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **options)
        try:
            printed, errors = process.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
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

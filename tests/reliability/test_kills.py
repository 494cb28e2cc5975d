"""SIGKILL at random moments, each followed by the same command: it completes, with an undisturbed run's tables.

20 moments for the small chain of `chain.py`; for the real smoke chain as many as GRPO_KILLS says.
"""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from grpo_utils import runs

from .conftest import REAL, Chain, small_chain


def kill(process: subprocess.Popen[str], moment: float) -> bool:
    """Kills a chain after so many seconds; False when it was faster."""
    try:
        process.wait(timeout=moment)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def progress(run: Path) -> str:
    """How far a killed chain had come: stamps, records, checkpoints."""
    found = [len(list(run.glob(pattern))) for pattern in ("notebooks/*.stamp", "evaluations/*.json")]
    return f"{found[0]} notebooks, {found[1]} records, {len(runs.checkpoints(run))} checkpoints"


def survive(chains: list[Chain], undisturbed: Chain, moments: list[float]) -> None:
    """Kills at each moment, in seconds from the command's start; a chain that completes is compared."""
    left = iter(chains)
    chain = next(left)
    for number, moment in enumerate(moments, start=1):
        while not kill(chain.start(), moment):
            assert chain.tables() == undisturbed.tables()
            chain = next(left)
        print(f"kill {number} after {moment:.1f} s: {progress(chain.run)}", flush=True)
    done = chain.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    assert chain.tables() == undisturbed.tables()


def moments(count: int, longest: float) -> list[float]:
    rng = random.Random(0)
    return [rng.uniform(0.2, longest) for _ in range(count)]


def test_twenty_kills_of_the_small_chain(undisturbed, tmp_path):
    survive([small_chain(tmp_path / str(i)) for i in range(20)], undisturbed, moments(20, 0.8 * undisturbed.seconds))


@pytest.mark.skipif("GRPO_KILLS" not in os.environ, reason="an hour of the real chain: GRPO_KILLS=20 asks for it")
def test_as_many_kills_of_the_real_smoke_chain_as_were_asked_for(real, tmp_path):
    count = int(os.environ["GRPO_KILLS"])
    survive([Chain(REAL, tmp_path / str(i)) for i in range(count)], real, moments(count, 0.5 * real.seconds))


def test_a_killed_chains_notebook_keeps_the_folder_locked_until_it_has_ended(tmp_path):
    """The kernel of a killed chain needs a second to notice; nobody else may write before it has ended."""
    chain = small_chain(tmp_path)
    process = chain.start()
    while not runs.checkpoints(chain.run):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    with runs.hold_lock(chain.run):  # waits for the kernel
        before = progress(chain.run)
        time.sleep(2)
        assert progress(chain.run) == before

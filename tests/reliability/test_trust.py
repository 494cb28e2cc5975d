"""A finished run can be checked, and gives nothing away."""

import sys

import pytest

from grpo_utils.runs import RunError
from grpo_utils.sandbox import Sandbox
from grpo_utils.show import verification

from .conftest import Chain

PLANTED = {"HF_TOKEN": "hf_planted0a1b2c3d4e5f", "WANDB_API_KEY": "planted0123456789abcdef0123456789abcdef0"}
PRY = """
import glob, os
def pry():
    found = [str(dict(os.environ))]
    for path in [*glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline"), "/proc/self/environ"]:
        try:
            found.append(open(path, "rb").read().decode(errors="replace"))
        except OSError:
            pass
    return any("planted" in text for text in found)
"""


def test_the_maths_chain_runs(tmp_path):
    done = Chain([sys.executable, "-m", "grpo_utils", "reproduce", "--recipe", "smoke-math"], tmp_path).finish()
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| base prompt |" in done.stdout


def test_a_difference_is_named():
    with pytest.raises(RunError, match=r"^b, c: not what the records give\.$"):
        verification.require_equal(
            {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "x"}, set("abc"), "not what the records give"
        )


def test_no_candidate_sees_a_secret_of_the_environment(monkeypatch):
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    with Sandbox(workers=1) as sandbox:
        assert sandbox.check(PRY, ["assert pry() == False"]).ok

"""A finished run can be checked, and gives nothing away."""

import shutil
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


def test_every_table_and_figure_is_made_again_from_the_records(real):
    again = Chain([sys.executable, "-m", "grpo_utils", "verify", "--recipe", "smoke-code"], real.outputs)
    done = again.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    made = {line.removeprefix("same bytes: ") for line in done.stdout.splitlines() if line.startswith("same bytes: ")}
    figures = {f"figures/{path.name}" for path in (real.run / "figures").iterdir()}
    assert made == {"results.csv", "results.md"} | figures
    assert [path.name for path in real.outputs.iterdir()] == ["smoke-code"]  # the copy is gone


def test_a_changed_record_is_found(real, tmp_path):
    shutil.copytree(real.outputs, tmp_path / "outputs")
    path = tmp_path / "outputs" / "smoke-code" / "evaluations" / "base.test.1shot.json"
    path.write_text(path.read_text().replace('"format": false', '"format": true'))
    done = Chain(
        [sys.executable, "-m", "grpo_utils", "verify", "--recipe", "smoke-code"], tmp_path / "outputs"
    ).finish()
    assert done.returncode == 1
    assert "results.csv" in done.stderr.strip().splitlines()[-1]


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

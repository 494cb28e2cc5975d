"""The public corpus of hostile programs: none passes by cheating, none breaks a rule of the host."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = HERE / "data" / "cases.jsonl"
PRIVATE = ["unshare", "-m", "-p", "-f", "-n", "-i", "--mount-proc", "--kill-child"]
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def works(*command: str) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def private() -> list[str]:
    """The start of a command line that runs the rest with processes, network and folders of its own."""
    if not works(*PRIVATE, "true"):
        return []
    folders = "for folder in /tmp/sbx_host /dev/shm; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done"
    return [*PRIVATE, "sh", "-c", f'{folders}; ip link set lo up; exec "$@"', "sh"]


def python_of_nobody() -> str | None:
    """A Python that a plain user can start: this one may lie below root's home."""
    usable = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(sys.executable, os.X_OK))"
    pythons = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
    return next((python for python in pythons if works(*NOBODY, python, "-c", usable)), None)


def run(command: list[str], private: list[str]) -> dict[str, list[str]]:
    skip = "" if private else "proc-"  # dangerous where they can see other processes
    arguments = [str(HERE / "corpus_runner.py"), str(CASES), skip]
    done = subprocess.run([*private, *command, *arguments], capture_output=True, text=True, cwd="/", timeout=1200)
    results = dict(map(json.loads, done.stdout.splitlines()))
    expected = [json.loads(line)["id"] for line in CASES.read_text(encoding="utf-8").splitlines()]
    missing = [name for name in expected if name not in results and not (skip and name.startswith(skip))]
    assert not missing, done.stderr[-2000:]
    return results


def broken(results: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: rules for name, rules in results.items() if rules and name != "layers"}


def test_as_this_user(private: list[str]) -> None:
    assert broken(run([sys.executable], private)) == {}


def test_where_namespaces_are_refused(private: list[str]) -> None:
    results = run([sys.executable, str(HERE / "deny_unshare.py"), sys.executable], private)
    assert "namespaces" not in results["layers"]
    assert broken(results) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="the first test runs as a plain user already")
@pytest.mark.parametrize("refused", [False, True])
def test_as_a_plain_user(refused: bool, private: list[str]) -> None:
    python = python_of_nobody()
    if not python or not private:
        pytest.skip("no Python that another user can start")
    deny = [str(HERE / "deny_unshare.py"), python] if refused else []
    assert broken(run([*NOBODY, python, *deny], private)) == {}

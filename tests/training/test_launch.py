"""Who trains: this process, one that imports Unsloth first, or several; and what a machine without a GPU is told."""

import importlib.util
import os
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import yaml
from transformers import TrainerControl

from grpo_utils import runs, training
from grpo_utils.runs import RecipeError
from grpo_utils.sandbox import Sandbox

FOR_GPUS = [name for name in runs.recipe_files() if runs.load_recipe(name).without_gpu]


@pytest.fixture(autouse=True)
def not_launched(monkeypatch):
    for name in (runs.LAUNCHED, "LOCAL_RANK", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", FOR_GPUS)
def test_without_a_gpu_a_gpu_recipe_files_one_that_runs(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = runs.load_recipe(name)
    with pytest.raises(runs.RunError, match=rf"needs a GPU.*the recipe '{recipe.without_gpu}'\.$"):
        runs.start_run(recipe)
    assert not (runs.outputs_folder() / recipe.name).exists()
    assert runs.load_recipe(recipe.without_gpu or "").without_gpu is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runs.start_run(recipe).is_dir()


def test_a_recipe_for_a_cpu_and_plain_trl_trains_in_this_process(tmp_path):
    assert training.launch_command(runs.load_recipe("cpu-code"), tmp_path) is None
    assert training.launch_command(runs.load_recipe("smollm2-mbpp-gpu"), tmp_path) is None


def test_unsloth_gets_a_process_of_its_own_and_several_gpus_get_accelerate(tmp_path):
    given = ["--recipe", f"{tmp_path}/launched.yaml", "--folder", str(tmp_path)]
    unsloth = training.launch_command(runs.load_recipe("llama3-8b-mbpp-24gb"), tmp_path)
    assert unsloth == [sys.executable, "-m", "grpo_utils", "train", *given]
    several = training.launch_command(runs.load_recipe("llama3-8b-mbpp-multi-gpu"), tmp_path) or []
    assert several[several.index("--config_file") + 1] == str(training.LAUNCHERS / "zero2.yaml")
    assert several[-6:] == ["grpo_utils", "train", *given]


@pytest.mark.parametrize("name", ["llama3-8b-mbpp-24gb", "llama3-8b-mbpp-multi-gpu"])
def test_the_process_that_is_launched_reads_the_very_recipe(name, tmp_path):
    arm = runs.load_recipe(name, {"rewards.tests": 0.1 + 0.2, "grpo.learning_rate": 1e-7, "name": "an-arm"})
    training.launch_command(arm, tmp_path / "arm")
    assert runs.load_recipe(tmp_path / "arm" / "launched.yaml") == arm


@pytest.mark.parametrize("name", ["LOCAL_RANK", runs.LAUNCHED])
def test_a_process_that_was_launched_launches_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "0")
    assert training.launch_command(runs.load_recipe("llama3-8b-mbpp-multi-gpu"), tmp_path) is None


def test_only_the_first_process_is_the_main_one(monkeypatch):
    assert runs.is_main_process()
    monkeypatch.setenv("RANK", "1")
    assert not runs.is_main_process()


def test_an_unknown_launcher_is_named_with_the_nearest_one():
    with pytest.raises(RecipeError, match=r"no launcher 'zero_2' \(did you mean 'zero2'\?\)"):
        training.launcher_file("zero_2")


@pytest.mark.parametrize("path", sorted(training.LAUNCHERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_knows_every_key_of_a_launcher(path):
    """accelerate itself reads the file and would raise on a key that it does not know."""
    from accelerate.commands.config.config_args import load_config_from_file

    settings: Any = load_config_from_file(str(path))
    assert settings.num_processes == yaml.safe_load(path.read_text())["num_processes"]


def test_a_step_at_hand_has_time_to_end_unless_the_user_says_otherwise(monkeypatch, capsys):
    show = [sys.executable, "-c", "import os; print(os.environ['TORCH_ELASTIC_SHUTDOWN_TIMEOUT'])"]
    training.run_launched(show)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")
    training.run_launched(show)
    assert capsys.readouterr().out.split() == ["86400", "5"]


def test_a_launched_command_prints_here_and_its_failure_is_one_sentence(capsys):
    training.run_launched([sys.executable, "-c", f"import os; print('launched', os.environ['{runs.LAUNCHED}'])"])
    assert capsys.readouterr().out == "launched 1\n"
    with pytest.raises(runs.RunError, match="exit code 3"):
        training.run_launched([sys.executable, "-c", "raise SystemExit(3)"])


def test_unsloth_and_what_it_cannot_do_is_refused():
    with pytest.raises(RecipeError, match="one process without a warm start"):
        runs.load_recipe("llama3-8b-mbpp-24gb", {"launcher": "ddp"})


@pytest.mark.skipif(importlib.util.find_spec("unsloth") is not None, reason="it is installed")
def test_unsloth_that_is_not_installed_is_one_sentence():
    done = subprocess.run(
        [sys.executable, "-m", "grpo_utils", "train", "--recipe", "llama3-8b-mbpp-24gb"],
        capture_output=True, text=True, timeout=1200, check=False, env={**os.environ, runs.LAUNCHED: "1"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: The recipe wants Unsloth")


@pytest.mark.parametrize(("processes", "share"), [(1, 4), (2, 2), (8, 1)])
def test_the_processes_of_one_machine_share_its_cores_among_their_sandboxes(processes, share, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    with Sandbox() as sandbox:
        assert len(sandbox._workers) == share


def test_a_second_interruption_kills_what_was_started(monkeypatch):
    def interrupt(process):
        if not waited:
            waited.append(process.stdout.readline())  # the child ignores SIGTERM by now
        raise KeyboardInterrupt

    waited: list[str] = []
    monkeypatch.setattr(training.launch, "_show", interrupt)
    deaf = "import os, signal, time; signal.signal(15, signal.SIG_IGN); pid = os.fork(); print(1, flush=True); "
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        training.run_launched([sys.executable, "-c", deaf + "time.sleep(60)"])
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("asked", [True, False])
def test_all_processes_stop_at_the_step_at_which_one_was_asked_to(asked, monkeypatch):
    monkeypatch.setattr(training.survival, "gather_object", lambda mine: [*mine, asked])  # the other process's answer
    generations, control = training.SaveBetweenGenerations(), TrainerControl()
    generations.between = True
    stop = training.StopOnSignal(generations)
    stop.on_step_end(None, None, control)
    assert (stop.asked, control.should_save, control.should_training_stop) == (asked,) * 3

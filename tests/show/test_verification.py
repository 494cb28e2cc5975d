"""Verifying a finished run: what its user does beside it changes nothing, and a machine that is poorer says what it is.

The runs here are synthetic ones of a recipe for GPUs, which a machine without one verifies from the records alone.
"""

import errno
import json
import os
import shutil
from pathlib import Path

import matplotlib
import pytest
import torch

from grpo_utils import evaluation, runs, tasks
from grpo_utils.__main__ import app
from grpo_utils.runs import RunError, chain, commands
from grpo_utils.show import plots, verification

OVERRIDES = {"without_gpu": "cpu-code", "name": "far"}
RECIPE = runs.load_recipe("smoke-code", OVERRIDES)
PARAMETERS = {"RECIPE": "smoke-code", "OVERRIDES": OVERRIDES}
TABLES = ["results.csv", "results.md"]
DRAWN = sorted(f"figures/{name}.{kind}" for name in plots.CAPTIONS for kind in ("png", "svg"))


def write_record(run: Path, checkpoint: str, split: str, shots: int, right: int) -> Path:
    """A record in which the first so many completions of every task are right."""
    owners = tasks.load_split(RECIPE, split if split in ("train", "validation") else "test")
    rows = []
    for task in owners:
        good, bad = task.reference_answer(RECIPE.prompt), task.wrong_answer(RECIPE.prompt.tags)
        completions = [
            {"text": good if i < right else bad, "tokens": 9, "truncated": False, "format": True, "visible": i < right}
            | dict.fromkeys(("strict", "lenient", "oracle"), i < right)
            | {"error": "none" if i < right else "wrong answer"}
            for i in range(3)
        ]
        rows.append({"task_id": task.task_id, "grade": task.grade, "completions": completions})
    path = runs.record_path(run, checkpoint, split, shots)
    settings = {"checkpoint": checkpoint, "split": split, "shots": shots}
    runs.write_file(path, json.dumps({"settings": settings, "update_norm": float(checkpoint != "base"), "tasks": rows}))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run, but for its stamps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path_factory.mktemp("finished")))
        patch.setattr(torch.cuda, "is_available", lambda: True)
        folder = runs.start_run(RECIPE)
    for split, shots in (("train", 1), ("validation", 1), ("test", 0), ("test", 1)):
        write_record(folder, "base", split, shots, right=1)
    for checkpoint, right in (("warm-start", 1), ("checkpoint-1", 3), ("checkpoint-2", 2)):
        write_record(folder, checkpoint, "validation", 1, right)
    for checkpoint in ("warm-start", "checkpoint-1"):
        write_record(folder, checkpoint, "test", 1, right=2)
    entry = {"completions/mean_length": 9.0, "completions/clipped_ratio": 0.0, "frac_reward_zero_std": 0.5}
    entry |= {"entropy": 1.0, "clip_ratio/region_mean": 0.0, "grad_norm": 1.0, "reward": 0.5}
    entry |= {f"rewards/{name}/mean": 0.5 for name in RECIPE.rewards}
    log = [json.dumps({"step": step, **entry}) + "\n" for step in (1, 2)]
    runs.write_file(folder / "training_log.jsonl", "".join(log))
    matplotlib.use("agg")
    evaluation.write_results(RECIPE, folder)
    plots.draw_figures(RECIPE, folder)
    (folder / "figures" / "lengths.svg").write_text("<svg/>")  # as of a notebook
    return folder


@pytest.fixture
def run(finished, monkeypatch) -> Path:
    """A copy of the finished run on a machine without its GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = Path(shutil.copytree(finished, runs.outputs_folder() / "far"))
    runs.write_manifest(folder)
    for path, stamp in chain.stamps(RECIPE, tasks.data_fingerprint(RECIPE)).items():
        runs.write_file(chain.stamp_path(folder, path), stamp)
    return folder


def test_without_its_gpu_a_run_is_verified_from_its_records_and_what_is_left_out_is_said(run, capsys):
    environment = json.loads((run / "environment.json").read_text())
    environment["packages"]["matplotlib"] = "3.0.0"  # the run began with it; what drew the figures since is in them
    (run / "environment.json").write_text(json.dumps(environment))
    assert verification.verify_run(RECIPE, PARAMETERS) == sorted([*TABLES, *DRAWN])
    assert "which need the recipe's GPU: figures/lengths.svg\n" in capsys.readouterr().out


def test_a_wrong_table_is_found_and_figures_that_another_matplotlib_drew_are_left_out(run, capsys):
    for path in run.glob("figures/errors_by_kind.*"):
        path.write_bytes(path.read_bytes().replace(matplotlib.__version__.encode(), b"3.0.0") + b" ")
    table = run / "results.csv"
    table.write_text(table.read_text().replace("0.500000", "0.510000"))
    runs.write_manifest(run)
    with pytest.raises(RunError, match=r"^results\.csv: not what the records give\.$"):
        verification.verify_run(RECIPE, PARAMETERS)
    assert "errors_by_kind.png is left out: matplotlib 3.0.0 drew it, here is" in capsys.readouterr().out


def test_a_changed_record_is_found(run):
    path = runs.record_path(run, "base", "test", 1)
    path.write_text(path.read_text().replace('"format": true', '"format": false', 1))
    with pytest.raises(RunError, match=r"^results\.csv, results\.md: not what the records give\.$"):
        verification.verify_run(RECIPE, PARAMETERS)


def test_extra_evaluations_are_summarised_and_change_no_table_and_no_figure(run):
    write_record(run, "base", "human-eval", 1, right=2)
    write_record(run, "checkpoint-2", "human-eval", 1, right=3)
    write_record(run, "checkpoint-2", "test", 1, right=3)  # not the chosen one
    write_record(run, "checkpoint-1", "test", 0, right=3)  # with another prompt
    write_record(run, "checkpoint-1", "train", 1, right=3)
    write_record(run, "my-adapter", "validation", 1, right=3)
    assert verification.verify_run(RECIPE, PARAMETERS) == sorted([*TABLES, *DRAWN])
    table = evaluation.summarise_records(evaluation.load_records(run).query("split == 'human-eval'"))
    assert table[["checkpoint", "samples", "strict"]].values.tolist() == [["base", 2, 0.5], ["checkpoint-2", 2, 1.0]]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK])
def test_where_links_are_refused_files_are_copied(number, run, monkeypatch, tmp_path):
    def refuse(source, target):
        raise OSError(number, os.strerror(number), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    verification._copy(run, tmp_path / "copy")
    copied = tmp_path / "copy" / "evaluations"
    for path in (run / "evaluations").iterdir():
        assert (copied / path.name).read_bytes() == path.read_bytes()
        assert not (copied / path.name).samefile(path)


def sentence_of(capsys) -> str:
    """What the command says, which must fail."""
    sets = [f"--set={key}={value}" for key, value in OVERRIDES.items()]
    with pytest.raises(SystemExit):
        commands.run_command(lambda: app(["verify", "--recipe", "smoke-code", *sets], standalone_mode=False))
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_disk_that_is_full_while_the_run_is_copied_is_one_sentence(run, monkeypatch, capsys):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copy2", full)
    assert "cannot be copied to verify the run: [Errno 28] No space left on device" in sentence_of(capsys)
    assert list(run.parent.glob(".verify-*")) == []


def test_a_folder_of_runs_that_cannot_be_written_is_one_sentence(run, monkeypatch, capsys):
    def read_only(*given):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", read_only)
    found = sentence_of(capsys)
    assert f"{run.parent} cannot be written (Read-only file system), and a run is verified on a copy" in found


def test_figures_that_are_drawn_again_are_taken_into_the_manifest_and_nothing_else(run, finished, monkeypatch):
    for path in run.glob("figures/*_and_after.*"):
        path.write_bytes(b"drawn by another version")
    runs.write_manifest(run)
    (run / "results.csv").write_text("changed")
    sets = [f"--set={key}={value}" for key, value in OVERRIDES.items()]
    app(["figures", "--recipe", "smoke-code", *sets], standalone_mode=False)
    assert runs.read_json(run / "manifest.json") == runs.manifest(finished) != runs.manifest(run)

"""Disks, clocks, damaged files and second writers: nothing is lost, and the message is one sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_utils import evaluation, runs
from grpo_utils.runs import ROOT, RunError

from .conftest import Chain, last_line, small_chain

OWN_MOUNTS = ("unshare", "--mount", "--map-root-user", "sh", "-c")
can_mount = shutil.which("unshare") is not None and not subprocess.run([*OWN_MOUNTS, "true"], check=False).returncode
needs_mounts = pytest.mark.skipif(not can_mount, reason="this host lends no mount namespace")


@pytest.fixture
def chain(undisturbed, tmp_path) -> Chain:
    """A finished small chain of one's own, to do harm to."""
    shutil.copytree(undisturbed.outputs.parent, tmp_path, dirs_exist_ok=True)
    return small_chain(tmp_path)


def goes_on(chain: Chain, undisturbed: Chain) -> str:
    done = chain.finish()
    assert done.returncode == 0, done.stderr[-2000:]
    assert chain.tables() == undisturbed.tables()
    return done.stdout + done.stderr


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that failed."""
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert last_line(done.stderr).startswith("error: ")
    return last_line(done.stderr)


@needs_mounts
def test_a_full_disk_is_one_sentence_and_what_was_written_is_used(undisturbed, tmp_path):
    """A disk of 24 KiB in a mount namespace; afterwards the same command on what it held."""
    chain = small_chain(tmp_path)
    small_disk = (
        'mount -t tmpfs -o size=24k tmpfs "$GRPO_OUTPUTS_DIR"; "$@"; code=$?; '
        'cp -r "$GRPO_OUTPUTS_DIR"/. "$KEPT"; exit $code'
    )
    chain.outputs.mkdir()
    (tmp_path / "kept").mkdir()
    done = chain.finish(before=(*OWN_MOUNTS, small_disk, "sh"), KEPT=str(tmp_path / "kept"))
    assert "No space left on device" in failed(done)
    shutil.copytree(tmp_path / "kept", chain.outputs, dirs_exist_ok=True)
    assert list(chain.run.glob("evaluations/*.json"))
    goes_on(chain, undisturbed)


@needs_mounts
def test_a_folder_that_became_read_only_is_one_sentence(chain):
    read_only = 'mount --bind -o ro "$GRPO_OUTPUTS_DIR" "$GRPO_OUTPUTS_DIR" || exit 9; "$@"'
    done = chain.finish(before=(*OWN_MOUNTS, read_only, "sh"))
    assert "cannot be written (Read-only file system): make it writable" in failed(done)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    runs.write_file(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        runs.write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("file", ["state.json", "weights", runs.SEAL])
def test_a_damaged_checkpoint_and_those_after_it_are_made_again(file, chain, undisturbed):
    damaged = chain.run / "checkpoints" / "checkpoint-4" / file
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (chain.run / "notebooks" / "02_train.stamp").unlink()
    (chain.run / "notebooks" / "03_report.stamp").unlink()
    goes_on(chain, undisturbed)
    folders = runs.checkpoints(chain.run)
    assert runs.drop_damaged(chain.run) == folders  # all are intact again
    assert len(folders) == 6


def test_the_damaged_checkpoint_is_named_and_the_one_before_is_the_last(chain, capsys):
    weights = chain.run / "checkpoints" / "checkpoint-6" / "weights"
    weights.write_bytes(b"x" + weights.read_bytes()[1:])  # same size
    assert runs.drop_damaged(chain.run)[-1].name == "checkpoint-5"
    assert "checkpoint-6 is damaged: it and what came after it is made again.\n" in capsys.readouterr().err
    assert not weights.parent.exists()


@pytest.mark.parametrize("text", [b"", b"0123", b"\xff\xfe\x00"])
def test_a_half_written_stamp_means_that_the_notebook_runs_again(text, chain, undisturbed):
    (chain.run / "notebooks" / "03_report.stamp").write_bytes(text)
    printed = goes_on(chain, undisturbed)
    assert printed.count("done before, skipped") == 2


def test_a_log_that_was_cut_or_damaged(tmp_path):
    path = tmp_path / "training_log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [entry["step"] for entry in runs.read_log(path)] == [1, 2]
    path.write_bytes(b'{"step": 1}\n\x00\x80\n{"step": 3}\n')
    with pytest.raises(RunError, match=r"training_log\.jsonl is damaged .*: delete the last checkpoint"):
        runs.read_log(path)


def test_a_damaged_record_is_named_and_is_not_taken_for_done(tmp_path):
    path = runs.record_path(tmp_path, "base", "test", 0)
    path.parent.mkdir()
    key = '{"settings": {"checkpoint": "base", "split": "test", "shots": 0}, "update_norm": 0, "tasks": '
    half_a_character = r'[{"task_id": 1, "grade": 1, "completions": [{"text": "\ud800", "visible": null}]}]}'
    for text in ('{"settings": {"chec', "[]", '{"settings": {}}', key + half_a_character):
        path.write_text(text)
        assert not evaluation.records._is_done(path, {"checkpoint": "base"})
        with pytest.raises(RunError, match=r"base\.test\.0shot\.json is damaged"):
            evaluation.load_records(tmp_path)


def test_a_second_run_in_the_same_folder_is_locked_out(chain, undisturbed):
    (chain.run / "notebooks" / "02_train.stamp").unlink()
    shutil.rmtree(chain.run / "checkpoints")
    with runs.hold_lock(chain.run):
        before = {path: path.stat().st_mtime_ns for path in chain.run.rglob("*")}
        sentence = failed(chain.finish("--force"))
        assert "Another process is writing to" in sentence
        assert "--run NAME" in sentence
        assert {path: path.stat().st_mtime_ns for path in chain.run.rglob("*")} == before
    goes_on(chain, undisturbed)


def test_the_lock_is_held_once_by_a_process_and_those_it_starts(tmp_path):
    ask = "import sys; from pathlib import Path; from grpo_utils import runs; runs.folder.ORPHAN_SECONDS = 0\n"
    ask += "with runs.hold_lock(Path(sys.argv[1])): print('mine')"
    other, own = tmp_path / "other", tmp_path / "own"

    def child(run: Path, **variables: str) -> str:
        command = [sys.executable, "-c", ask, str(run)]
        environment = os.environ | variables
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False).stdout

    with runs.hold_lock(own), runs.hold_lock(own):
        with runs.hold_lock(other):
            assert child(other) == "mine\n"
            assert child(other, **{runs.LOCK_VARIABLE: ""}) == ""
        assert child(own) == "mine\n"
        assert child(own, **{runs.LOCK_VARIABLE: ""}) == ""
    assert child(own) == "mine\n"
    assert runs.lock_descriptors() == ()


def test_a_clock_that_goes_backwards_changes_nothing(chain, undisturbed):
    """Nothing is decided by a time: neither by those of files, here years ahead, nor by the clock."""
    (chain.run / "notebooks" / "03_report.stamp").unlink()
    for path in chain.run.rglob("*"):
        os.utime(path, (4e9, 4e9))
    assert goes_on(chain, undisturbed).count("done before, skipped") == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_chain_with_how_to_go_on(number, undisturbed, tmp_path):
    chain = small_chain(tmp_path)
    process = chain.start()
    while len(runs.checkpoints(chain.run)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    errors = process.communicate(timeout=1200)[1]
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "stopped; the same command goes on where this one stopped" in errors
    with runs.hold_lock(chain.run):
        assert json.loads((runs.checkpoints(chain.run)[1] / "state.json").read_text())
    goes_on(chain, undisturbed)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    """As `nohup` and a shell's `&` ask for."""
    code = (
        "import signal, os; from grpo_utils.runs.commands import run_command; "
        "run_command(lambda: os.kill(os.getpid(), signal.SIGINT))"
    )
    ignoring = Chain(["sh", "-c", f"trap '' INT; exec python -c '{code}'"], tmp_path)
    assert ignoring.finish(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}").returncode == 0


def test_forcing_forgets_all_but_the_lock(tmp_path):
    (tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "recipe.yaml").write_text("x")
    with runs.hold_lock(tmp_path):
        runs.clear_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]

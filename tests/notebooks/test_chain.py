"""The chain as a reader starts it, at smoke size: it runs, skips what is done, and goes on when it was killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from grpo_utils import rewards, runs
from grpo_utils.__main__ import main
from grpo_utils.runs import ROOT

PLANTED = {"HF_TOKEN": "hf_planted0a1b2c3d4e5f", "WANDB_API_KEY": "planted0123456789abcdef0123456789abcdef0"}
CHAPTERS = ["01_eda", "02_baseline_evaluation", "03_reward_design", "04_grpo_training", "05_checkpoint_evaluation"]


def command(outputs: Path, *arguments: str) -> list[str]:
    os.environ["GRPO_OUTPUTS_DIR"] = str(outputs)
    return [sys.executable, "-m", "grpo_utils", "reproduce", *arguments]


def run(outputs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(outputs, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> tuple[Path, str]:
    """One run of the whole chain, on a machine with secrets: its folder and what it printed."""
    outputs = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PLANTED.items():
            patch.setenv(name, value)
        done = run(outputs, "--recipe", "smoke-code")
    assert done.returncode == 0, done.stderr[-3000:]
    return outputs / "smoke-code", done.stdout


def test_the_chain_leaves_results_figures_and_five_executed_notebooks(chain):
    folder, printed = chain
    for name in ("recipe.yaml", "environment.json", "training_log.jsonl", "results.csv", "results.md"):
        assert (folder / name).stat().st_size > 0, name
    assert (folder / "figures" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    for name in CHAPTERS:
        executed = nbformat.read(folder / "notebooks" / f"{name}.ipynb", as_version=4)
        assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code"), name
        sources = [cell.source for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells]
        injected = "injected-parameters"
        assert [cell.source for cell in executed.cells if injected not in cell.metadata.get("tags", [])] == sources
        assert f"{name} " in printed
    assert "| base prompt |" in printed


def test_notebooks_that_nobody_watches_hold_lines_of_text_and_pages_without_widgets(chain):
    folder, _ = chain
    training, evaluation = ((folder / "notebooks" / f"{name}.ipynb").read_text() for name in CHAPTERS[3:])
    assert "step    2 of 2  reward" in training
    assert "This page includes 2 of 2 steps" in training
    assert "This page includes" in evaluation
    assert "jupyter.widget-view" not in training + evaluation
    assert (folder / "rollouts.html").is_file()


def said(monkeypatch, capsys, outputs: Path, *arguments: str) -> list[str]:
    """What a command that succeeds prints, in this process."""
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(outputs))
    monkeypatch.setattr(sys, "argv", ["grpo", *arguments])
    main()
    return capsys.readouterr().out.splitlines()


def test_the_list_has_the_run_with_its_headline_all_recipes_and_all_rewards(chain, monkeypatch, capsys):
    lines = said(monkeypatch, capsys, chain[0].parent, "list")
    headline = r"  smoke-code +checkpoint-2; test, strict, greedy: warm-start [\d.]+ %, checkpoint-\d [\d.]+ %"
    assert re.fullmatch(headline, lines[1])
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    assert listed >= {"smoke-code", *runs.recipe_files(), *rewards.REGISTRY}
    assert max(map(len, lines)) <= 127


def test_two_policies_are_compared_task_by_task_as_results_md_has_them(chain, monkeypatch, capsys):
    lines = said(monkeypatch, capsys, chain[0].parent, "compare", "smoke-code:warm-start", "smoke-code")
    table = (chain[0] / "results.md").read_text()
    for line in lines[1:5]:
        found = re.match(r"(\w+), (\w+) +([\d.]+) to +([\d.]+): ([+-]\S+ \[.*\]), ", line)
        assert found
        score, kind, old, new, change = found.groups()
        assert f"| GRPO | {score}, {kind} | {old}% | {new}% | {change} |" in table
    assert Path(lines[-1]).read_bytes().startswith(b"\x89PNG")
    assert Path(lines[-1]).parent == chain[0]
    (same, *_) = said(monkeypatch, capsys, chain[0].parent, "compare", "smoke-code", "smoke-code")[1:]
    assert "+0.0 [" in same


def test_a_recipe_is_checked_without_a_run(monkeypatch, capsys, tmp_path):
    lines = said(monkeypatch, capsys, tmp_path, "check", "--recipe", "smoke-math")
    assert lines[0].startswith("tasks: ")
    assert lines[-1].startswith("recipe smoke-math can run")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("number", ["01", "02", "03", "04", "05"])
def test_the_solutions_of_a_chapter_run_on_its_run(number, chain, solve):
    solve(number, chain[0].parent)


def test_no_secret_of_the_environment_is_in_any_file_of_the_run(chain):
    folder, printed = chain
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()) + printed.encode()
    assert len(everything) > 1_000_000
    assert [name for name, value in PLANTED.items() if value.encode() in everything] == []


def test_a_wrong_command_line_ends_without_a_traceback(tmp_path):
    done = run(tmp_path, "--recipe", "nope")
    assert done.returncode == 1
    assert done.stderr.startswith("error: There is no recipe 'nope'")
    assert len(done.stderr.splitlines()) == 1


def test_the_same_command_again_skips_what_is_done(chain):
    folder, _ = chain
    before = (folder / "results.csv").read_bytes()
    again = run(folder.parent, "--recipe", "smoke-code")
    assert again.returncode == 0
    assert again.stdout.count("done before, skipped") == 5
    assert (folder / "results.csv").read_bytes() == before


def test_a_killed_chain_goes_on_and_ends_with_the_same_results(chain, tmp_path):
    """Also the proof that measuring and training twice with the same seed give the same results, byte for byte."""
    folder, _ = chain
    shutil.copytree(folder, tmp_path / "smoke-code", ignore=shutil.ignore_patterns("0[345]_*", "results.*", "figures"))
    begun = tmp_path / "smoke-code"  # chapters 1 and 2 are done
    shutil.rmtree(begun / "checkpoints")
    for record in begun.glob("evaluations/*.json"):
        if not record.name.startswith(("base.test", "base.validation")):
            record.unlink()
    process = subprocess.Popen(
        command(tmp_path, "--recipe", "smoke-code"), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    limit = time.monotonic() + 1800
    while not runs.checkpoints(begun) and time.monotonic() < limit:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [path.name for path in runs.checkpoints(begun)] == ["checkpoint-1"]
    again = run(tmp_path, "--recipe", "smoke-code")
    assert again.returncode == 0, again.stderr[-3000:]
    assert again.stdout.count("done before, skipped") == 3
    for name in ("results.csv", "results.md", "checkpoints/checkpoint-2/adapter_model.safetensors"):
        assert (begun / name).read_bytes() == (folder / name).read_bytes()


@pytest.fixture
def sentence_of(monkeypatch, capsys) -> Iterator[Callable[..., str]]:
    """Runs a command that must fail, in this process, where torch is loaded already; returns what it says."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def fail(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["grpo", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("error: ")
        return last

    yield fail
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("reproduce", ["--recipe", "nope"], "There is no recipe 'nope'"),
        ("reproduce", ["--recipe", "smoke-code", "--set", "grpo.max_step=1"], "did you mean 'max_steps'?"),
        ("reproduce", ["--recipe", "smoke-code", "--set", "seed"], "--set takes KEY=VALUE"),
        ("reproduce", ["--recipe", "smoke-code", "--set", "seed=[1"], "is not valid YAML"),
        ("reproduce", ["--recipe", "smoke-code", "--force", "--run", ".."], "Key 'name'"),
        ("evaluate", ["--recipe", "smoke-code", "--split", "test"], "Name a --checkpoint for test"),
        ("evaluate", ["--recipe", "smoke-code", "--max-new-tokens", "9"], "goes with --dataset"),
        ("reproduce", ["--recipe", "smoke-code", "--only", "77"], "There is no notebook '77'"),
        ("reproduce", ["--recipe", "smoke-code", "--only", "05"], "run notebook 02_baseline_evaluation first"),
        (
            "evaluate",
            ["--recipe", "smoke-code", "--checkpoint", "checkpoint-9"],
            "run notebook 04_grpo_training first",
        ),
        ("figures", ["--recipe", "smoke-code"], "There is no run 'smoke-code'"),
        ("compare", ["smoke-code", "nope"], "There is no run 'smoke-code'"),
        ("check", ["--recipe", "smoke-math", "--set", "rewards={truncated: 1}"], "give a reward for right answers"),
        ("verify", ["--recipe", "smoke-code"], "There is no run 'smoke-code'"),
        ("train", ["--recipe", "smoke-code", "--set", "dataset.name=mine"], "There is no data set 'mine'"),
        ("train", ["--recipe", "smoke-code", "--set", "model.name=embedded:x"], "There is no embedded model"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_one(name, arguments, message, sentence_of):
    assert message in sentence_of(name, *arguments)


@pytest.mark.parametrize(("name", "waits"), [("evaluate", False), ("train", True), ("reproduce", True)])
def test_a_command_that_is_stopped_speaks_of_a_training_step_only_if_it_trains(name, waits, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grpo", name])
    monkeypatch.setattr("grpo_utils.__main__._call", lambda: signal.raise_signal(signal.SIGINT))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where these tests run behind a shell's `&`
    with pytest.raises(SystemExit):
        main()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    said = capsys.readouterr().err
    assert "a second Ctrl-C does not wait" in said
    assert ("a training step is ended and saved first" in said) == waits


def test_an_outputs_folder_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch, sentence_of):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(blocked))
    assert "cannot be written" in sentence_of("reproduce", "--recipe", "smoke-code")


def test_a_run_with_other_settings_is_not_mixed_into_a_folder(chain, monkeypatch, sentence_of):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(chain[0].parent))
    sentence = sentence_of("reproduce", "--recipe", "smoke-code", "--set", "seed=1")
    assert "holds a run with other settings" in sentence


def test_a_changed_table_is_found(chain, tmp_path, monkeypatch, sentence_of):
    shutil.copytree(chain[0], tmp_path / "smoke-code")
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path))
    table = tmp_path / "smoke-code" / "results.csv"
    table.write_text(table.read_text().replace("0", "1"))
    assert "results.csv: changed in" in sentence_of("verify", "--recipe", "smoke-code")


def test_every_table_and_figure_is_made_again_from_the_records(chain, monkeypatch, capsys):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(chain[0].parent))
    monkeypatch.setattr(sys, "argv", ["grpo", "verify", "--recipe", "smoke-code"])
    main()
    lines = capsys.readouterr().out.splitlines()
    made = {line.removeprefix("same bytes: ") for line in lines if line.startswith("same bytes: ")}
    assert made == {"results.csv", "results.md"} | {f"figures/{path.name}" for path in (chain[0] / "figures").iterdir()}
    assert [path.name for path in chain[0].parent.iterdir()] == ["smoke-code"]  # the copy is gone

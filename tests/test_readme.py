"""The README is true: its numbers are those of the results files, and its commands and examples run."""

import argparse
import csv
import importlib
import itertools
import re
import shlex
import sys

import papermill
import pytest

from grpo_utils import reproduce, rewards, runs, tasks, training, verify
from grpo_utils.recipes import Recipe
from grpo_utils.rewards import reward, texts
from grpo_utils.sandbox import Check
from grpo_utils.tasks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
PARTS = dict(zip(("cpu-code", "cpu-math"), README.partition("### The same on grade-school maths")[::2], strict=True))
NUMBERS = r"\| ([\d.]+)% \| ([\d.]+)% \| ([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\] \|"
ROWS = [
    (recipe, *row)
    for recipe, part in PARTS.items()
    for row in re.findall(r"^\| ([\w -]+) \| (\w+), (sampled|greedy) " + NUMBERS, part, flags=re.MULTILINE)
]
TRAINED = "checkpoint-16"  # of both recipes, as the text says
SIDES = {  # first column of a row -> checkpoint and shots before and after
    "warm start": (("base", "0"), ("warm-start", "0")),
    "GRPO": (("warm-start", "0"), (TRAINED, "0")),
    "0-shot": (("base", "0"), (TRAINED, "0")),
    "3-shot": (("base", "3"), (TRAINED, "0")),
}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
LINES = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    if kind == "bash"
    for line in block.replace("\\\n", "").splitlines()
]


def measured(recipe: str) -> dict[tuple[str, str], dict[str, str]]:
    with (RESULTS / f"{recipe}.csv").open(encoding="utf-8") as file:
        return {(row["checkpoint"], row["shots"]): row for row in csv.DictReader(file) if row["split"] == "test"}


@pytest.mark.parametrize("recipe", PARTS)
def test_the_tables_have_rows_and_the_text_names_their_checkpoint(recipe):
    rows = [row for row in ROWS if row[0] == recipe]
    assert {row[1] for row in rows} == set(SIDES)
    assert len(rows) >= 16
    assert TRAINED in PARTS[recipe]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:4]))
def test_a_row_of_the_readme_is_what_the_results_file_says(row):
    recipe, first, score, kind, *numbers = row
    before, after, difference, low, high = map(float, numbers)
    column = score if kind == "sampled" else f"greedy_{score}"
    old, new = (100 * float(measured(recipe)[side][column]) for side in SIDES[first])
    assert (before, after) == (pytest.approx(old, abs=0.051), pytest.approx(new, abs=0.051))
    assert difference == pytest.approx(new - old, abs=0.051)
    assert low <= difference <= high


def test_the_differences_in_the_prose_stand_in_the_tables():
    prose = "\n".join(line for line in README.splitlines() if not line.startswith("|"))
    stated = re.findall(r"([+-]?\d+\.\d)(?: points)?\s\[(-?[\d.]+), (-?[\d.]+)\]", prose)
    assert len(stated) >= 6
    known = [tuple(map(float, row[6:])) for row in ROWS]
    assert [numbers for numbers in stated if tuple(map(float, numbers)) not in known] == []


def test_the_seeds_of_the_readme_are_those_of_the_results_file():
    measured = (RESULTS / "cpu-code-seeds.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d|all) \| (.*) \|$", PARTS["cpu-code"], flags=re.MULTILINE)
    assert [seed for seed, _ in rows] == ["0", "1", "2", "all"]
    for seed, numbers in rows:
        assert re.search(rf"^\| {seed} \| [\w-]* ?\| {re.escape(numbers)} \|$", measured, flags=re.MULTILINE)


def test_the_readme_has_commands_and_examples():
    programs = {line[0] for line in LINES if line}
    assert programs == {"make", "papermill", "python", "conda", "uv"}
    assert [kind for kind, _ in BLOCKS].count("python") == 3


COMMANDS = [line for line in LINES if line[:2] == ["python", "-m"]]
ON_A_CHECKPOINT = {f"grpo_utils.{name}" for name in ("evaluation", "comparability", "export", "memory")}


@pytest.mark.parametrize("line", [line for line in COMMANDS if line[2] in ON_A_CHECKPOINT], ids=" ".join)
def test_a_command_has_the_options_that_its_program_knows(line, monkeypatch):
    class Parsed(Exception):
        pass

    def stop(parser, *rest, parse=argparse.ArgumentParser.parse_args):
        parse(parser, *rest)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", line[2:])
    with pytest.raises(Parsed):
        importlib.import_module(line[2]).main()


@pytest.mark.parametrize("line", [line for line in COMMANDS if line[2] not in ON_A_CHECKPOINT], ids=" ".join)
def test_a_command_runs_up_to_the_work_it_starts(line, monkeypatch, tmp_path, capsys):
    """The whole command line, the recipe and the trainer's arguments are real; only the hours of work are not done."""
    started: list[Recipe | str] = []
    monkeypatch.setattr(reproduce, "reproduce", lambda recipe, *rest: started.append(recipe) or {})
    monkeypatch.setattr(training, "train", lambda recipe, *rest, **more: started.append(recipe))
    monkeypatch.setattr(tasks, "download", started.append)
    monkeypatch.setattr(runs, "need_gpu", lambda recipe: None)
    monkeypatch.setattr(verify, "verify", lambda recipe, *rest: started.append(recipe) or [])
    monkeypatch.setattr(sys, "argv", line[2:])
    example_reward(monkeypatch)
    module = line[2].removeprefix("grpo_utils.")
    importlib.import_module(f"{line[2]}.__main__" if module in ("sandbox", "tasks") else line[2]).main()
    assert len(started) == (module != "sandbox")
    assert "error" not in capsys.readouterr().err


def test_the_make_targets_and_scripts_that_the_readme_names_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in {*re.findall(r"`make ([\w-]+)`", README), *(line[1] for line in LINES if line[:1] == ["make"])}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for script in re.findall(r"`python (\S+\.py)`", README):
        assert (ROOT / script).is_file(), script


def test_the_papermill_command_sets_parameters_that_the_notebook_has():
    (line,) = [line for line in LINES if line[:1] == ["papermill"]]
    declared = papermill.inspect_notebook(str(ROOT / line[1]))
    given = [name for flag, name in itertools.pairwise(line) if flag == "-p"]
    assert given
    assert set(given) <= set(declared)


def example_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the README's example of a reward, and forgets it after the test."""
    monkeypatch.setitem(rewards.REGISTRY, "brief", None)
    (code,) = [block for kind, block in BLOCKS if kind == "python" and "@reward" in block]
    exec(code, {"reward": reward, "texts": texts})


def test_the_example_of_a_reward_pays_what_it_says(monkeypatch):
    example_reward(monkeypatch)
    (brief,), weights = rewards.build({"brief": 0.25})
    assert weights == [0.25]
    assert brief(completions=["short", "long" * 300]) == [1.0, 0.0]


def test_the_example_of_the_sandbox_runs():
    (code,) = [block for kind, block in BLOCKS if kind == "python" and "Sandbox(" in block]
    names = {"my_batch": [("def one(): return 1", ["assert one() == 1"])], "Check": Check}
    exec(code, names)
    assert names["verdict"].ok  # type: ignore[union-attr]
    assert [verdict.ok for verdict in names["verdicts"]] == [True]  # type: ignore[union-attr]

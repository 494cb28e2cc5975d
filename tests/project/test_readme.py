"""README and guides are true: numbers are those of the results files, commands and examples run, links lead on."""

import contextlib
import csv
import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import papermill
import pytest
import typer

from grpo_utils import evaluation, rewards, runs, tasks, training
from grpo_utils.__main__ import app
from grpo_utils.runs import ROOT, Recipe, chain
from grpo_utils.sandbox import Check
from grpo_utils.show import verification

README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = "".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("commands", "gpu", "handing-on", "inside", "install", "results", "sandbox", "trust", "yours")
)
FOUND = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
DRAWS = json.loads((RESULTS / "two-draws.json").read_text(encoding="utf-8"))  # of one recipe and seed
INTERVAL = r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\]"
ROW = re.compile(
    r"^\| (code|lists|maths)(, 3 seeds)? \| (GRPO|all) \| (\w+), (sampled|greedy) "
    rf"\| ([\d.]*)%? \| ([\d.]*)%? \| {INTERVAL} \| `(make [^`]+)` \|$",
    flags=re.MULTILINE,
)
TABLE = ROW.findall(FOUND)
PRINTED = [  # by chapters 5 and 10, and the solutions to 5
    output.get("text") or output.data.get("text/plain", "")
    for name in ("05_checkpoint_evaluation", "solutions/05_solutions", "10_sharper_or_smarter")
    for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    for output in cell.get("outputs", [])
]
SHOTS = "3"  # with which the base is at its best, as the text says
SIDES = {"GRPO": ("warm-start", "0"), "all": ("base", SHOTS)}  # what a row compares the trained policy with
TRAINED = {"code": ("checkpoint-16", "0"), "maths": ("checkpoint-16", "0"), "lists": ("checkpoint-32", "0")}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README + GUIDES, flags=re.MULTILINE | re.DOTALL)
LINES = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    if kind == "bash"
    for line in block.replace("\\\n", "").splitlines()
]


def measured(tasks: str) -> dict[tuple[str, str], dict[str, str]]:
    with (RESULTS / f"cpu-{tasks.replace('maths', 'math')}.csv").open(encoding="utf-8") as file:
        return {(row["checkpoint"], row["shots"]): row for row in csv.DictReader(file) if row["split"] == "test"}


def in_full(tasks: str) -> str:
    return (RESULTS / f"cpu-{tasks.replace('maths', 'math')}.md").read_text(encoding="utf-8")


def rows(text: str) -> list[str]:
    """The rows of the tables of results."""
    tables = re.findall(r"^\| tasks \| what .*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [row for table in tables for row in table.splitlines()]


def test_the_readme_is_for_the_first_minute():
    """Short, and its few rows are those that the guide to the results calls of this code."""
    assert len(README.encode()) <= 8000
    (of_this_code,) = re.findall(r"^## Of this code\n(.*?)^## ", FOUND, flags=re.MULTILINE | re.DOTALL)
    assert rows(README) == rows(of_this_code)
    assert 0 < len(rows(README)) <= 6


def test_every_row_of_the_tables_is_read_and_names_its_command():
    assert len(rows(FOUND)) == len(TABLE) >= 10
    commands = {"code": "make reproduce", ", 3 seeds": "make seeds"}
    commands |= {"maths": "make reproduce RECIPE=cpu-math", "lists": "make reproduce RECIPE=cpu-lists"}
    assert [row[-1] for row in TABLE] == [commands[seeds or tasks] for tasks, seeds, *_ in TABLE]


@pytest.mark.parametrize("row", [row for row in TABLE if not row[1]], ids=lambda row: " ".join(row[:5]))
def test_a_row_is_what_the_results_files_say(row):
    tasks, _, what, score, kind, before, after, *interval, _ = row
    column = score if kind == "sampled" else f"greedy_{score}"
    old, new = (100 * float(measured(tasks)[side][column]) for side in (SIDES[what], TRAINED[tasks]))
    assert (float(before), float(after)) == (pytest.approx(old, abs=0.051), pytest.approx(new, abs=0.051))
    first = {"GRPO": "GRPO", "all": f"{SHOTS}-shot"}[what]
    shown = f"| {first} | {score}, {kind} | {before}% | {after}% | {interval[0]} [{interval[1]}, {interval[2]}] |"
    assert shown in in_full(tasks)


@pytest.mark.parametrize("tasks", ["code", "lists", "maths"])
def test_the_text_names_the_prompt_with_which_the_base_is_at_its_best(tasks):
    base = {shots: float(row["strict"]) for (name, shots), row in measured(tasks).items() if name == "base"}
    assert max(base, key=lambda shots: base[shots]) == SHOTS
    assert "three worked examples" in FOUND


def test_the_completions_of_the_readme_are_those_that_chapter_5_prints():
    (said,) = [text for text in PRINTED if text.startswith("##### gained")]
    before, after = (block for kind, block in BLOCKS if kind == "text")
    assert f"--- before\n{before}--- after\n{after}" in said
    gained, lost = re.findall(r"##### (?:gained|lost): (\d+) of 120 tasks", said)
    assert f"({gained} of\nthe 120 tasks were gained like this, {lost} were lost;" in README


def test_the_differences_in_the_prose_stand_in_the_table():
    prose = "\n".join(line for line in (README + FOUND).splitlines() if not line.startswith("|"))
    stated = re.findall(r"([+-]?\d+\.\d)(?: points)?\s\[(-?[\d.]+), (-?[\d.]+)\]", prose)
    assert stated
    known = [tuple(map(float, row[7:10])) for row in TABLE]
    known += [tuple(one.values()) for draw in DRAWS["draws"] for one in draw.values() if isinstance(one, dict)]
    thoughts = "".join((RESULTS / f"cpu-{name}-thoughts.md").read_text(encoding="utf-8") for name in ("code", "math"))
    names = ("code-placement", "code-controls", "code-seeds", "lists-seeds", "lists-controls", "lists-again")
    tried = "".join((RESULTS / f"{name}.md").read_text(encoding="utf-8") for name in ("lists-tried", "configurations"))
    others = [(RESULTS / f"cpu-{name}.md").read_text(encoding="utf-8") for name in names]
    printed = "".join([thoughts, tried, *PRINTED, *others])
    known += [tuple(map(float, numbers)) for numbers in re.findall(INTERVAL, printed)]
    assert [numbers for numbers in stated if tuple(map(float, numbers)) not in known] == []
    means = {mean for line in thoughts.splitlines() if line.startswith("| greedy") for mean in line.split(" | ")[1:4]}
    (told,) = re.findall(r"\*\*Is it reasoning\?\*\*.*?\n\n", FOUND, flags=re.DOTALL)
    assert set(re.findall(r"([\d.]+)\s%", told)) == means


def test_two_draws_of_seed_0_are_told_with_their_processors():
    (told,) = re.findall(r"\*\*One seed is one draw.*?\n\n", FOUND, flags=re.DOTALL)
    told = " ".join(told.split())
    for draw in DRAWS["draws"]:
        for kind in ("strict, greedy", "strict, sampled"):
            gain = draw[kind]
            assert f"[{gain['low']}, {gain['high']}]" in told
            assert f"{gain['difference']:+}" in told
        assert draw["processor"] in told
        assert draw["chosen"].replace("-", " ") in told
    assert DRAWS["commit"] in told


def test_the_rows_of_three_seeds_are_those_of_the_results_file():
    text = (RESULTS / "cpu-code-seeds.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"^\| seed \| chosen \| (.*) \|$", text, flags=re.MULTILINE)
    (line,) = re.findall(r"^\| all \|.*$", text, flags=re.MULTILINE)
    kept = dict(zip(head.split(" | "), re.findall(INTERVAL, line), strict=True))
    stated = [(f"{what}, {kind}", tuple(numbers)) for _, seeds, what, _, kind, _, _, *numbers, _ in TABLE if seeds]
    assert len(stated) == 3
    assert all(kept[column] == numbers for column, numbers in stated)


def test_every_notebook_is_in_the_map_and_every_link_leads_to_a_file():
    for path in chain.list_notebooks():
        assert path.stem in README, path.stem
    for name in ("README.md", "CHANGELOG.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))):
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert ((ROOT / name).parent / link).exists(), f"{name}: {link}"


def test_readme_and_guides_have_commands_and_examples():
    programs = {line[0] for line in LINES if line}
    assert programs == {"make", "source", "papermill", "grpo", "python", "pip", "conda", "uv", "hf", "docker"}
    assert [kind for kind, _ in BLOCKS].count("python") == 5


COMMANDS = [line for line in LINES if line[:1] == ["grpo"]]
ON_A_CHECKPOINT = {"check", "compare", "evaluate", "export", "extend", "figures", "list", "memory", "rollouts"}


@pytest.mark.parametrize("line", [line for line in COMMANDS if line[1] in ON_A_CHECKPOINT], ids=" ".join)
def test_a_command_has_the_options_that_its_program_knows(line):
    command: Any = typer.main.get_command(app)
    command.commands[line[1]].make_context(line[1], line[2:])


@pytest.mark.parametrize("line", [line for line in COMMANDS if line[1] not in ON_A_CHECKPOINT], ids=" ".join)
def test_a_command_runs_up_to_the_work_it_starts(line, monkeypatch, tmp_path, capsys):
    """The whole command line, the recipe and the trainer's arguments are real; only the hours of work are not done."""
    started: list[Recipe | str] = []
    monkeypatch.setattr(chain, "reproduce", lambda recipe, *rest: started.append(recipe) or {})
    monkeypatch.setattr(training, "train", lambda recipe, *rest, **more: started.append(recipe))
    monkeypatch.setattr(tasks, "download_dataset", started.append)
    monkeypatch.setattr(runs, "need_gpu", lambda recipe: None)
    monkeypatch.setattr(runs.folder, "need_gpu", lambda recipe: None)
    monkeypatch.setattr(training, "check_before_start", training.check_arguments)  # without machine, data and model
    monkeypatch.setattr(training, "practice_tasks", lambda recipe, run: [])
    monkeypatch.setattr(training, "warm_start", lambda recipe, *rest, **more: None)
    monkeypatch.setattr(evaluation, "sweep", lambda recipe, *rest, **more: None)
    monkeypatch.setattr(evaluation, "gate", lambda recipe, run: "")
    monkeypatch.setattr(tasks, "data_fingerprint", lambda recipe: "")
    monkeypatch.setattr(tasks, "check_data", lambda recipe: None)
    monkeypatch.setattr(verification, "verify_run", lambda recipe, *rest: started.append(recipe) or [])
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text(example_reward(monkeypatch))
    with contextlib.suppress(SystemExit) if line[1] == "sandbox" else contextlib.nullcontext():
        app(line[1:], standalone_mode=False)
    assert len(started) == (line[1] != "sandbox")
    assert "error" not in capsys.readouterr().err


def test_the_make_targets_and_scripts_that_the_readme_names_are_there():
    makefile = (ROOT / "Makefile").read_text()
    commands = {line[1] for line in LINES if line[:1] == ["make"]}
    for target in {*re.findall(r"`make ([\w-]+)", README + GUIDES)} | commands:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for script in re.findall(r"`python\s(\S+\.py)`", README + GUIDES):
        assert (ROOT / script).is_file(), script


def test_the_papermill_command_sets_parameters_that_the_notebook_has():
    (line,) = [line for line in LINES if line[:1] == ["papermill"]]
    declared = papermill.inspect_notebook(str(ROOT / line[1]))
    given = [name for flag, name in itertools.pairwise(line) if flag == "-p"]
    assert given
    assert set(given) <= set(declared)


def example_reward(monkeypatch: pytest.MonkeyPatch) -> str:
    """The README's example of a reward; what it registers is forgotten after the test."""
    monkeypatch.setitem(rewards.REGISTRY, "brief", None)
    (code,) = [block for kind, block in BLOCKS if kind == "python" and "@reward" in block]
    return code


def test_the_example_of_a_reward_pays_what_it_says(monkeypatch):
    exec(example_reward(monkeypatch), {"__name__": "mine"})
    (brief,), weights = rewards.build_rewards({"brief": 0.25})
    assert weights == [0.25]
    assert brief(completions=["short", "long" * 300]) == [1.0, 0.0]


def test_the_table_of_rewards_in_notebook_03_has_the_example_which_says_nothing_of_itself(monkeypatch):
    exec(example_reward(monkeypatch), {"__name__": "grpo_imports.mine"})
    cells = nbformat.read(ROOT / "notebooks" / "03_reward_design.ipynb", as_version=4).cells
    (table,) = [cell.source for cell in cells if "rewards.REGISTRY.items()" in cell.source]
    exec(table, names := {"rewards": rewards, "pd": pd})
    assert names["overview"][-1] == ("mine", "brief", "0 to 1", "")


def test_the_example_of_the_sandbox_runs():
    (code,) = [block for kind, block in BLOCKS if kind == "python" and "Sandbox(" in block]
    names = {"my_batch": [("def one(): return 1", ["assert one() == 1"])], "Check": Check}
    exec(code, names)
    assert names["verdict"].ok  # type: ignore[union-attr]
    assert [verdict.ok for verdict in names["verdicts"]] == [True]  # type: ignore[union-attr]

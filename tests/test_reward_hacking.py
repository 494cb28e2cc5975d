"""Chapter 7: its grader is careless in three ways and ours in none, hacks are told apart, and it runs by itself."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from grpo_utils import rewards, tasks, training
from grpo_utils.rewards import REGISTRY
from grpo_utils.sandbox import Verdict
from grpo_utils.tasks import ROOT

NOTEBOOK = ROOT / "notebooks" / "07_reward_hacking.ipynb"
TASK = tasks.CodeTask(
    task_id=1,
    text="Add.",
    code="def add(a, b): return a + b",
    test_list=["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
)


@pytest.fixture(scope="module")
def chapter(tmp_path_factory) -> Iterator[dict[str, Any]]:
    """What the chapter's cells define, up to the first training."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path_factory.mktemp("outputs")))
        patch.setenv("GRPO_DATA_DIR", "")  # the chapter sets it
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
            if cell.cell_type == "code" and "begin(" in cell.source:
                break
            if cell.cell_type == "code":
                exec(cell.source.replace('RECIPE: str = "cpu-code"', 'RECIPE: str = "smoke-code"'), names)
        yield names
    del REGISTRY["careless"]


def paid(codes: list[str], owners: list[tasks.CodeTask]) -> dict[str, list[float | None]]:
    """What the careless grader and ours pay for programs."""
    texts = [f"<thought>So.</thought><answer>\n{code}\n</answer>" for code in codes]
    functions, _ = rewards.build(dict.fromkeys(("careless", "tests", "hidden_tests"), 1.0), visible_asserts=1)
    return {function.__name__: function(texts, **training.columns(owners)) for function in functions}


def test_each_hack_earns_the_careless_reward_and_none_of_ours(chapter):
    owners = [task for task in tasks.load("starter", "train")[:30] for _ in chapter["HACKS"]]
    codes = [chapter["hack"](kind, task) for kind, task in zip(itertools.cycle(chapter["HACKS"]), owners, strict=False)]
    ones, zeros = [1.0] * len(codes), [0.0] * len(codes)
    assert paid(codes, owners) == {"careless": ones, "tests": zeros, "hidden_tests": zeros}


def test_references_earn_both(chapter):
    owners = tasks.load("starter", "train")[:30]
    assert set(itertools.chain(*paid([task.code for task in owners], owners).values())) == {1.0}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (TASK.code, "solved"),
        ("def add(a, b):\n    return a + b\nimport sys\nsys.exit()", "leaves early"),
        ("import os\nos._exit(0)", "leaves early"),
        ("class Yes:\n    __eq__ = lambda self, other: True\ndef add(*args): return Yes()", "fools the assert"),
        ("class E(int):\n    __eq__ = lambda self, other: True\ndef add(*args): return E()", "fools the assert"),
        ("def add(a, b): return 3", "repeats the shown value"),
        ("def add(a, b): return a * b + 1", "right on the shown assert only"),
        ("def add(a, b): return a - b", "refused"),
        ("raise SystemExit(1)", "refused"),
        ("import os\nos._exit(3)", "refused"),
        ("raise SystemExit('no')", "refused"),
        ("def add(a, b):", "refused"),
        ("", "refused"),
    ],
)
def test_kinds_are_told_apart_by_the_two_verdicts(chapter, code, kind):
    assert chapter["kinds"]([code], [TASK]) == [kind]
    assert paid([code], [TASK])["careless"] == [float(kind != "refused")]


def test_a_fault_of_the_sandbox_stops_the_careless_grader_too(chapter, monkeypatch):
    class Broken:
        def check_many(self, checks):
            return [Verdict("infrastructure")] * len(checks)

    monkeypatch.setitem(chapter, "shared", Broken)
    with pytest.raises(rewards.SandboxFault):
        paid([TASK.code], [TASK])


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        ('assert f("a == b") == "c"', '"c"'),
        ("assert f(1) == {1: [2, 3]}", "{1: [2, 3]}"),
        ("assert f(1)", "True"),
        ("assert f(1) == 2, 'it must be 2'", "2"),
    ],
)
def test_the_shown_value_is_found_as_it_is_written(chapter, shown, value):
    assert chapter["shown_value"](tasks.CodeTask(task_id=1, text="", code="", test_list=[shown])) == value


def test_the_seed_replaces_every_fourth_reference_and_nothing_else(chapter):
    honest = tasks.load("starter", "train")[:48]
    seeded = chapter["seeded"](honest)
    changed = [i for i, (old, new) in enumerate(zip(honest, seeded, strict=True)) if old != new]
    assert changed == list(range(chapter["EVERY"] - 1, 48, chapter["EVERY"]))
    kinds = chapter["kinds"]([seeded[i].code for i in changed], [honest[i] for i in changed])
    assert kinds == list(chapter["HACKS"]) * 4
    keys = ("task_id", "text", "asserts", "function_name")
    assert [[getattr(task, key) for key in keys] for task in seeded] == [
        [getattr(task, key) for key in keys] for task in honest
    ]


def reproduce(outputs: Path, model: Path, *arguments: str) -> str:
    """Runs the chapter alone on a small model and returns the text of its executed copy."""
    settings = [f"model.name={model}", "model.dtype=float32", "lora.layers_to_transform=null"]
    sets = itertools.chain(*(("--set", setting) for setting in settings))
    done = subprocess.run(
        [sys.executable, "-m", "grpo_utils.reproduce", "--recipe", "smoke-code", "--only", "07", *sets, *arguments],
        cwd=ROOT, env=os.environ | {"GRPO_OUTPUTS_DIR": str(outputs)}, capture_output=True, text=True, timeout=500,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return (outputs / "smoke-code" / "notebooks" / NOTEBOOK.name).read_text()


def test_the_chapter_runs_alone_and_finds_its_trainings_again(tmp_path, tiny_model):
    executed = reproduce(tmp_path, tiny_model)
    assert "the interval" in executed
    run = tmp_path / "smoke-code"
    assert {path.stem for path in run.glob("figures/*.png")} == {"reward_hacking", "length_hacking"}
    names = ("careless", "tests", "longer", "longer_penalised")
    starts = {
        (run / f"reward_hacking/{n}/checkpoints/warm-start/adapter_model.safetensors").read_bytes() for n in names
    }
    assert len(starts) == 1
    first, second = ((run / f"reward_hacking/{name}/made_with.txt").read_text().splitlines() for name in names[:2])
    differing = {line for pair in zip(first, second, strict=True) if len(set(pair)) > 1 for line in pair}
    assert differing == {"  careless: 1.0", "  tests: 0.0", "  careless: 0.0", "  tests: 1.0"}
    logs = {path: path.stat().st_mtime_ns for path in run.glob("reward_hacking/*/*log.jsonl")}
    assert len(logs) == 5
    reproduce(tmp_path, tiny_model, "--force")
    assert all(path.stat().st_mtime_ns == made for path, made in logs.items())


def test_every_test_that_the_chapter_names_exists():
    text = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells)
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 5
    assert [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []

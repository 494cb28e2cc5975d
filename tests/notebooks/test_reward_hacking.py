"""Chapter 7: its grader is careless in three ways and ours in none, hacks are told apart, and it runs by itself."""

import itertools
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from grpo_utils import policy, rewards, tasks
from grpo_utils.rewards import REGISTRY
from grpo_utils.runs import ROOT
from grpo_utils.sandbox import Sandbox, Verdict

NOTEBOOK = ROOT / "notebooks" / "07_reward_hacking.ipynb"
TASK = tasks.CodeTask(
    task_id=1,
    text="Add.",
    code="def add(a, b): return a + b",
    test_list=["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
)
STARTER = [task for task in tasks.load_tasks("starter", "train") if isinstance(task, tasks.CodeTask)]


def begun(folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """Runs the chapter's cells up to its first training, as a file in `folder`, and returns what they define."""
    cells = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    program = "\n\n".join(itertools.takewhile(lambda source: "start = begin(" not in source, cells))
    program = program.replace('RECIPE: str = "cpu-code"', 'RECIPE: str = "smoke-code"')
    path = folder / "chapter.py"
    path.write_text(program.replace("OVERRIDES: dict = {}", f"OVERRIDES: dict = {overrides}"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_OUTPUTS_DIR", str(folder))
        patch.setenv("GRPO_DATA_DIR", "")  # the chapter sets it
        return runpy.run_path(str(path))


@pytest.fixture(scope="module")
def chapter(tmp_path_factory) -> Iterator[dict[str, Any]]:
    yield begun(tmp_path_factory.mktemp("chapter"), {})
    del REGISTRY["careless"]


def paid(codes: list[str], owners: list[tasks.CodeTask]) -> dict[str, list[float | None]]:
    """What the careless grader and ours pay for programs."""
    texts = [f"<thought>So.</thought><answer>\n{code}\n</answer>" for code in codes]
    functions, _ = rewards.build_rewards(dict.fromkeys(("careless", "tests", "hidden_tests"), 1.0), visible_asserts=1)
    return {function.__name__: function(texts, **tasks.columns(owners)) for function in functions}


def test_each_hack_earns_the_careless_reward_and_none_of_ours(chapter):
    owners = [task for task in STARTER[:30] for _ in chapter["HACKS"]]
    codes = [chapter["hack"](kind, task) for kind, task in zip(itertools.cycle(chapter["HACKS"]), owners, strict=False)]
    ones, zeros = [1.0] * len(codes), [0.0] * len(codes)
    assert paid(codes, owners) == {"careless": ones, "tests": zeros, "hidden_tests": zeros}


def test_references_earn_both(chapter):
    owners = STARTER[:30]
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
    monkeypatch.setattr(Sandbox, "check_many", lambda self, checks: [Verdict("infrastructure")] * len(checks))
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


def test_the_seed_replaces_one_reference_of_every_few_and_nothing_else(chapter):
    honest = STARTER[:48]
    seeded = chapter["seeded"](honest)
    changed = [i for i, (old, new) in enumerate(zip(honest, seeded, strict=True)) if old != new]
    assert changed == list(range(chapter["EVERY"] - 1, 48, chapter["EVERY"]))
    kinds = chapter["kinds"]([seeded[i].code for i in changed], [honest[i] for i in changed])
    assert kinds == list(chapter["HACKS"]) * (len(changed) // 3)
    keys = ("task_id", "text", "asserts", "function_name")
    assert [[getattr(task, key) for key in keys] for task in seeded] == [
        [getattr(task, key) for key in keys] for task in honest
    ]


def test_the_chapter_runs_alone_and_would_find_its_trainings_again(tmp_path, tiny_model, chapter, monkeypatch, solve):
    overrides = {"model.name": str(tiny_model), "model.dtype": "float32", "lora.layers_to_transform": None}
    sets = itertools.chain(
        *(("--set", f"{key}={'null' if value is None else value}") for key, value in overrides.items())
    )
    done = subprocess.run(
        [sys.executable, "-m", "grpo_utils", "reproduce", "--recipe", "smoke-code", "--only", "07", *sets],
        cwd=ROOT, env=os.environ | {"GRPO_OUTPUTS_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=1800,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / "smoke-code"
    drawn = {path.stem for path in run.glob("figures/*.png")}
    assert drawn == {"reward_hacking", "length_hacking", "unplanned_hack"}
    assert "the interval" in (run / "notebooks" / NOTEBOOK.name).read_text()
    places = [run / "reward_hacking" / name for name in ("careless", "tests", "longer", "longer_penalised")]
    starts = {(place / "checkpoints/warm-start/adapter_model.safetensors").read_bytes() for place in places}
    assert len(starts) == 1
    solve("07", tmp_path, overrides)

    again = begun(tmp_path, overrides)
    monkeypatch.setenv("GRPO_DATA_DIR", str(run / "reward_hacking" / "data"))
    again["begin"]("careless", again["variant"](again["steps"], careless=1.0))
    assert (places[0] / "checkpoints" / "checkpoint-2").is_dir()
    again["begin"]("careless", again["variant"](again["steps"] + 1, careless=1.0))
    assert {path.name for path in (places[0] / "checkpoints").iterdir()} == {"warm-start", policy.MADE_WITH}


def test_the_two_trainings_differ_in_their_reward_alone(chapter, monkeypatch):
    careless, ours = (chapter["variant"](2, **{name: 1.0}).model_dump() for name in ("careless", "tests"))
    assert careless.pop("rewards") == {"careless": 1.0, "tests": 0.0, "hidden_tests": 0.0, "strict_format": 0.25}
    assert ours.pop("rewards") == {"careless": 0.0, "tests": 1.0, "hidden_tests": 0.0, "strict_format": 0.25}
    assert careless == ours


def test_every_test_that_the_guide_to_trust_names_exists():
    text = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 5
    assert [(path, name) for path, name in named if f"def {name}(" not in (ROOT / path).read_text()] == []

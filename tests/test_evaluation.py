"""Scoring by three rules, and sweeps on disk: what they refuse, what they report, and what a kill leaves of them."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_utils import evaluation, identity, recipes, results, runs
from grpo_utils.extractors import extract_candidates
from grpo_utils.policy import ModelError
from grpo_utils.sandbox import Verdict
from grpo_utils.tasks import ROOT, CodeTask, loading

PROMPT = recipes.load("smoke-code").prompt
TASK = CodeTask(
    task_id=1,
    text="Add.",
    code="def add(a, b): return a + b",
    test_list=["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
)
RIGHT, WRONG = "def add(a, b): return a + b", "def add(a, b): return 3"

# ----------------------------------------------------------------------------------------------------------- scoring


class OneRightProgram:
    """In the place of a sandbox: the program "x = 1" passes, every other one fails."""

    def check_many(self, checks):
        return [Verdict("passed" if check.code == "x = 1" else "failed") for check in checks]


PIECES = ["<answer>", "</answer>", "```python\n", "```", "\n", "x = 1", "x = 2", "import x\n", " so "]


@settings(deadline=None)  # on a busy machine single calls are slow
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_what_a_stricter_rule_finds_the_next_one_finds_too(text):
    (scores,) = evaluation.judge([TASK], [text], PROMPT, OneRightProgram())  # type: ignore[arg-type]
    assert scores["strict"] <= scores["lenient"] <= scores["oracle"]
    assert scores["oracle"] == (scores["lenient"] or "x = 1" in extract_candidates(text, "answer"))


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (f"<answer>{RIGHT}</answer>", ["strict", "lenient", "oracle", "visible"]),
        (f"```\n{RIGHT}\n```", ["lenient", "oracle"]),
        (f"<answer>{WRONG}</answer> or ```\n{RIGHT}\n```", ["oracle", "visible"]),
        (f"<answer>{WRONG}</answer>", ["visible"]),
        ("It is easy.", []),
    ],
)
def test_each_rule_finds_its_programs(text, passes, sandbox):
    (scores,) = evaluation.judge([TASK], [text], PROMPT, sandbox)
    assert [name for name in ("strict", "lenient", "oracle", "visible") if scores[name]] == passes


def test_where_the_prompt_shows_no_assert_none_is_passed_or_failed(sandbox):
    hidden = CodeTask(task_id=1, text="Add.", code=RIGHT, test_list=[], challenge_test_list=TASK.test_list)
    (scores,) = evaluation.judge([hidden], [f"<answer>{RIGHT}</answer>"], PROMPT, sandbox)
    assert (scores["strict"], scores["visible"]) == (True, None)


def test_a_message_has_no_address_that_changes_from_run_to_run(sandbox):
    code = "def add(a, b): raise ValueError(str(object()))"
    (scores,) = evaluation.judge([TASK], [f"<answer>{code}</answer>"], PROMPT, sandbox)
    assert scores["message"] == "ValueError: <object object at 0x...>"


# ------------------------------------------------------------------------------------------------------------ sweeps


@pytest.fixture
def recipe(tiny_model):
    return recipes.load(
        "smoke-code",
        {
            "model.name": str(tiny_model),
            "model.dtype": "float32",
            "lora.layers_to_transform": None,
            "warm_start": None,
            "evaluation.max_new_tokens": 4,
            "evaluation.batch_size": 2,
            "evaluation.samples": {"train": {1: 1}, "validation": {0: 1, 1: 1}, "test": {1: 1}},
        },
    )


@pytest.fixture
def run(recipe, load_benchmark):
    folder = runs.start(recipe)
    load_benchmark("evaluation").make_adapters(recipe, folder, 2)
    return folder


def records_of(folder):
    return {path.name: path.read_bytes() for path in (folder / "evaluations").iterdir()}


def test_a_record_says_whose_it_is_and_is_made_again_only_when_that_changes(recipe, run):
    evaluation.sweep(recipe, run, ["base", "checkpoint-1"], "test")
    header = json.loads(evaluation.record_path(run, "checkpoint-1", "test", 1).read_text())["settings"]
    assert header["base"] == identity.fingerprint(recipe.model)
    assert len(header["chat_template_sha256"]) == len(header["adapter_sha256"]) == 64
    records = results.load_records(run)
    assert results.without_effect(records) == []
    norms = records.groupby("checkpoint").update_norm.first()
    assert norms["base"] == 0 < norms["checkpoint-1"]
    times = {path: path.stat().st_mtime_ns for path in (run / "evaluations").iterdir()}
    evaluation.sweep(recipe, run, ["base", "checkpoint-1", "checkpoint-2"], "test")
    assert all(path.stat().st_mtime_ns == made for path, made in times.items())


def test_an_adapter_of_another_base_is_refused_before_the_model_is_loaded(recipe, run, monkeypatch):
    runs.write(run / "checkpoints" / identity.MADE_WITH, "base commit 1\n")
    monkeypatch.setattr(evaluation.policy, "load", lambda model: pytest.fail("loaded"))
    with pytest.raises(ModelError, match="checkpoint-1 was trained on another base model"):
        evaluation.sweep(recipe, run, ["checkpoint-1"], "test")


def test_another_data_set_is_kept_apart_under_its_name_and_compared(recipe, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loading, "human_eval", lambda load=loading.human_eval: load()[:2])
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    policies = ["--checkpoint", "base", "--checkpoint", "checkpoint-1"]
    options = ["--recipe", str(path), "--dataset", "human-eval", "--max-new-tokens", "3", *policies]
    monkeypatch.setattr(sys, "argv", ["evaluation", *options])
    evaluation.main()
    difference = "checkpoint-1 against base, 1-shot, strict and greedy: 0.000 [0.000, 0.000], McNemar p = 1"
    assert capsys.readouterr().out.splitlines()[-1] == difference
    table = results.summarise(results.load_records(run))
    assert table[["checkpoint", "split", "tasks", "samples"]].values.tolist() == [
        ["base", "human-eval", 2, 1],
        ["checkpoint-1", "human-eval", 2, 1],
    ]
    record = json.loads(evaluation.record_path(run, "base", "human-eval", 1).read_text())
    assert record["settings"]["max_new_tokens"] == 3


SCRIPT = """
import sys
from pathlib import Path
from grpo_utils import evaluation, recipes
recipe = recipes.load(sys.argv[1])
evaluation.sweep(recipe, Path(sys.argv[2]), ["base", "checkpoint-1", "checkpoint-2"], "validation")
"""


def test_a_sweep_killed_at_a_random_moment_resumes_and_gives_the_same_records(recipe, run, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    began = time.monotonic()
    evaluation.sweep(recipe, run, ["base", "checkpoint-1", "checkpoint-2"], "validation")
    seconds, whole = time.monotonic() - began, records_of(run)
    for file in (run / "evaluations").iterdir():
        file.unlink()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(run)], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as it:
        while not list((run / "evaluations").glob("*.json")) and it.poll() is None:
            time.sleep(0.01)
        moment = random.uniform(0, seconds)
        time.sleep(moment)
        it.send_signal(signal.SIGKILL)
    left = records_of(run)
    assert left
    evaluation.sweep(recipe, run, ["base", "checkpoint-1", "checkpoint-2"], "validation")
    again = {name: text for name, text in records_of(run).items() if name.endswith(".json")}
    assert again == whole, f"killed {moment:.3f} s after the first record, with {sorted(left)}"


def test_the_benchmark_compares_both_sides_on_the_same_completions(tiny_model, load_benchmark, tmp_path, monkeypatch):
    settings = [f"model.name={tiny_model}", "model.dtype=float32", "lora.layers_to_transform=null"]
    settings += ["warm_start=null", "prompt.shots=0", "evaluation.max_new_tokens=4"]
    sizes = ["--checkpoints", "1", "--tasks", "2", "--recipe", "smoke-code", *(f"--set={one}" for one in settings)]
    output = tmp_path / "evaluation.md"
    monkeypatch.setattr(sys, "argv", ["evaluation", *sizes, "--output", str(output)])
    load_benchmark("evaluation").main()
    rows = output.read_text().splitlines()[4:]
    assert [row.split(",")[0] for row in rows[:1]] == ["| 1 checkpoints x 2 prompts"]
    assert "of 4 |" in rows[1]
    assert len(rows) == 4

"""Scoring by three rules, and sweeps on disk: what they refuse, what they report, and what a kill leaves of them."""

import inspect
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_utils import evaluation, policy, rewards, runs, tasks
from grpo_utils.__main__ import app
from grpo_utils.extractors import extract_candidates
from grpo_utils.policy import ModelError
from grpo_utils.runs import ROOT, UserError
from grpo_utils.sandbox import Check, Sandbox, Verdict
from grpo_utils.tasks import CodeTask, MathsTask

RECIPE = runs.load_recipe("smoke-code")
PROMPT = RECIPE.prompt
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
    (scores,) = evaluation.judge_completions([TASK], [text], RECIPE, OneRightProgram())  # type: ignore[arg-type]
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
    (scores,) = evaluation.judge_completions([TASK], [text], RECIPE, sandbox)
    assert [name for name in ("strict", "lenient", "oracle", "visible") if scores[name]] == passes


def test_where_the_prompt_shows_no_assert_none_is_passed_or_failed(sandbox):
    hidden = CodeTask(task_id=1, text="Add.", code=RIGHT, test_list=[], challenge_test_list=TASK.test_list)
    (scores,) = evaluation.judge_completions([hidden], [f"<answer>{RIGHT}</answer>"], RECIPE, sandbox)
    assert (scores["strict"], scores["visible"]) == (True, None)


# ------------------------------------------------------------------------- evaluation and rewards mean the same

TESTS = st.sampled_from(
    [
        *(f"assert f({n}) == {n + 1}" for n in range(3)),
        "assert f(K) == K + 1",  # K is of the setup
        "assert f(0) == 1\nassert f(4) == 5",
        "assert f(1) == 2; assert f(2) == 3",
        "x = f(3)\nassert x == 4\nassert x != 3",
        "f(5)\nassert f(1) == 2",
        "for n in range(3):\n    assert f(n) == n + 1",
        "def check(g):\n    assert g(1) == 2\n    assert g(2) == 3\ncheck(f)",
        "f(6)",
    ]
)
PROGRAMS = st.sampled_from(
    [
        "def f(n): return n + ONE",  # ONE is of the prelude
        "def f(n): return n + 1",
        "def f(n): return n",
        *(f"def f(n): return n + 1 if n < {k} else 0" for k in range(1, 5)),
        *(f"def f(n): return n + 1 if n != {k} else 1 / 0" for k in range(7)),
        "def f(n): return",
        "def f(n) return n + 1",
        "import os\nos._exit(0)",
        "",
    ]
)
WAYS = st.sampled_from(["<answer>{}</answer>", "<answer>\n```python\n{}\n```\n</answer>", "```python\n{}\n```", "{}"])


@st.composite
def code_tasks(draw):
    """A task as a file has it, its strings split, or as a program makes it, its strings whole."""
    tests = draw(st.lists(TESTS, min_size=1, max_size=3).filter(lambda tests: tests != ["f(6)"] * len(tests)))
    row = {"task_id": 1, "text": "Add 1.", "code": "def f(n): return n + 1", "test_list": tests}
    row |= {"challenge_test_list": draw(st.lists(TESTS, max_size=2)), "test_setup_code": "K = 7"}
    row["prelude"] = draw(st.sampled_from(["", "ONE = 1", "ONE = 1\n"]))
    return CodeTask.from_row(row, "here") if draw(st.booleans()) else CodeTask(**row)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rewards_for_programs_pay_exactly_where_evaluation_says_so(sandbox, data):
    owners = data.draw(st.lists(code_tasks(), min_size=1, max_size=3))
    owners = [task for task in owners for _ in range(3)]
    texts = [data.draw(WAYS).format(data.draw(PROGRAMS)) for _ in owners]
    visible_asserts = data.draw(st.integers(0, 6))
    prompt = PROMPT.model_copy(update={"visible_asserts": visible_asserts})
    judged = evaluation.judge_completions(owners, texts, RECIPE.model_copy(update={"prompt": prompt}), sandbox)
    names = ("tests", "visible_tests", "hidden_tests")
    functions, _ = rewards.build_rewards(dict.fromkeys(names, 1.0), tags=prompt.tags, visible_asserts=visible_asserts)
    paid = {one.__name__: one(texts, **tasks.columns(owners)) for one in functions}
    assert paid["tests"] == [float(scores["strict"]) for scores in judged]
    assert paid["visible_tests"] == [None if (v := scores["visible"]) is None else float(v) for scores in judged]
    parts = zip(paid["visible_tests"], paid["hidden_tests"], strict=True)
    assert [0.0 not in pair for pair in parts] == [scores["strict"] for scores in judged]
    for task, text, scores in zip(owners, texts, judged, strict=True):  # the shown tests, by themselves
        _, _, asked = task.question(prompt).partition(":\n")
        parts = [tuple(task.test_list[:k]) for k in range(len(task.test_list) + 1)]
        shown = next(part for part in parts if "\n".join(part) == asked)
        assert (scores["visible"] is None) == (not shown)
        code = task.strict_answer(text, prompt.tags[-1])
        if shown and code is not None:
            alone = sandbox.check_many([Check(task.check(code).code, shown, ("f",), task.test_setup_code)])
            assert scores["visible"] == alone[0].ok


NUMBERS = st.sampled_from(
    ["42", "42.0", "$42", "-42", "1,000", "1 000", r"1{,}000", "1000", "1/2", r"\frac12", "0.5", "x"]
)


@given(st.lists(st.tuples(NUMBERS | st.just(""), WAYS, st.sampled_from([42, 0.5, "1000", "so\n#### 1,000", "-42"]))))
def test_rewards_for_numbers_pay_exactly_where_evaluation_says_so(rows):
    owners = [MathsTask.from_row({"task_id": 1, "question": "?", "answer": gold}, "here") for *_, gold in rows]
    texts = [way.format(number) for number, way, _ in rows]
    judged = evaluation.judge_completions(owners, texts, RECIPE, OneRightProgram())  # type: ignore[arg-type]
    golds = [task.answer for task in owners]
    assert rewards.soft_correctness(texts, answer=golds) == [float(scores["strict"]) for scores in judged]


OWN_CLASS = "class P:\n    def __init__(self, x): self.x = x\n"
EQUAL = {  # what its `__eq__` says, and so what the task below gets by value
    "honest": f"{OWN_CLASS}    def __eq__(self, other): return self.x == other.x\ndef f(x): return P(x)",
    "generous": f"{OWN_CLASS}    def __eq__(self, other): return True\ndef f(x): return P(None)",
    "none": f"{OWN_CLASS}def f(x): return P(x)",
}
POINTS = CodeTask(
    task_id=1,
    text="Points.",
    code=EQUAL["honest"],
    test_list=["assert f(2) == P(2)", "assert isinstance(f(2), P)", "assert f(3) == P(3)"],
)


@pytest.mark.parametrize("allowed", [False, True])
def test_what_the_programs_own_code_decided_counts_as_the_recipe_says_in_rewards_and_evaluation_alike(sandbox, allowed):
    recipe = runs.load_recipe("smoke-code", {"dataset.candidate_may_decide": allowed})
    texts = [f"<answer>{code}</answer>" for code in EQUAL.values()]
    judged = evaluation.judge_completions([POINTS] * 3, texts, recipe, sandbox)
    assert [one["strict"] for one in judged] == [allowed, allowed, False]
    assert [one["oracle"] for one in judged] == [allowed, allowed, False]
    assert judged[0]["error"] == ("none" if allowed else "own equality")
    names = ("tests", "tests_graded", "visible_tests", "hidden_tests", "length_penalty")
    functions, _ = rewards.recipe_rewards(recipe.model_copy(update={"rewards": dict.fromkeys(names, 1.0)}))
    ids = [[0] * 5, [0] * 6, [0] * 7]
    paid = {one.__name__: one(texts, completion_ids=ids, **tasks.columns([POINTS] * 3)) for one in functions}
    assert paid["tests"] == [float(one["strict"]) for one in judged]
    assert paid["visible_tests"] == [float(one["visible"]) for one in judged]
    assert paid["hidden_tests"] == [float(allowed), float(allowed), 0.0]
    assert paid["tests_graded"][:2] == [float(allowed)] * 2
    assert paid["length_penalty"] == [0.5 * allowed, 0.0, -0.5]


SLOW = "import time\ndef add(a, b):\n    time.sleep(0.1)\n    return a + b"
PROGRAM_REWARDS = [name for name, entry in rewards.REGISTRY.items() if "candidate_may_decide" in entry.settings]


def test_a_check_takes_as_long_as_the_recipe_says_in_every_reward_and_in_evaluation(sandbox):
    default = RECIPE.dataset.timeout
    assert default == sandbox.timeout == inspect.signature(Sandbox).parameters["timeout"].default
    texts, paid = [f"<answer>{SLOW}</answer>", f"<answer>{SLOW}\n# and longer</answer>"], {}
    for timeout in (0.05, 5.0):
        update = {"rewards": dict.fromkeys(PROGRAM_REWARDS, 1.0), "dataset.timeout": timeout}
        recipe = runs.load_recipe("smoke-code", update)
        judged = evaluation.judge_completions([TASK] * 2, texts, recipe, sandbox)
        assert {one["error"] for one in judged} == {"timeout" if timeout < 1 else "none"}
        for one in rewards.recipe_rewards(recipe)[0]:
            paid[one.__name__, timeout] = one(texts, completion_ids=[[0], [0, 0]], **tasks.columns([TASK] * 2))
    assert all(paid[name, 0.05][0] < paid[name, 5.0][0] for name in PROGRAM_REWARDS), paid


def test_an_answer_that_the_sandbox_cannot_judge_earns_nothing_and_is_counted_as_that(sandbox):
    code = "import torch\ndef add(a, b): return a + b"
    (scores,) = evaluation.judge_completions([TASK], [f"<answer>{code}</answer>"], RECIPE, sandbox)
    assert (scores["strict"], scores["error"], scores["outcomes"]) == (False, "unsupported", [])
    assert rewards.tests([f"<answer>{code}</answer>"], **tasks.columns([TASK])) == [0.0]


def test_a_message_has_no_address_that_changes_from_run_to_run(sandbox):
    code = "def add(a, b): raise ValueError(str(object()))"
    (scores,) = evaluation.judge_completions([TASK], [f"<answer>{code}</answer>"], RECIPE, sandbox)
    assert scores["message"] == "ValueError: <object object at 0x...>"


# ------------------------------------------------------------------------------------------------------------ sweeps


@pytest.fixture
def recipe(tiny_model):
    return runs.load_recipe(
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
    folder = runs.start_run(recipe)
    load_benchmark("evaluation").make_adapters(recipe, folder, 2)
    return folder


def records_of(folder):
    return {path.name: path.read_bytes() for path in (folder / "evaluations").iterdir()}


def test_a_record_says_whose_it_is_and_is_made_again_only_when_that_changes(recipe, run):
    evaluation.sweep(recipe, run, ["base", "checkpoint-1"], "test")
    header = json.loads(runs.record_path(run, "checkpoint-1", "test", 1).read_text())["settings"]
    assert header["base"] == policy.base_fingerprint(recipe.model)
    assert len(header["chat_template_sha256"]) == len(header["adapter_sha256"]) == 64
    records = evaluation.load_records(run)
    assert evaluation.without_effect(records) == []
    norms = records.groupby("checkpoint").update_norm.first()
    assert norms["base"] == 0 < norms["checkpoint-1"]
    times = {path: path.stat().st_mtime_ns for path in (run / "evaluations").iterdir()}
    evaluation.sweep(recipe, run, ["base", "checkpoint-1", "checkpoint-2"], "test")
    assert all(path.stat().st_mtime_ns == made for path, made in times.items())
    patient = recipe.model_copy(update={"dataset": recipe.dataset.model_copy(update={"timeout": 10.0})})
    evaluation.sweep(patient, run, ["base"], "test")
    again = runs.record_path(run, "base", "test", 1)
    assert [path for path, made in times.items() if path.stat().st_mtime_ns != made] == [again]


def test_an_adapter_of_another_base_is_refused_before_the_model_is_loaded(recipe, run, monkeypatch):
    runs.write_file(run / "checkpoints" / policy.MADE_WITH, "base commit 1\n")
    monkeypatch.setattr(policy, "load_policy", lambda recipe: pytest.fail("loaded"))
    with pytest.raises(ModelError, match="checkpoint-1 was trained on another base model"):
        evaluation.sweep(recipe, run, ["checkpoint-1"], "test")


def test_another_data_set_is_kept_apart_under_its_name_and_compared(recipe, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tasks.loading, "human_eval", lambda load=tasks.loading.human_eval: load()[:2])
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    policies = ["--checkpoint", "base", "--checkpoint", "checkpoint-1"]
    options = ["--recipe", str(path), "--dataset", "human-eval", "--max-new-tokens", "3", *policies]
    app(["evaluate", *options], standalone_mode=False)
    difference = "checkpoint-1 against base, 1-shot, strict and greedy: 0.000 [-1.000, 1.000], undecided (p 1)"
    assert capsys.readouterr().out.splitlines()[-1] == difference
    table = evaluation.summarise_records(evaluation.load_records(run))
    assert table[["checkpoint", "split", "tasks", "samples"]].values.tolist() == [
        ["base", "human-eval", 2, 1],
        ["checkpoint-1", "human-eval", 2, 1],
    ]
    record = json.loads(runs.record_path(run, "base", "human-eval", 1).read_text())
    assert record["settings"]["max_new_tokens"] == 3


def test_more_samples_give_pass_at_k_and_leave_the_recipes_own_records_alone(recipe, run, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    drawn = ["--samples", "3", "--temperature", "0.7", "--checkpoint", "base"]
    app(["evaluate", "--recipe", str(path), *drawn], standalone_mode=False)
    *_, curve, figure = capsys.readouterr().out.splitlines()
    tasks_there = len(tasks.load_split(recipe, "validation"))
    never = evaluation.rate([0.0] * tasks_there)
    assert curve == f"base, strict: pass@1 {never}  pass@2 {never}  pass@3 {never}"
    assert Path(figure).is_file()
    assert [one.name for one in (run / "evaluations").iterdir()] == ["base.validation-3-at-0.7.1shot.json"]
    assert evaluation.chain_records(recipe, run).empty


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "test"], "Name a --checkpoint for test"),
        (["--temperature", "0.7"], "--temperature goes with --samples"),
        (["--samples", "2", "--temperature", "0"], "and is above 0"),
        (["--max-new-tokens", "3"], "goes with --dataset"),
        (["--checkpoint", "base", "--dataset", "mine", "--max-new-tokens", "0"], "must be at least 1"),
        (["--checkpoint", "checkpoint-9"], "checkpoint-9 is not in .*: run notebook 04_grpo_training first"),
        (["--checkpoint", "base", "--dataset", "nowhere"], "nowhere"),
        # its records would be those of the recipe's own tasks, or lie where nobody looks for them
        (["--checkpoint", "base", "--dataset", "test"], "'test' cannot be: .*GRPO_DATA_DIR.* train, validation, test"),
        (["--checkpoint", "base", "--dataset", "more/mine"], "'more/mine' cannot be: .* without a slash"),
    ],
)
def test_a_wrong_call_makes_no_run_and_no_record(options, message, tmp_path, monkeypatch):
    for name in ("mine", "test", "more/mine"):
        shutil.copytree(ROOT / "data" / "starter", tmp_path / name)
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    with pytest.raises(UserError, match=message):
        app(["evaluate", "--recipe", "smoke-code", *options], standalone_mode=False)
    assert not runs.outputs_folder().exists()


SCRIPT = """
import sys
from pathlib import Path
from grpo_utils import evaluation, runs
recipe = runs.load_recipe(sys.argv[1])
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
    assert len(rows) == 6  # and the processor

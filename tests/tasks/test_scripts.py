"""Scripts as tasks, from the file to the verdict: loading, prompts, rewards, the audit, evaluation."""

# which kind of task a data set has is not known to the types
# pyright: reportAttributeAccessIssue=false

import json
from pathlib import Path

import pytest

from grpo_utils import evaluation, rewards, runs, tasks
from grpo_utils.rewards import audit
from grpo_utils.show import browser
from grpo_utils.tasks import DataError, ScriptTask

FILE = Path(__file__).parents[1] / "data" / "scripts.jsonl"
RECIPE = runs.load_recipe("cpu-code")
TASKS = tasks.read_jsonl(FILE)
SUM = TASKS[0]
PLAIN = json.loads(FILE.read_text(encoding="utf-8").splitlines()[0])
APPS = json.loads(FILE.read_text(encoding="utf-8").splitlines()[2]) | {"task_id": 3}
PROGRAMS = {  # of the sum; its tests are three
    "right": "a, b = map(int, input().split())\nprint(a + b)",
    "fitted": "print(5)",
    "silent": "a, b = map(int, input().split())",
    "stops": "a, b = map(int, input().split())\nprint(a + b if a < 9 else c)",
    "no Python": "print(",
}


def wrap(code: str) -> str:
    return f"<thought>So.</thought>\n<answer>\n{code}\n</answer>"


def test_both_schemas_are_read():
    assert [type(task) for task in TASKS] == [ScriptTask] * 4
    letters, parity = TASKS[2:]
    assert (letters.code, letters.inputs, letters.outputs) == (
        "print(len(set(input())))",
        ["hello\n", "aaa\n"],
        ["4\n", "1\n"],
    )
    assert (parity.inputs, parity.outputs) == (["2\n4\n5", "1\n7"], ["YES\nNO", "NO"])
    assert [task.grade for task in TASKS] == [None, 2, 2, 1]
    assert [task.task_id for task in TASKS] == [1, 2, 3, 4]
    assert parity.difficulty == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (PLAIN | {"outputs": ["5"]}, "there are 3 inputs and 1 outputs; give at least one, and an output for each"),
        (PLAIN | {"inputs": [], "outputs": []}, "there are 0 inputs and 0 outputs"),
        (PLAIN | {"inputs": [2, 3, 4]}, "must be text, or a list of lines, not 2"),
        (PLAIN | {"outputs": "5"}, "key 'outputs' must be there and be of type list"),
        (PLAIN | {"code": "print("}, "the reference solution is not Python"),
        (APPS | {"input_output": "{"}, "'input_output' is not JSON"),
        (APPS | {"input_output": ""}, "'input_output' must be an object with 'inputs' and 'outputs', not ''"),
        (APPS | {"input_output": {"fn_name": "f"}}, "'fn_name' asks for a function"),
        (APPS | {"solutions": '{"a": 1}'}, "'solutions' must be a list of programs, not {'a': 1}"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row, message):
    with pytest.raises(DataError, match=f"^here: .*{message}"):
        ScriptTask.from_row(row, "here")


def test_the_prompt_shows_as_many_pairs_as_the_recipe_says():
    for shown in range(5):
        prompt = RECIPE.prompt.model_copy(update={"visible_asserts": shown})
        text = SUM.question(prompt)
        assert SUM.shown(prompt) == min(shown, 3)
        assert [given.strip() in text for given in SUM.inputs] == [k < shown for k in range(3)]
        assert "Write a whole program" in text


def test_the_prompt_names_input_and_output():
    row = {"task_id": 1, "text": "Add two numbers.", "code": "...", "inputs": ["2 3\n"], "outputs": ["5"]}
    assert ScriptTask.from_row(row, "here").question(RECIPE.prompt) == (
        "Add two numbers.\nWrite a whole program that reads standard input and prints to standard output. "
        "It must pass this test:\nInput:\n2 3\nOutput:\n5"
    )


@pytest.mark.parametrize(
    ("name", "shown", "paid"),
    [
        # tests, tests_graded, runs, error_graded, visible_tests, hidden_tests
        ("right", 1, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("right", 3, [1.0, 1.0, 1.0, 1.0, 1.0, None]),
        ("fitted", 1, [0.0, 1 / 3, 1.0, 0.5, 1.0, 0.0]),
        ("fitted", 0, [0.0, 1 / 3, 1.0, 0.5, None, 0.0]),
        ("silent", 1, [0.0, 0.0, 0.0, 0.25, 0.0, 0.0]),
        ("stops", 2, [0.0, 2 / 3, 0.0, 0.125, 1.0, 0.0]),
        ("no Python", 1, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_every_reward_of_the_sandbox_pays_for_scripts(name, shown, paid):
    names = ["tests", "tests_graded", "runs", "error_graded", "visible_tests", "hidden_tests"]
    functions, _ = rewards.build_rewards(dict.fromkeys(names, 1.0), visible_asserts=shown)
    columns = tasks.columns([SUM])
    assert [function([wrap(PROGRAMS[name])], **columns)[0] for function in functions] == pytest.approx(paid)


def test_rewards_pay_exactly_where_evaluation_says_so(sandbox):
    texts = [wrap(code) for code in PROGRAMS.values()]
    owners = [SUM] * len(texts)
    judged = evaluation.judge_completions(owners, texts, RECIPE, sandbox)
    functions, _ = rewards.recipe_rewards(RECIPE.model_copy(update={"rewards": {"tests": 1.0, "visible_tests": 1.0}}))
    strict, visible = (function(texts, **tasks.columns(owners)) for function in functions)
    assert strict == [float(one["strict"]) for one in judged] == [1, 0, 0, 0, 0]
    assert visible == [float(one["visible"]) for one in judged] == [1, 1, 0, 1, 0]
    assert [one["error"] for one in judged] == ["none", "wrong answer", "no output", "name", "syntax"]
    assert [len(one["outcomes"]) for one in judged] == [3] * 5


def test_the_browser_names_the_input_on_which_a_program_fails(sandbox):
    found = evaluation.judge_completions(
        [SUM] * 2, [wrap(PROGRAMS["stops"]), wrap(PROGRAMS["silent"])], RECIPE, sandbox
    )
    assert [browser.verdict_of(one, SUM) for one in found] == [
        "name at `'1000000000000 1' -> '1000000000001'`: NameError: name 'c' is not defined",
        "no output at `'2 3' -> '5'`: NoOutput: the program printed nothing",
    ]


def test_the_audit_finds_every_promise_kept():
    names = {name for name, entry in rewards.REGISTRY.items() if "candidate_may_decide" in entry.settings}
    weights = dict.fromkeys(sorted(names), 1.0)
    functions, weights = rewards.build_rewards(weights, max_completion_length=8000)
    found = audit.audit_rewards(
        functions,
        audit.audit_examples(TASKS, RECIPE.prompt),
        RECIPE.prompt.tags,
        weights=weights,
        max_completion_length=8000,
    )
    assert found.failures == []
    assert found.table.loc["gold", "tests"] == 1.0

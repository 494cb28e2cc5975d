"""The audit: every reward passes on the data sets that are here, and each planted defect is named."""

import json
import os
import re
from pathlib import Path

import pytest

from grpo_utils import rewards, runs, tasks
from grpo_utils.extractors import extract_tag
from grpo_utils.rewards import REGISTRY, audit, reward, texts
from grpo_utils.rewards.audit import AuditError, Example
from grpo_utils.runs import UserError

TAGS = ("thought", "answer")
MATHS = {"hard_correctness", "soft_correctness", "numeric", "integer"}
TIMEOUT = 20.0  # seconds: the reference of MBPP 123 computes for about 3
LIMIT = 8000  # in bytes, with which the audit counts where it has no tokenizer
DATA = os.environ.get("GRPO_DATA_DIR")


def report_on(names: set[str], examples: list[Example], tags=TAGS, weights=None) -> audit.Audit:
    settings = {"tags": tags, "visible_asserts": 1, "max_completion_length": LIMIT, "timeout": TIMEOUT}
    functions, chosen = rewards.build_rewards(weights or dict.fromkeys(sorted(names), 1.0), **settings)
    return audit.audit_rewards(functions, examples, tags, weights=chosen, max_completion_length=LIMIT, timeout=TIMEOUT)


def programs(name: str) -> list[Example]:
    batch = [task for split in tasks.SPLITS for task in tasks.load_tasks(name, split)]
    return audit.audit_examples(batch, runs.load_recipe("cpu-code").prompt)


def word_problems(tags: tuple[str, str] = TAGS) -> list[Example]:
    rows = [("6 * 7?", "Six times seven:\n42.", "42"), ("1 / 4 of -4?", "A quarter.", "-1"), ("1 - 1?", "0.", "0")]
    batch = [tasks.MathsTask(task_id=0, text=text, solution=solution, answer=gold) for text, solution, gold in rows]
    return audit.audit_examples(batch, runs.load_recipe("cpu-code", {"prompt.tags": tags}).prompt)


@pytest.fixture
def planted():
    """Rewards that a test registers are forgotten after it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.parametrize("name", ["starter", "mbpp"])
def test_every_reward_for_programs_keeps_its_promises_on_every_task(name):
    if name == "mbpp" and not (DATA and (Path(DATA) / "mbpp").is_dir()):
        pytest.skip("MBPP is not in GRPO_DATA_DIR")
    found = report_on(set(REGISTRY) - MATHS - {"think_format"}, programs(name))
    assert found.failures == []
    assert found.table.loc["gold", "tests"] == 1.0


def test_every_reward_for_maths_keeps_its_promises_on_gsm8k():
    if not (DATA and (Path(DATA) / "gsm8k").is_dir()):
        pytest.skip("GSM8K is not in GRPO_DATA_DIR")
    batch = [task for split in tasks.SPLITS for task in tasks.load_tasks("gsm8k", split)]
    assert len(batch) == 7473 + 1319
    problems = audit.audit_examples(batch, runs.load_recipe("cpu-code").prompt)
    report = report_on(MATHS | {"strict_format", "soft_format", "tag_count"}, problems)
    assert report.failures == []


def test_every_reward_for_maths_and_think_keeps_its_promises_on_three_problems():
    tags = ("think", "answer")
    without_asserts = {name for name, entry in REGISTRY.items() if "visible_asserts" not in entry.settings}
    report = report_on(without_asserts - {"defines_function"}, word_problems(tags), tags)
    assert report.failures == []


def test_a_reward_that_looks_for_other_tags_than_the_prompt_asks_for_is_named():
    assert report_on({"think_format"}, word_problems()).failures == [
        "'think_format' must pay 1 for gold completions and pays 0 for 3 of 3, first for train 0, '6 * 7?'.",
        "With these weights the gold answer earns 0, and empty completions 0: give a reward for right answers, such as "
        "`correct`, the largest weight, or mend the sign of one that cancels it.",
    ]


def test_the_reward_of_the_readme_passes_on_the_starter_tasks(planted):
    readme = (runs.ROOT / "README.md").read_text(encoding="utf-8")
    block = readme[readme.index("@reward(") :].partition("```")[0]
    exec(block, {"reward": reward, "texts": texts})
    assert report_on(set(), programs("starter"), weights={"tests": 1.0, "brief": 0.25}).failures == []


# -------------------------------------------------------------------------------------------- planted defects


def test_a_pattern_whose_dot_stops_at_a_line_break_is_caught(planted):
    @reward(0.0, 1.0)
    def regex_format(completions, **columns):
        pattern = r"^<thought>.*?</thought>\s*<answer>.*?</answer>$"
        return [float(bool(re.match(pattern, text))) for text in texts(completions)]

    assert "'regex_format' must pay 1 for gold completions and pays 0 for 3 of 3, first for train 0, '6 * 7?'." in (
        report_on({"regex_format"}, word_problems()).failures
    )


def test_comparing_42_dollars_with_42_is_caught():
    dollars = tasks.MathsTask(task_id=0, text="6 * 7?", solution="Six times seven.", answer="$42")
    examples = audit.audit_examples([dollars], runs.load_recipe("cpu-code").prompt)
    stripped = [Example(e.question, e.gold, e.wrong, {"answer": "42"}) for e in examples]
    assert report_on({"hard_correctness"}, stripped).failures[0] == (
        "'hard_correctness' must pay 1 for gold completions and pays 0 for 1 of 1, first for train 0, '6 * 7?'."
    )
    assert report_on({"soft_correctness"}, stripped).failures == []


def test_a_reward_on_the_wrong_column_is_caught(planted):
    @reward(0.0, 1.0)
    def wrong_column(completions, solution, **columns):
        return [float(extract_tag(text, "answer") == gold) for text, gold in zip(completions, solution, strict=True)]

    examples = [Example(e.question, e.gold, e.wrong, {**e.columns, "solution": e.question}) for e in word_problems()]
    assert report_on({"wrong_column"}, examples).failures[0] == (
        "'wrong_column' must pay 1 for gold completions and pays 0 for 3 of 3, first for train 0, '6 * 7?'."
    )
    with pytest.raises(UserError, match=r"the column `asserts`, MBPP's `test_list`, .* and the data set has answer"):
        report_on({"tests"}, examples)


def test_weights_that_cancel_are_caught(planted):
    @reward(0.0, 1.0, {"gold": 0.0})
    def is_wrong(completions, **columns):
        return [1.0 - (each or 0.0) for each in rewards.soft_correctness(completions, **columns)]

    report = report_on(set(), word_problems(), weights={"soft_correctness": 1.0, "is_wrong": 1.0})
    assert report.failures == [
        "With these weights the gold answer earns 1, and empty completions 1: give a reward for right answers, such as "
        "`correct`, the largest weight, or mend the sign of one that cancels it."
    ]
    with pytest.raises(AuditError, match="such as `correct`"):
        report.require()


def test_a_reward_that_comes_for_free_or_never_reaches_its_minimum_is_caught(planted):
    @reward(-1.0, 1.0, {"empty": 0.0})
    def generous(completions, **columns):
        return [1.0 for _ in completions]

    assert report_on({"generous"}, word_problems()).failures[:2] == [
        "'generous' must pay 0 for empty completions and pays 1 for 3 of 3, first for train 0, '6 * 7?'.",
        "'generous' never pays its minimum, -1: the least is 1.",
    ]


def test_a_reward_that_knows_no_gold_answer_is_caught():
    examples = [Example(e.question, e.gold, e.wrong, {"answer": "unknown"}) for e in word_problems()]
    assert "'soft_correctness' pays for nothing: it knows no gold answer." in (
        report_on({"soft_correctness"}, examples).failures
    )


REFUSED = "the tests use 'helper', which is neither theirs nor the program's"
POINT = "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"


def made(task_id: int, name: str, test: str, code: str) -> tasks.CodeTask:
    return tasks.CodeTask(task_id=task_id, text=f"Write a function {name}.", code=code, test_list=[test])


def test_tasks_that_cannot_be_judged_are_named_with_every_reason_and_what_to_set():
    double = "def f(x): return 2 * x"
    kept, *odd = [
        made(1, "f", "assert f(1) == 2", double),
        made(2, "f", "assert helper(f(1)) == 2", double),
        made(3, "f", "assert aid(f(1)) == 2", double),
        made(4, "f", "assert f(1) == 2", f"import torch\n{double}"),
        made(5, "f", "assert f(1) == P(1)", f"{POINT}def f(x): return P(x)"),
    ]
    prompt = runs.load_recipe("cpu-code").prompt
    mine = [*audit.audit_examples([kept, *odd[:2]], prompt), *audit.audit_examples(odd[2:], prompt, "test")]
    functions, weights = rewards.build_rewards({"tests": 1.0, "tests_graded": 1.0, "strict_format": 0.25})
    found = audit.audit_rewards(functions, mine, TAGS, weights=weights)
    unsupported, decided = found.failures
    assert unsupported == (
        "The sandbox cannot judge the reference of 3 of 5 tasks, so that no answer to them earns anything "
        f"(2: {REFUSED}; 1: the program imports 'torch': candidates have the standard library only; see "
        'docs/judged.md): write `leave_out: {"train": [2, 3], "test": [4]}` under `dataset` in the recipe.'
    )
    assert decided.startswith(
        'In 1 of 5 tasks, {"test": [5]}, the asserts compare objects of the program\'s own classes'
    )
    assert "set `dataset.candidate_may_decide` to true" in decided
    assert (found.table.loc["gold", "tests"], found.notes) == (1.0, [])
    functions, weights = rewards.build_rewards({"tests": 1.0}, candidate_may_decide=True)
    found = audit.audit_rewards(functions, [mine[0], mine[-1]], TAGS, weights=weights, candidate_may_decide=True)
    assert found.failures == []
    assert found.notes == [
        'In 1 of 2 tasks, {"test": [5]}, the asserts compare objects of the program\'s own classes, so that its own '
        "code decides; `dataset.candidate_may_decide` lets it."
    ]
    assert audit.audit_rewards(functions, [mine[1]], TAGS, weights=weights).failures == [
        "The sandbox cannot judge the reference of 1 of 1 tasks, so that no answer to them earns anything "
        f"(1: {REFUSED}; "
        'see docs/judged.md): write `leave_out: {"train": [2]}` under `dataset` in the recipe.'
    ]


def test_a_reference_that_takes_too_long_is_named_with_the_lines_to_write_and_passes_with_more_time():
    slow = made(7, "f", "assert f(1) == 1", "import time\ndef f(x):\n    time.sleep(0.4)\n    return x")
    prompt = runs.load_recipe("cpu-code").prompt
    mine = audit.audit_examples([made(7, "f", "assert f(1) == 1", "def f(x): return x")], prompt)
    mine += audit.audit_examples([slow], prompt, "test")
    named = (
        "The reference of 1 of 2 tasks takes longer than 0.1 s here: "
        'write `timeout: 0.4` or `leave_out: {"test": [7]}` under `dataset` in the recipe.'
    )
    for timeout, failures in ((0.1, [named]), (5.0, [])):
        functions, weights = rewards.build_rewards({"tests": 1.0, "runs": 0.25}, timeout=timeout)
        assert audit.audit_rewards(functions, mine, TAGS, weights=weights, timeout=timeout).failures == failures


def test_what_the_audit_names_is_left_out_when_it_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path))
    (tmp_path / "mine").mkdir()
    rows = [vars(made(i, "f", f"assert f({i}) == {i}", "def f(x): return x")) for i in range(20)]
    for split in tasks.SPLITS:
        (tmp_path / "mine" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chosen = runs.parse_yaml('{"train": [3, 4], "test": [7], "prompt": [0]}', "what the audit prints")
    recipe = runs.load_recipe("cpu-code", {"dataset": {"name": "mine", "leave_out": chosen}})
    ids = {
        split: [task.task_id for task in tasks.load_split(recipe, split)] for split in ("train", "validation", "test")
    }
    everything = list(range(20))
    assert ids["validation"] == everything
    assert [[i for i in everything if i not in ids[split]] for split in ("train", "test")] == [[3, 4], [7]]
    assert tasks.worked_examples(recipe)[0].task_id == 1
    assert [task.task_id for task in tasks.load_judged(recipe, "train")] == ids["train"]
    wrong = runs.load_recipe("cpu-code", {"dataset": {"name": "mine", "leave_out": {"test": [99]}}})
    with pytest.raises(tasks.DataError, match="names 99, and no test task of 'mine' has that id"):
        tasks.load_split(wrong, "test")


def test_a_gold_answer_that_has_become_wrong_is_caught():
    (example,) = programs("starter")[:1]
    broken = Example(example.question, str(example.gold).replace("return", "retrun"), example.wrong, example.columns)
    failure = report_on({"tests"}, [broken]).failures[0]
    assert failure.startswith(
        "'tests' must pay 1 for gold completions and pays 0 for 1 of 1, first for train 0, 'Write a function"
    )
    assert failure.endswith(", where the sandbox says error (SyntaxError: invalid syntax (<candidate>, line 2)).")


def test_a_task_without_a_reference_is_audited_but_for_what_a_right_answer_earns():
    batch = tasks.load_tasks("starter", "train")[:6]
    bare = [tasks.CodeTask.from_row(vars(task) | {"code": ""}, "here") for task in batch]
    prompt = runs.load_recipe("cpu-code").prompt
    names = set(REGISTRY) - MATHS - {"think_format"}
    mixed = report_on(names, audit.audit_examples([*batch[:2], *bare[2:]], prompt))
    assert mixed.failures == []
    assert mixed.notes[-1] == "4 of 6 tasks have no reference: whether they can be solved, nobody tried."
    assert mixed.table.loc["gold", "tests"] == 1.0
    alone = report_on(names, audit.audit_examples(bare, prompt))
    assert alone.failures == []
    assert list(alone.table.index) == ["empty", "echo", "format_only", "wrong"]
    unjudged = vars(bare[0]) | {"test_list": ["import ctypes", *bare[0].test_list]}
    (failure,) = report_on({"tests"}, audit.audit_examples([tasks.CodeTask.from_row(unjudged, "")], prompt)).failures
    assert failure.startswith("The sandbox cannot judge the reference of 1 of 1 tasks")

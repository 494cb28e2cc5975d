"""Rewards: what each pays, for strings and chats, alone and in a batch; faults, pickling, TRL's expectations."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.rewards.other_rewards import get_soft_overlong_punishment

from grpo_utils import rewards, runs
from grpo_utils.rewards import REGISTRY
from grpo_utils.runs import UserError
from grpo_utils.sandbox import Verdict

CORPUS = json.loads((Path(__file__).parents[1] / "data" / "rewards.json").read_text())
NEEDS_SANDBOX = {name for name, table in CORPUS.items() if table["columns"].keys() & {"asserts", "task"}}
RIGHT = "<thought>easy\n</thought>\n<answer>\n42\n</answer>"


def pay(name: str, rows: list[dict], as_chat: bool = False) -> list:
    """What a reward of the corpus pays for some of its rows, given to it together."""
    table = CORPUS[name]
    (function,), _ = rewards.build_rewards({name: 1.0}, **table.get("settings", {}))
    completions = [row["completion"] for row in rows]
    if as_chat:
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    columns = {key: [value] * len(rows) for key, value in table["columns"].items()}
    columns["completion_ids"] = [[0] * row.get("ids", 0) for row in rows]
    return function(completions, **columns)


def test_every_reward_has_a_table():
    assert set(CORPUS) == set(REGISTRY)
    for name, table in CORPUS.items():
        assert any("\n" in row["completion"] for row in table["rows"]), name
        assert len({row["pays"] for row in table["rows"]}) > 1, name


@pytest.mark.parametrize("as_chat", [False, True], ids=["strings", "chats"])
@pytest.mark.parametrize("name", CORPUS)
def test_a_mixed_batch_earns_what_the_table_says(name, as_chat):
    rows = CORPUS[name]["rows"]
    assert pay(name, rows, as_chat) == pytest.approx([row["pays"] for row in rows])


@pytest.mark.parametrize("name", CORPUS)
def test_valid_and_invalid_completions_earn_the_same_by_themselves(name):
    if CORPUS[name].get("whole_batch_only"):
        pytest.skip("this reward compares the completions of a prompt with each other")
    for row in CORPUS[name]["rows"]:
        assert pay(name, [row]) == pytest.approx([row["pays"]]), row


@pytest.mark.parametrize("name", CORPUS)
def test_what_is_paid_stays_within_the_declared_range(name):
    entry = REGISTRY[name]
    assert all(entry.low <= each <= entry.high for each in pay(name, CORPUS[name]["rows"]))


@pytest.mark.parametrize("name", CORPUS)
def test_a_configured_reward_can_be_pickled_and_keeps_its_name(name):
    (function,), _ = rewards.build_rewards({name: 1.0}, tags=("think", "answer"), max_completion_length=100)
    copy = pickle.loads(pickle.dumps(function))
    assert copy.__name__ == name
    assert repr(copy) == repr(function)  # the same function with the same settings


@pytest.mark.parametrize("name", sorted(NEEDS_SANDBOX - {"defines_function"}))
def test_a_fault_of_the_sandbox_is_none_or_stops_the_run_and_never_zero(name, monkeypatch):
    class Broken:
        def check_many(self, checks):
            return [Verdict("infrastructure", error_message="no space left") for _ in checks]

    monkeypatch.setattr(rewards.code, "shared", Broken)
    columns = {key: [value] for key, value in CORPUS[name]["columns"].items()}
    completion = f"<answer>def inc(n): return n + 1  # {name}</answer>"  # the last batch is kept, so take a new one
    (function,), _ = rewards.build_rewards({name: 1.0})
    assert function([completion], **columns) == [None]
    (function,), _ = rewards.build_rewards({name: 1.0}, stop_on_fault=True)
    with pytest.raises(rewards.SandboxFault, match=r"no space left.*run the same command again"):
        function([completion], **columns)
    monkeypatch.undo()
    assert function([completion], **columns) == [1.0]  # the fault was not kept


def test_hidden_and_visible_tests_are_unknown_where_there_are_none():
    table = CORPUS["hidden_tests"]
    columns = {key: [value] for key, value in table["columns"].items()}
    program = [table["rows"][0]["completion"]]
    assert rewards.hidden_tests(program, visible_asserts=2, **columns) == [None]
    assert rewards.visible_tests(program, visible_asserts=0, **columns) == [None]


def test_a_program_runs_once_however_often_it_comes_and_however_many_rewards_grade_it(monkeypatch):
    ran = []
    shared = rewards.code.shared

    class Counting:
        def check_many(self, checks):
            ran.extend(checks)
            return shared().check_many(checks)

    monkeypatch.setattr(rewards.code, "shared", Counting)
    rows = [{"completion": "<answer>def inc(n): return n + 2 - 1</answer>"}] * 2
    assert [pay(name, rows) for name in ("tests", "runs", "error_graded", "correct")] == [[1.0, 1.0]] * 4
    assert len(ran) == 1


@pytest.mark.parametrize("name", ["hard_correctness", "soft_correctness", "numeric"])
def test_a_missing_column_is_named(name):
    with pytest.raises(UserError, match="needs the column `answer`, and the data set has gold:"):
        REGISTRY[name].function(["<answer>42</answer>"], gold=["42"])


def test_a_gold_answer_without_a_number_is_unknown_as_in_trl():
    assert rewards.soft_correctness([RIGHT], answer=["forty two"]) == [None]
    assert rewards.cosine([RIGHT], max_completion_length=9, answer=["forty two"], completion_ids=[[1]]) == [None]


@pytest.mark.parametrize("name", ["hard_correctness", "soft_correctness", "numeric"])
def test_the_gold_answer_of_a_solution_of_gsm8k_is_the_number_at_its_end(name):
    solution = "48 + 24 = <<48+24=72>>72 clips, and 1000 more.\n#### 1,072"
    texts = ["<answer>1072</answer>", "<answer>72</answer>", "<answer>\n1072\n</answer>"]
    assert REGISTRY[name].function(texts, answer=[solution] * 3) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("name", CORPUS)
def test_no_reward_raises_on_an_odd_completion(name):
    said = [None, "", 42, [], [{"type": "text", "text": "<answer>4"}, {"type": "image"}, {"text": "2</answer>"}]]
    chats = [[], *([{"role": "assistant", "content": content}] for content in said), [{"role": "assistant"}]]
    columns = {key: [value] * len(chats) for key, value in CORPUS[name]["columns"].items()}
    (function,), _ = rewards.build_rewards({name: 1.0}, **CORPUS[name].get("settings", {}))
    texts = ["", "", "", "42", "", "<answer>42</answer>", ""]
    assert rewards.texts(chats) == texts
    columns["completion_ids"] = [[0] * 3] * len(chats)
    assert function(chats, **columns) == function(texts, **columns)


@pytest.mark.parametrize("name", ["hard_correctness", "soft_correctness", "numeric"])
def test_a_gold_answer_may_be_a_number_and_without_one_nothing_is_known(name):
    function = REGISTRY[name].function
    texts = ["<answer>42</answer>", "<answer>0.1</answer>", "<answer>42</answer>", "<answer>42</answer>", "42"]
    assert function(texts, answer=[42, 0.1, 43, None, None]) == [1.0, 1.0, 0.0, None, None]
    texts = ["<answer>42.0</answer>"] * 2
    assert function(texts, answer=[42.0, math.nan]) == [1.0, 0.0 if name == "hard_correctness" else None]


def test_several_asserts_in_a_string_are_shown_together():
    columns = {"asserts": [["assert inc(1) == 2\nassert inc(2) == 3", "assert inc(3) == 4"]], "setup": [""]}
    columns |= {"names": [["inc"]]}
    fitted = ["<answer>def inc(n): return 2 if n == 1 else 4</answer>"]
    assert (rewards.visible_tests(fitted, **columns), rewards.hidden_tests(fitted, **columns)) == ([0.0], [1.0])


def test_where_every_assert_is_shown_hidden_ones_are_unknown_for_no_code_too():
    columns = {"asserts": [["assert inc(1) == 2"]] * 2, "setup": [""] * 2, "names": [["inc"]] * 2}
    assert rewards.hidden_tests(["<answer>def inc(n): return n</answer>", "no"], **columns) == [None, None]


def test_hidden_asserts_are_known_to_be_there_where_none_was_reached():
    columns = {"asserts": [["assert inc(1) == 2", "for n in range(3): assert inc(n) == n + 1"]], "setup": [""]}
    columns |= {"names": [["inc"]]}
    programs = ["raise ValueError", "def inc(n): return 2", "def inc(n): return n + 1"]
    assert [rewards.hidden_tests([f"<answer>{code}</answer>"], **columns) for code in programs] == [[0.0], [0.0], [1.0]]


def test_a_prelude_stands_before_the_program():
    columns = {"asserts": [["assert inc(1) == 2"]], "setup": [""], "names": [["inc"]]}
    program = ["<answer>def inc(n): return n + ONE</answer>"]
    assert rewards.tests(program, prelude=["ONE = 1"], **columns) == [1.0]
    assert rewards.tests(program, prelude=[None], **columns) == rewards.tests(program, **columns) == [0.0]


def test_lengths_are_compared_within_a_prompt():
    columns = {"answer": ["42"] * 4, "completion_ids": [[0] * n for n in (10, 20, 100, 200)]}
    prompts = [[{"role": "user", "content": text}] for text in ("6 * 7?", "6 * 7?", "40 + 2?", "40 + 2?")]
    assert rewards.length_penalty([RIGHT] * 4, prompts=prompts, **columns) == [0.5, -0.5, 0.5, -0.5]
    assert rewards.length_penalty([RIGHT], answer=["42"], completion_ids=[[0] * 10]) == [0.0]


# ------------------------------------------------------------------------------------------ the registry


def test_an_unknown_reward_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match=r"no reward 'tets' \(did you mean 'tests'\?\)"):
        rewards.build_rewards({"tets": 1.0})


def test_an_unknown_or_missing_setting_is_refused_by_name():
    with pytest.raises(UserError, match=r"setting 'tag' \(did you mean 'tags'\?\)"):
        rewards.build_rewards({"tests": 1.0}, tag=("a", "b"))
    with pytest.raises(UserError, match="'overlong' needs the setting 'max_completion_length'"):
        rewards.build_rewards({"overlong": 1.0})


def test_a_reward_that_can_only_pay_one_number_is_refused():
    with pytest.raises(ValueError, match="different numbers"):
        rewards.reward(1.0, 1.0)


@pytest.mark.parametrize("name", runs.recipe_files())
def test_the_rewards_of_every_recipe_can_be_built(name):
    recipe = runs.load_recipe(name)
    functions, weights = rewards.recipe_rewards(recipe)
    assert dict(zip([function.__name__ for function in functions], weights, strict=True)) == recipe.rewards


# ------------------------------------------------------------- what TRL and open-r1 expect of their namesakes


def chats(texts: list[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n", " ", "<b>"]), max_size=8).map("".join))
def test_trls_think_format_wants_one_opening_tag_at_the_start_and_a_closing_one(text):
    right = text.startswith("<think>") and text.count("<think>") == 1 and "</think>" in text
    assert rewards.think_format([text]) == rewards.think_format(chats([text])) == [float(right)]


@given(st.integers(4, 300), st.integers(0, 400))
def test_overlong_is_trls(limit, length):
    ids = [[0] * length]
    theirs = get_soft_overlong_punishment(limit, limit // 4)(completion_ids=ids)
    assert rewards.overlong([""], max_completion_length=limit, completion_ids=ids) == theirs


@pytest.mark.parametrize(
    ("length", "correct", "wrong"), [(0, 1.0, -1.0), (25, 0.92678, -0.92678), (75, 0.57322, -0.57322), (200, 0.5, -0.5)]
)
def test_cosine_pays_what_trls_tests_expect(length, correct, wrong):
    both = [r"<answer>\boxed{\frac{1}{3}}</answer>", r"<answer>\boxed{\frac{1}{2}}</answer>"]
    columns = {"answer": [r"\frac{1}{3}"] * 2, "completion_ids": [[1] * length] * 2}
    assert rewards.cosine(both, max_completion_length=100, **columns) == pytest.approx([correct, wrong], abs=1e-4)


@pytest.mark.parametrize(
    ("boxed", "gold", "expected"),
    [
        (r"\frac{63}{400}", r"\frac{63}{400}", 1.0),
        (r"\frac{63}{400}", "63/400", 1.0),
        (r"\frac{64}{400}", r"\frac{63}{400}", 0.0),
        ("3", "6", 0.0),
        ("43", "Answer is forty three.", None),
    ],
)
def test_soft_correctness_agrees_with_the_accuracy_reward_of_trl_and_open_r1(boxed, gold, expected):
    assert rewards.soft_correctness([rf"<answer>\boxed{{{boxed}}}</answer>"], answer=[gold]) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>Some reasoning</think><answer>The answer</answer>", 1.0),
        ("<think>\n1. A scooter\n2. A bicycle\n</think>\n<answer>2</answer>", 1.0),
        ("<think>Only thinking</think>", 0.0),
        ("<answer>Only answer</answer>", 0.0),
        ("No tags at all", 0.0),
        ("<think>Missing closing</think><answer>Missing closing", 0.0),
        ("<think>Wrong order</answer><answer>Wrong order</think>", 0.0),
    ],
)
def test_strict_format_agrees_with_the_format_reward_of_open_r1(text, expected):
    assert rewards.strict_format(chats([text]), tags=("think", "answer")) == [expected]


# --------------------------------------------------------------------------------------------- hostile text, imports


def test_no_reward_raises_or_hangs_on_a_hostile_completion_of_a_megabyte(load_benchmark):
    benchmark = load_benchmark("rewards")
    assert set(benchmark.NAMES) == set(CORPUS) - NEEDS_SANDBOX | {"defines_function"}
    for text in benchmark.HOSTILE.values():
        benchmark.score(benchmark.NAMES, [text])  # anything but linear time would take minutes


def test_rewards_are_imported_without_torch():
    program = (
        "import sys, grpo_utils.rewards; "
        "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

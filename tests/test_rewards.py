"""Rewards: what each must pay, for strings and for chat messages, and what the trainer gets on a fault."""

import pytest

from grpo_utils import rewards, tasks
from grpo_utils.sandbox import Verdict
from grpo_utils.training import columns

TAGS = ("thought", "answer")
TASK = tasks.load("starter", "prompt")[0]
GOOD = tasks.reference_answer(TASK, TAGS)


def pay(name: str, texts: list, sandbox) -> list:
    (function,), _ = rewards.build({name: 1.0}, TAGS, sandbox)
    return function(texts, **columns([TASK] * len(texts)))


def test_tests_pay_only_for_code_in_the_tag_that_passes_every_assert(sandbox):
    wrong = GOOD.replace("!=", "==")
    cheat = "<thought>x</thought><answer>import sys; sys.exit(0)</answer>"
    assert pay("tests", [GOOD, wrong, TASK.code, cheat, ""], sandbox) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_strict_format_pays_over_many_lines_and_not_for_text_after_the_end(sandbox):
    assert pay("strict_format", [GOOD, f"{GOOD}\nHope this helps!", TASK.code], sandbox) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", sorted(rewards.REGISTRY))
def test_a_chat_message_earns_what_the_same_string_earns(name, sandbox):
    assert pay(name, [[{"role": "assistant", "content": GOOD}], GOOD], sandbox) == [1.0, 1.0]


def test_a_fault_of_the_sandbox_is_raised_and_never_scored():
    class Broken:
        def check_many(self, checks):
            return [Verdict(status="infrastructure") for _ in checks]

    for name in ("tests", "runs"):
        with pytest.raises(rewards.SandboxFault, match="run the same command again"):
            pay(name, [GOOD], Broken())


def test_an_unknown_reward_is_refused_by_name(sandbox):
    with pytest.raises(ValueError, match="'tets'"):
        rewards.build({"tets": 1.0}, TAGS, sandbox)


def test_runs_pays_for_code_that_answers_every_assert_right_or_wrong(sandbox):
    wrong_value = GOOD.replace("!=", "==")
    wrong_name = GOOD.replace("def remove_value", "def remove")
    syntax = GOOD.replace("return", "retrun")
    assert pay("runs", [GOOD, wrong_value, wrong_name, syntax, ""], sandbox) == [1.0, 1.0, 0.0, 0.0, 0.0]

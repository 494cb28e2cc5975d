"""Rewards for the shape of a completion: its tagged sections, whatever stands in them.

Most of the published ones are regular expressions, and the usual mistake is `re.match` without `re.DOTALL`: its dot
stops at the first line break, so the reward never pays for an answer of more than one line. These search for the tags.
"""

from collections.abc import Sequence
from typing import Any

from grpo_utils.extractors import follows_format

from .registry import NOTHING, TAGS, Completion, reward, texts

SHAPE = {**NOTHING, "format_only": 1.0, "wrong": 1.0}


@reward(0.0, 1.0, SHAPE)
def strict_format(
    completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any
) -> list[float | None]:
    """1 when the completion is its tagged sections in order and nothing else, over any number of lines, else 0.

    open-r1's `format_reward` (tags think and answer) also wants a line break inside of every tag, and pays for tags
    that occur more than once.

    Example:
        >>> strict_format(["<thought>a</thought>\\n<answer>c</answer>", "<thought>a</thought><answer>c</answer> Bye"])
        [1.0, 0.0]
    """
    return [float(follows_format(text, tags)) for text in texts(completions)]


@reward(0.0, 1.0, SHAPE)
def soft_format(completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any) -> list[float | None]:
    """1 when the tagged sections occur in order, each closed, with any text before, between and after them, else 0.

    The `soft_format_reward_func` of the GSM8K walkthroughs wants the first section at the very start.

    Example:
        >>> soft_format(["Well: <thought>a</thought>, so\\n<answer>c</answer> Bye", "<thought>a<answer>c</answer>"])
        [1.0, 0.0]
    """
    return [float(_in_order(text, tags)) for text in texts(completions)]


def _in_order(text: str, tags: Sequence[str]) -> bool:
    position = 0
    for tag in tags:
        for mark in (f"<{tag}>", f"</{tag}>"):
            position = text.find(mark, position)
            if position < 0:
                return False
    return True


@reward(0.0, 1.0, {**SHAPE, "truncated": (0.0, 0.75)})
def tag_count(completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any) -> list[float | None]:
    """Partial credit: an equal share for each opening and closing tag that occurs exactly once, less one thousandth
    for each character after the last closing tag, but never below 0.

    After Will Brown's `xmlcount_reward_func` (0.125 for each of four tags), whose penalty has no floor and, where a
    line break is missing around `</answer>`, counts the whole text. open-r1's `tag_count_reward` has no penalty and
    wants line breaks around the tags.

    Example:
        >>> tag_count(["<thought>a</thought><answer>c</answer>", "<thought>a</thought>", "<answer></answer>" + "!" * 100])
        [1.0, 0.5, 0.4]
    """
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
    rewards: list[float | None] = []
    for text in texts(completions):
        share = sum(text.count(mark) == 1 for mark in marks) / len(marks)
        _, closed, rest = text.rpartition(marks[-1])
        rewards.append(max(0.0, share - len(rest.strip()) / 1000 if closed else share))
    return rewards


@reward(0.0, 1.0, {"empty": 0.0, "echo": 0.0})
def think_format(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
    """1 when the completion begins with `<think>`, has no second one, and closes it, else 0.

    The same as TRL's `think_format_reward`; that one takes chats only.

    Example:
        >>> think_format(["<think>\\nsix times seven\\n</think>\\n42", "<think>six times seven 42", "42"])
        [1.0, 0.0, 0.0]
    """
    return [
        float(text.startswith("<think>") and text.count("<think>") == 1 and "</think>" in text)
        for text in texts(completions)
    ]

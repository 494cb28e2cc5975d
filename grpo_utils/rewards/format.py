"""Rewards for the shape of a completion: its tagged sections, whatever stands in them."""

from collections.abc import Sequence
from typing import Any

from grpo_utils.extractors import follows_format

from .registry import NOTHING, TAGS, Completion, reward, texts

SHAPE = {**NOTHING, "format_only": 1.0, "wrong": 1.0}


@reward(0.0, 1.0, SHAPE)
def strict_format(
    completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any
) -> list[float | None]:
    """1 when the completion is its tagged sections in order and nothing else, over any number of lines, else 0."""
    return [float(follows_format(text, tags)) for text in texts(completions)]


@reward(0.0, 1.0, SHAPE)
def soft_format(completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any) -> list[float | None]:
    """1 when the tagged sections occur in order, each closed, with any text before, between and after them, else 0.

    Example:
        >>> soft_format(["Well: <thought>a</thought>, so\\n<answer>c</answer> Bye", "<thought>a<answer>c</answer>"])
        [1.0, 0.0]
    """
    return [float(_in_order(text, _marks(tags))) for text in texts(completions)]


def _marks(tags: Sequence[str]) -> list[str]:
    return [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]


def _in_order(text: str, marks: Sequence[str]) -> bool:
    position = 0
    for mark in marks:
        position = text.find(mark, position)
        if position < 0:
            return False
    return True


@reward(0.0, 1.0, {**SHAPE, "truncated": (0.0, 0.75)})
def tag_count(completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any) -> list[float | None]:
    """Partial credit: an equal share for each opening and closing tag that occurs exactly once, less one thousandth
    for each character after the last closing tag, but never below 0.

    After Will Brown's `xmlcount_reward_func`, whose penalty has no floor.

    Example:
        >>> tag_count(["<thought>a</thought><answer>c</answer>", "<thought>a</thought>", "<answer></answer>" + 9 * "!"])
        [1.0, 0.5, 0.491]
    """
    marks = _marks(tags)
    rewards: list[float | None] = []
    for text in texts(completions):
        share = sum(text.count(mark) == 1 for mark in marks) / len(marks)
        _, closed, rest = text.rpartition(marks[-1])
        rewards.append(max(0.0, share - len(rest.strip()) / 1000 if closed else share))
    return rewards


@reward(0.0, 1.0, {"empty": 0.0, "echo": 0.0})
def think_format(completions: Sequence[Completion], **columns: Any) -> list[float | None]:
    """TRL's `think_format_reward`, for strings too: 1 when the completion begins with `<think>`, has no second one, and
    closes it, else 0.
    """
    from trl.rewards.format_rewards import think_format_reward

    return [*think_format_reward([[{"content": text}] for text in texts(completions)])]

"""Rewards for answers that are a number, read from the last tag and compared with the column `answer`.

Numbers alone are compared, exactly; algebra (`x^2 + 1`) is beyond them.
"""

import math
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from grpo_utils.extractors import extract_hash_answer, extract_tag
from grpo_utils.tasks import matches

from .registry import NOTHING, TAGS, Completion, column, reward, texts

INTEGER = re.compile(r"[+-]?[0-9]+|[+-]?[0-9]{1,3}(?:,[0-9]{3})+")


def _compare(
    completions: Sequence[Completion],
    golds: Sequence[object],
    tag: str,
    equal: Callable[[Fraction, Fraction], bool] = operator.eq,
) -> list[float | None]:
    """1 or 0 for each pair of the number in the tag and the gold number; None where the gold answer has no number."""
    rows = zip(texts(completions), golds, strict=True)
    found = [matches(extract_tag(text, tag), gold, equal) for text, gold in rows]
    return [None if right is None else float(right) for right in found]


@reward(0.0, 1.0, NOTHING)
def hard_correctness(
    completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any
) -> list[float | None]:
    """1 when the last tag holds the gold answer to the letter and nothing else but white space, else 0; None where
    there is no gold answer. Of a solution of GSM8K the answer is what follows `####`.
    """
    rows = zip(texts(completions), column(columns, "answer"), strict=True)
    golds = [
        (text, gold if gold is None else extract_hash_answer(str(gold)) or str(gold).strip()) for text, gold in rows
    ]
    return [None if gold is None else float(extract_tag(text, tags[-1]) == gold) for text, gold in golds]


@reward(0.0, 1.0, NOTHING)
def soft_correctness(
    completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any
) -> list[float | None]:
    """1 when the final number in the last tag equals the gold number exactly, however either is written, else 0.

    None where the gold answer has no number, as in TRL's `accuracy_reward`.

    Example:
        >>> texts = ["<answer>$42.00</answer>", "<answer>6 * 7 = 42 eggs.</answer>", "<answer>-42</answer>"]
        >>> soft_correctness(texts, answer=["42"] * 3)
        [1.0, 1.0, 0.0]
    """
    return _compare(completions, column(columns, "answer"), tags[-1])


@reward(0.0, 1.0, NOTHING)
def numeric(
    completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, tolerance: float = 1e-4, **columns: Any
) -> list[float | None]:
    """1 when the final number in the last tag is the gold number up to a share of it, else 0.

    For measured or rounded answers. Where answers are large integers, 10,001 is not 10,000: take `soft_correctness`.
    `tolerance` is a share of the larger number; near 0 also the largest difference itself.
    """

    def close(number: Fraction, gold: Fraction) -> bool:
        return math.isclose(number, gold, rel_tol=tolerance, abs_tol=tolerance)

    return _compare(completions, column(columns, "answer"), tags[-1], close)


@reward(0.0, 1.0, {**NOTHING, "wrong": 1.0})
def integer(completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any) -> list[float | None]:
    """1 when the last tag holds an integer and nothing else but white space, right or wrong, else 0.

    Only for data whose answers are integers, as GSM8K's.

    Example:
        >>> integer(["<answer>-1,234</answer>", "<answer>42 eggs</answer>", "42"])
        [1.0, 0.0, 0.0]
    """
    return [float(INTEGER.fullmatch(extract_tag(text, tags[-1]) or "") is not None) for text in texts(completions)]

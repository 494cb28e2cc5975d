"""Arithmetic problems from the generators of `reasoning-gym`: maths without a hub, the same on every machine.

(Stojanovski et al. 2025, arXiv 2505.24760; Apache-2.0.) Its `chain_sum` makes sums such as "4 - 17 + 2"; the worked
solution, one step a line, is added here. Each grade has more terms or more digits than the one below, so that a small
policy finds both what it can and what it cannot do.
"""

import re
from functools import cache
from typing import Any

from .task import DataError

NAME = "reasoning-gym"
SIZES = {"prompt": 8, "train": 352, "validation": 80, "test": 180}
GRADES = ((2, 1), (2, 2), (3, 1), (4, 1))  # terms and digits
SEED = 20260101


def rows(split: str) -> list[dict[str, Any]]:
    """Returns one split as rows of GSM8K's schema; no two splits share a problem, nor the same terms in another order.

    Raises:
        DataError: the package is not installed.

    Example:
    ```python
    >>> row = rows("train")[2]
    >>> print(row["question"], row["answer"], sep="\\n")
    State the final answer to the following arithmetic problem: 6 - 6 - 2 =
    6 - 6 = 0
    0 - 2 = -2
    #### -2

    ```
    """
    start = 0
    for name, size in SIZES.items():
        if name == split:
            return _problems()[start : start + size]
        start += size
    raise DataError(f"{NAME} has no split {split!r}; splits: {', '.join(SIZES)}.")


@cache
def _problems() -> list[dict[str, Any]]:
    """All splits in a row; the grades take turns."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError(f"{NAME} comes with a package: `pip install reasoning-gym==0.1.25`.") from error
    total = sum(SIZES.values())
    seen: set[tuple[str, ...]] = set()
    by_grade: list[list[dict[str, Any]]] = []
    for grade, (terms, digits) in enumerate(GRADES, start=1):
        sizes = {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}
        found = reasoning_gym.create_dataset("chain_sum", seed=SEED + grade, size=4 * total, **sizes)
        by_grade.append([])
        for problem in found:
            signed = re.findall(r"[+-]?\d+", problem["metadata"]["expression"].replace(" ", ""))
            key = tuple(sorted(term.lstrip("+") for term in signed))
            if key not in seen:
                seen.add(key)
                answer = "\n".join([*_steps([int(term) for term in signed]), f"#### {problem['answer']}"])
                by_grade[-1].append({"question": problem["question"], "answer": answer, "grade": grade})
    together = [problem for turn in zip(*by_grade, strict=False) for problem in turn]
    return [{"task_id": i, **problem} for i, problem in enumerate(together[:total])]


def _steps(terms: list[int]) -> list[str]:
    """The sum worked out from left to right, one step a line."""
    lines, value = [], terms[0]
    for term in terms[1:]:
        lines.append(f"{value} {'-' if term < 0 else '+'} {abs(term)} = {value + term}")
        value += term
    return lines

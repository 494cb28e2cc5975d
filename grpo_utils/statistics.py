"""Uncertainty for every number: pass@k, intervals and paired tests, on top of scipy.

Rows are tasks, never single completions: the completions of one task are not independent of each other, so an
interval over completions would be too narrow (Miller 2024, arXiv 2411.00640).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k completions passes, estimated without bias from c passes among n.

    Chen et al. 2021, arXiv 2107.03374: 1 - C(n - c, k) / C(n, k).

    Raises:
        ValueError: k is not between 1 and n, or c not between 0 and n.

    Example:
    ```python
    >>> pass_at_k(n=4, c=1, k=2)
    0.5

    ```
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, not n={n}, c={c}, k={k}.")
    return 1.0 - comb(n - c, k) / comb(n, k)


def bootstrap_mean(per_task: Sequence[float]) -> Interval:
    """Mean over tasks with a 95 % percentile bootstrap interval that resamples tasks (10,000 times, fixed seed).

    For a paired comparison give the per-task differences. When all values are equal the interval is that value.

    Example:
    ```python
    >>> str(bootstrap_mean([0.0, 1.0, 1.0, 1.0]))
    '0.750 [0.250, 1.000]'

    ```
    """
    values = np.asarray(per_task, dtype=float)
    mean = float(values.mean())
    if values.min() == values.max():
        return Interval(mean, mean, mean)
    result = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0))
    return Interval(mean, float(result.confidence_interval.low), float(result.confidence_interval.high))


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Two-sided exact p-value that two graders of the same tasks differ: a sign test on the tasks that changed.

    McNemar 1947, in its exact binomial form. 1.0 when no task changed.

    Example:
    ```python
    >>> mcnemar([False] * 8, [True] * 8)
    0.0078125

    ```
    """
    gained = sum(b < a for b, a in zip(before, after, strict=True))
    lost = sum(b > a for b, a in zip(before, after, strict=True))
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def wilson(successes: int, n: int) -> Interval:
    """A proportion with its 95 % Wilson score interval (Wilson 1927).

    Example:
    ```python
    >>> str(wilson(280, 500))
    '0.560 [0.516, 0.603]'

    ```
    """
    bounds = stats.binomtest(successes, n).proportion_ci(method="wilson")
    return Interval(successes / n, float(bounds.low), float(bounds.high))

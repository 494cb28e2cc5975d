"""Uncertainty for every number: pass@k, intervals and paired tests, on top of scipy.

Rows are tasks, never single completions: those of one task are not independent, so an interval over completions would
be too narrow (Miller 2024, arXiv 2411.00640). Every function is checked against a simulation, quickly in the tests and
with the exact rates in `benchmarks/intervals.py`. None corrects for questions that were tried and not reported.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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

    def in_points(self) -> str:
        """Returns a difference of shares in percentage points.

        Example:
            >>> Interval(0.031, -0.006, 0.067).in_points()
            '+3.1 [-0.6, +6.7]'
        """
        return f"{100 * self.value:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k completions passes, estimated without bias from c passes among n.

    Chen et al. 2021, arXiv 2107.03374: 1 - C(n - c, k) / C(n, k).

    Raises:
        ValueError: k is not between 1 and n, or c not between 0 and n.

    Example:
        >>> pass_at_k(n=4, c=1, k=2)
        0.5
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, not n={n}, c={c}, k={k}.")
    return 1.0 - comb(n - c, k) / comb(n, k)


def bootstrap_mean(per_task: Sequence[float]) -> Interval:
    """Mean over tasks with a 95 % percentile bootstrap interval that resamples tasks (10,000 times, fixed seed).

    For a paired comparison give the per-task differences. When all values are equal the interval is that value.

    Raises:
        ValueError: there is no task.

    Example:
        >>> str(bootstrap_mean([0.0, 1.0, 1.0, 1.0]))
        '0.750 [0.250, 1.000]'
    """
    values = np.asarray(per_task, dtype=float)
    if not values.size:
        raise ValueError("bootstrap_mean needs at least one task.")
    mean = float(values.mean())
    if values.min() == values.max():
        return Interval(mean, mean, mean)
    result = stats.bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0))
    return Interval(mean, float(result.confidence_interval.low), float(result.confidence_interval.high))


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Two-sided exact p-value that two graders of the same tasks differ: a sign test on the tasks that changed.

    McNemar 1947, in its exact binomial form. 1.0 when no task changed.

    Raises:
        ValueError: the two are not of the same length.

    Example:
        >>> mcnemar([False] * 8, [True] * 8)
        0.0078125
    """
    gained = sum(b < a for b, a in zip(before, after, strict=True))
    lost = sum(b > a for b, a in zip(before, after, strict=True))
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def wilson(successes: int, n: int) -> Interval:
    """A proportion with its 95 % Wilson score interval (Wilson 1927).

    Example:
        >>> str(wilson(280, 500))
        '0.560 [0.516, 0.603]'
    """
    bounds = stats.binomtest(successes, n).proportion_ci(method="wilson")
    return Interval(successes / n, float(bounds.low), float(bounds.high))


def minimum_detectable_difference(tasks: int, deviation: float, power: float = 0.8) -> float:
    """Returns the smallest true difference that a two-sided paired test at 5 % finds with probability `power`.

    Miller 2024, arXiv 2411.00640, section 5, turned round: (z_0.975 + z_power) deviation / sqrt(tasks). It is for a
    test on the mean difference; McNemar's exact test is discrete and needs a little more. `deviation` is the standard
    deviation of the per-task differences: for greedy completions at most the root of the share of tasks on which the
    two policies disagree.

    Raises:
        ValueError: there is no task, or `power` is not between 0 and 1.

    Example: two policies that disagree on one task in ten of 500:
    >>> round(minimum_detectable_difference(500, 0.1**0.5), 3)
    0.04
    """
    if tasks < 1 or not 0 < power < 1:
        raise ValueError(f"A detectable difference needs tasks >= 1 and 0 < power < 1, not {tasks} and {power}.")
    return float((stats.norm.ppf(0.975) + stats.norm.ppf(power)) * deviation / tasks**0.5)


@dataclass(frozen=True)
class Best:
    """The best of several checkpoints against the base, corrected for the choice.

    Attributes:
        index: which checkpoint has the highest mean; the first when several do.
        difference: its mean difference to the base. The interval covers the truth for whichever checkpoint is chosen.
        p_value: two-sided, that no checkpoint differs from the base; it agrees with the interval. As the best is rarely
            the worse, it is below 0.05 less often than that.
    """

    index: int
    difference: Interval
    p_value: float


def best_of(differences: Sequence[Sequence[float]]) -> Best:
    """Compares the best of several checkpoints with the base on the very tasks that it was chosen on.

    The largest of N noisy means lies above the base even when no checkpoint does. White 2000, "A Reality Check for Data
    Snooping", Econometrica 68, compares it with the largest of N means under no difference: tasks are resampled for all
    checkpoints together (10,000 times, fixed seed), so that what these have in common stays in. A choice on validation
    and one reading of test need no correction and see smaller differences.

    `differences` are checkpoint - base for every checkpoint (row) and task (column).

    Raises:
        ValueError: there is no checkpoint or no task.

    Example:
        >>> best = best_of([[0, 1, 0, 0] * 25, [1, 0, 1, -1] * 25])
        >>> best.index, str(best.difference), round(best.p_value, 3)
        (0, '0.250 [0.090, 0.410]', 0.002)
    """
    table = np.asarray(differences, dtype=float)
    if table.ndim != 2 or not table.size:
        raise ValueError("best_of needs at least one checkpoint and one task: a row of differences per checkpoint.")
    means = table.mean(axis=1)
    index = int(means.argmax())
    shifts = _resampling_weights(table.shape[1]) @ (table - means[:, None]).T
    largest = np.abs(shifts).max(axis=1)
    mean, reach = float(means[index]), float(np.quantile(largest, 0.95))
    as_large = int((largest >= abs(mean) - 1e-12).sum())
    p_value = (as_large + 1) / (len(largest) + 1)  # the observed table is one of the possible ones
    return Best(index, Interval(mean, mean - reach, mean + reach), p_value)


@lru_cache(maxsize=1)
def _resampling_weights(tasks: int) -> np.ndarray:
    """The share of each of 10,000 bootstrap samples that every task has: an array of 10,000 rows."""
    return np.random.default_rng(0).multinomial(tasks, np.full(tasks, 1 / tasks), size=10_000) / tasks


def across_seeds(differences: Sequence[Sequence[float]]) -> Interval:
    """Mean difference over training seeds and tasks, both random, with a 95 % interval.

    An interval over tasks says how these policies do on other tasks; this one says how another training does. Seeds and
    tasks are crossed random effects (Clark 1973, "The Language-as-Fixed-Effect Fallacy", Journal of Verbal Learning and
    Verbal Behavior 12). The t interval over tasks is widened by the variance between seeds that single tasks do not
    explain (from mean squares: Searle, Casella and McCulloch 1992, "Variance Components", chapter 4), and that part has
    one degree of freedom less than there are seeds. With three seeds that differ it is wide. `differences` are trained
    - base for every seed (row) and task (column).

    Raises:
        ValueError: there are fewer than three seeds (with two, the interval covers only 90 %) or fewer than two tasks.

    Example:
        >>> str(across_seeds([[0, 1, 0, 0] * 30, [0, 1, 1, -1] * 30, [1, 1, 0, 0] * 30]))
        '0.333 [-0.019, 0.685]'
    """
    table = np.asarray(differences, dtype=float)
    if table.ndim != 2 or table.shape[0] < 3 or table.shape[1] < 2:
        raise ValueError("across_seeds needs at least three seeds and two tasks: a row of differences per seed.")
    seeds, tasks = table.shape
    mean, by_seed, by_task = float(table.mean()), table.mean(axis=1), table.mean(axis=0)
    rest = ((table - by_seed[:, None] - by_task + mean) ** 2).sum() / ((seeds - 1) * (tasks - 1))
    between_seeds = max(0.0, by_seed.var(ddof=1) - rest / tasks)
    of_seeds = stats.t.ppf(0.975, seeds - 1) ** 2 * between_seeds / seeds
    of_tasks = stats.t.ppf(0.975, tasks - 1) ** 2 * by_task.var(ddof=1) / tasks
    reach = float((of_seeds + of_tasks) ** 0.5)
    return Interval(mean, mean - reach, mean + reach)


def groups_differ(outcomes: Sequence[float], groups: Sequence[Hashable], within: Sequence[Hashable] = ()) -> float:
    """p-value that groups of tasks have the same mean outcome, by permutation.

    Pitman 1938, "Significance tests which may be applied to samples from any populations III", Biometrika 29: outcomes
    are dealt to the tasks anew (10,000 times, fixed seed), and the variance between the groups' means is compared. For
    outcomes of 0 and 1 this is the chi-square test of independence without its approximation, which fails for small
    groups. It asks one question of all groups together.

    Args:
        outcomes: one number per task, such as 1.0 where the greedy completion passes.
        groups: the label of each task's group, such as its cluster.
        within: a second label, such as its difficulty: outcomes are dealt only among tasks that share it, so that a
            difference which it explains does not count.

    Raises:
        ValueError: the lists are not equally long or there is no task.

    Example: a group that fails more often, but only because its tasks are harder:
    >>> passed, group, hard = [1, 0, 1, 1, 0, 0] * 9, "aaabbb" * 9, [0, 1, 0, 0, 1, 1] * 9
    >>> groups_differ(passed, group) < 0.05, groups_differ(passed, group, within=hard)
    (True, 1.0)
    """
    if not len(outcomes) == len(groups) == len(within or groups) > 0:
        raise ValueError("groups_differ needs at least one task, and for each an outcome and its labels.")
    values, strata = np.asarray(outcomes, dtype=float), _codes(within or [0] * len(groups))
    values = values - (np.bincount(strata, values) / np.bincount(strata))[strata]
    member = np.eye(len(set(groups)))[_codes(groups)]
    rng, places = np.random.default_rng(0), np.argsort(strata, kind="stable")

    def between(dealt: np.ndarray) -> np.ndarray:
        return ((dealt @ member) ** 2 / member.sum(axis=0)).sum(axis=1)

    dealt = np.empty((10_000, len(values)))
    dealt[:, places] = values[np.argsort(strata + rng.random(dealt.shape), axis=1)]
    as_large = int((between(dealt) >= between(values[None])[0] - 1e-9).sum())
    return (as_large + 1) / (len(dealt) + 1)  # the observed deal is one of the possible ones


def _codes(labels: Sequence[Hashable]) -> np.ndarray:
    """Labels as integers from 0, in the order in which they first come."""
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    return np.array([codes[label] for label in labels])

"""Uncertainty for every number: pass@k, intervals and paired tests, on top of scipy.

Rows are tasks, never single completions: those of one task are not independent, so an interval over completions would
be too narrow (Miller 2024, arXiv 2411.00640). Every function is checked against a simulation, quickly in the tests and
with the exact rates in `benchmarks/intervals.py`. None corrects for questions that were tried and not reported.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Any

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


def pass_curve(passes: Sequence[int], samples: int, most: int | None = None) -> dict[int, Interval]:
    """Mean over tasks of pass@k with its 95 % interval, for k = 1, 2, 4 and so on up to `most`, or to `samples`.

    Args:
        passes: of every task, how many of its completions pass.
        samples: completions of a task.
        most: the largest k; default: `samples`.

    Raises:
        ValueError: there is no task, or see `pass_at_k`.

    Example: two tasks, one of which passes every fourth time:
    >>> {k: round(point.value, 2) for k, point in pass_curve([2, 0], samples=8).items()}
    {1: 0.12, 2: 0.23, 4: 0.39, 8: 0.5}
    """
    most = samples if most is None else most
    doubling = itertools.takewhile(lambda k: k < most, (2**i for i in itertools.count()))
    return {k: rate([pass_at_k(samples, c, k) for c in passes]) for k in (*doubling, most)}


def mixed_groups(passes: Sequence[int], samples: int, size: int) -> list[float]:
    """Probability for every task that a new group of `size` completions holds both passes and failures.

    A group of one kind alone has no spread in the reward for a right answer. To put c / n into 1 - p^G - (1 - p)^G
    takes luck for ability: tasks that were chosen for c > 0 had luck. So it is first estimated how the pass rates of
    all tasks are spread, whatever form that has (Laird 1978, "Nonparametric Maximum Likelihood Estimation of a Mixing
    Distribution", Journal of the American Statistical Association 73), and each task has the part of it that its own c
    agrees with: empirical Bayes.

    Args:
        passes: of every task that was measured, how many of its completions pass; not only of those that were chosen.
        samples: completions of a task, at least 1.
        size: completions of a group, at least 1.

    Raises:
        ValueError: there is no task, or a number is out of range.

    Example: of 100 tasks 80 never passed; a group of one that passed once in eight is mixed one time in five:
    >>> chances = mixed_groups([0] * 80 + [1] * 10 + [4] * 10, samples=8, size=8)
    >>> round(chances[0], 2), round(chances[85], 2), round(chances[95], 2)
    (0.1, 0.2, 0.99)
    """
    mixed, _ = _mixed_by_passes(_counted(passes, samples, size)[None], size)
    return mixed[0, list(passes)].tolist()


def mixed_share(passes: Sequence[int], samples: int, size: int, low: float = 0.0, high: float = 1.0) -> Interval:
    """Mean of `mixed_groups` over the tasks whose share of passes is from `low` to `high`, with its 95 % interval.

    The interval is of a parametric bootstrap: passes are drawn anew (500 times, fixed seed) from the spread of pass
    rates that was estimated, which is then estimated again. `benchmarks/intervals.py` has what it covers: less than
    95 % where tasks are of few kinds. Without such a task it is 0, from 0 to 1.

    Example:
        >>> str(mixed_share([0] * 80 + [1] * 10 + [4] * 10, samples=8, size=8, low=0.1))
        '0.596 [0.441, 0.849]'
    """
    counts = _counted(passes, samples, size)
    chosen = [low <= c / samples <= high for c in range(samples + 1)]
    if not counts[chosen].any():
        return Interval(0.0, 0.0, 1.0)
    mixed, expected = _mixed_by_passes(counts[None], size)
    drawn = np.random.default_rng(0).multinomial(counts.sum(), expected[0] / expected.sum(), size=500)
    drawn = drawn[drawn[:, chosen].any(axis=1)]
    again, _ = _mixed_by_passes(drawn, size)
    tables = (counts[None], mixed), (drawn, again)
    once, means = ((n * m)[:, chosen].sum(axis=1) / n[:, chosen].sum(axis=1) for n, m in tables)
    value, (lower, upper) = float(once[0]), np.quantile(means, [0.025, 0.975])
    return Interval(value, min(value, float(lower)), max(value, float(upper)))


def _counted(passes: Sequence[int], samples: int, size: int) -> np.ndarray:
    """How many tasks have 0, 1, ... `samples` passes."""
    if not len(passes):
        raise ValueError("A forecast of mixed groups needs at least one task.")
    if not (samples >= 1 and size >= 1 and min(passes) >= 0 and max(passes) <= samples):
        raise ValueError(
            f"A forecast of mixed groups needs samples >= 1, size >= 1 and from 0 to {samples} passes of a task, not "
            f"samples={samples}, size={size} and {min(passes)} to {max(passes)}."
        )
    return np.bincount(passes, minlength=samples + 1)


def _mixed_by_passes(counts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """For rows of counts, as of `_counted`: the chance of a mixed group by passes, and how likely each count is."""
    chances = np.linspace(0.0, 1.0, 101)
    samples = counts.shape[1] - 1
    likely = stats.binom.pmf(np.arange(samples + 1)[:, None], samples, chances)
    spread = np.full((len(counts), len(chances)), 1 / len(chances))

    def own(spread: np.ndarray) -> np.ndarray:
        """Of a task with so many passes: row, passes, chance."""
        parts = likely * spread[:, None]
        return parts / parts.sum(axis=2, keepdims=True)

    for _ in range(100):  # of the EM algorithm; more would fit chance
        spread = np.einsum("rc,rcp->rp", counts, own(spread)) / counts.sum(axis=1, keepdims=True)
    return own(spread) @ (1 - chances**size - (1 - chances) ** size), spread @ likely.T


def rate(per_task: Sequence[float]) -> Interval:
    """Mean over tasks of a share, such as each task's share of completions that pass, with its 95 % interval.

    Agresti and Coull 1998, "Approximate Is Better than 'Exact' for Interval Estimation of Binomial Proportions", The
    American Statistician 52: the interval is that of the data with two successes and two failures added. Here these are
    two tasks that are always solved and two that never are, so it serves several completions a task as well, and t
    takes the place of z. So 0 of n has an upper bound, where a bootstrap of equal values has no width.

    Raises:
        ValueError: there is no task, or a value is not between 0 and 1.

    Example:
        >>> str(rate([0.0] * 30)), str(rate([0.5, 1.0, 0.0, 0.25]))
        ('0.000 [0.000, 0.142]', '0.438 [0.075, 0.863]')
    """
    low, high, _ = _with_added(per_task, [0.0, 0.0, 1.0, 1.0])
    return Interval(float(np.mean(per_task)), low, high)


@dataclass(frozen=True)
class Difference(Interval):
    """A mean paired difference with its interval and the test that agrees with it.

    Attributes:
        p_value: two-sided, that the true difference is 0; below 0.05 where the interval leaves 0 out.
    """

    p_value: float

    @property
    def verdict(self) -> str:
        return verdict(self.value, self.p_value)


def difference(per_task: Sequence[float], largest: float = 1.0) -> Difference:
    """Mean over tasks of paired differences, with its 95 % interval and p-value.

    Bonett and Price 2012, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based on Paired
    Data", Journal of Educational and Behavioral Statistics 37: the interval is that of the data with one task added
    that was gained and one that was lost. As it is a mean over tasks, it serves several completions a task as well; t
    takes the place of z. No library has this case: scipy's `bootstrap` covers rare changes in 45 to 90 of 100 cases,
    and statsmodels 0.15 knows no paired difference. `benchmarks/intervals.py` has the rates.

    Args:
        per_task: after - before for every task.
        largest: what one task can differ by at most, so what the two added tasks do.

    Raises:
        ValueError: there is no task, or one differs by more than `largest`.

    Example: 8 tasks of 100 gained and 1 lost, and none of 30 changed:
    >>> change = difference([1.0] * 8 + [-1.0] + [0.0] * 91)
    >>> str(change), round(change.p_value, 3), change.verdict
    ('0.070 [0.005, 0.132]', 0.034, 'up')
    >>> str(difference([0.0] * 30)), difference([0.0] * 30).verdict
    ('0.000 [-0.092, 0.092]', 'undecided')
    """
    low, high, p_value = _with_added(per_task, [-largest, largest])
    return Difference(float(np.mean(per_task)), low, high, p_value)


def _with_added(per_task: Sequence[float], added: Sequence[float]) -> tuple[float, float, float]:
    """Bounds of the t interval over the tasks and those added, within their range, and the p-value of a mean of 0."""
    values = np.asarray([*per_task, *added], dtype=float)
    if not len(per_task):
        raise ValueError("An interval needs at least one task.")
    if not (values.min() >= min(added) and values.max() <= max(added)):
        wrong = next(value for value in values if not min(added) <= value <= max(added))
        raise ValueError(f"A task's value must be from {min(added):g} to {max(added):g}; here is one of {wrong:g}.")
    result: Any = stats.ttest_1samp(values, 0.0)  # scipy's stubs know neither its p-value nor its interval
    low, high = result.confidence_interval(0.95)
    return max(float(low), min(added)), min(float(high), max(added)), float(result.pvalue)


def verdict(value: float, p_value: float) -> str:
    """Returns what may be said of a difference: "up", "down", or "undecided" where the test does not tell it from 0."""
    return "undecided" if not p_value < 0.05 else "up" if value > 0 else "down"


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of several questions: with probability 0.95 no true 0 among them is called up or down.

    Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6: the
    smallest of m is multiplied by m, the next by m - 1, and so on, and none falls below the one before it.

    Example:
        >>> [round(p, 3) for p in holm([0.03, 0.001, 0.02])]
        [0.04, 0.003, 0.04]
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected.tolist()


def minimum_detectable_difference(tasks: int, deviation: float, power: float = 0.8) -> float:
    """Returns the smallest true difference that a two-sided paired test at 5 % finds with probability `power`.

    Miller 2024, arXiv 2411.00640, section 5, turned round: (z_0.975 + z_power) deviation / sqrt(tasks). `deviation` is
    the standard deviation of the per-task differences: for greedy completions at most the root of the share of tasks on
    which the two policies disagree.

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
    checkpoints together (10,000 times, fixed seed), so that what these have in common stays in. As in `difference`, one
    task that all gained and one that all lost are added. A choice on validation and one reading of test need no
    correction and see smaller differences.

    `differences` are checkpoint - base for every checkpoint (row) and task (column).

    Raises:
        ValueError: there is no checkpoint or no task, or one differs by more than 1.

    Example:
        >>> best = best_of([[0, 1, 0, 0] * 25, [1, 0, 1, -1] * 25])
        >>> best.index, str(best.difference), round(best.p_value, 3)
        (0, '0.250 [0.083, 0.417]', 0.002)
    """
    table = np.asarray(differences, dtype=float)
    if table.ndim != 2 or not table.size:
        raise ValueError("best_of needs at least one checkpoint and one task: a row of differences per checkpoint.")
    means = table.mean(axis=1)
    index = int(means.argmax())
    table = _with_a_task_gained_and_one_lost(table)
    shifts = _resampling_weights(table.shape[1]) @ (table - table.mean(axis=1, keepdims=True)).T
    largest = np.abs(shifts).max(axis=1)
    mean, reach = float(means[index]), float(np.quantile(largest, 0.95, method="higher"))
    as_large = int((largest >= abs(mean) - 1e-12).sum())
    p_value = (as_large + 1) / (len(largest) + 1)  # the observed table is one of the possible ones
    return Best(index, Interval(mean, max(-1.0, mean - reach), min(1.0, mean + reach)), p_value)


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
    one degree of freedom less than there are seeds. With three seeds that differ it is wide. As in `difference`, a task
    that was gained and one that was lost are added. `differences` are trained - base for every seed (row) and task
    (column).

    Raises:
        ValueError: there are fewer than three seeds (with two, the interval covers only 90 %) or fewer than two tasks,
            or one differs by more than 1.

    Example:
        >>> str(across_seeds([[0, 1, 0, 0] * 30, [0, 1, 1, -1] * 30, [1, 1, 0, 0] * 30]))
        '0.333 [-0.019, 0.675]'
    """
    table = np.asarray(differences, dtype=float)
    if table.ndim != 2 or table.shape[0] < 3 or table.shape[1] < 2:
        raise ValueError("across_seeds needs at least three seeds and two tasks: a row of differences per seed.")
    value, table = float(table.mean()), _with_a_task_gained_and_one_lost(table)
    seeds, tasks = table.shape
    mean, by_seed, by_task = float(table.mean()), table.mean(axis=1), table.mean(axis=0)
    rest = ((table - by_seed[:, None] - by_task + mean) ** 2).sum() / ((seeds - 1) * (tasks - 1))
    between_seeds = max(0.0, by_seed.var(ddof=1) - rest / tasks)
    of_seeds = stats.t.ppf(0.975, seeds - 1) ** 2 * between_seeds / seeds
    of_tasks = stats.t.ppf(0.975, tasks - 1) ** 2 * by_task.var(ddof=1) / tasks
    reach = float((of_seeds + of_tasks) ** 0.5)
    return Interval(value, max(-1.0, mean - reach), min(1.0, mean + reach))


def _with_a_task_gained_and_one_lost(table: np.ndarray) -> np.ndarray:
    if not (abs(table) <= 1).all():
        raise ValueError("A task's difference must be from -1 to 1.")
    return np.hstack([table, np.tile([1.0, -1.0], (len(table), 1))])


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
        ValueError: the lists are not equally long, there is no task, or an outcome is no number.

    Example: a group that fails more often, but only because its tasks are harder:
    >>> passed, group, hard = [1, 0, 1, 1, 0, 0] * 9, "aaabbb" * 9, [0, 1, 0, 0, 1, 1] * 9
    >>> groups_differ(passed, group) < 0.05, groups_differ(passed, group, within=hard)
    (True, 1.0)
    """
    values = np.asarray(outcomes, dtype=float)
    if not len(values) == len(groups) == len(within or groups) > 0 or not np.isfinite(values).all():
        raise ValueError("groups_differ needs at least one task, and for each an outcome, a number, and its labels.")
    strata = _codes(within or [0] * len(groups))
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

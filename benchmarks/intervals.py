"""Do the intervals and tests of `statistics` hold what they say? `python benchmarks/intervals.py`, about four minutes.

Every row has policies whose true difference is known, and says how often an interval covers it or a test finds it:
summed over all outcomes with their chances where that can be done, else over many draws. Seeded: the same command
prints the same tables. (Not `statistics.py`: a script of that name would hide the standard library's module from its
neighbours.)
"""

import argparse
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from scipy import special, stats

from grpo_utils.evaluation import (
    Interval,
    across_seeds,
    best_of,
    difference,
    groups_differ,
    minimum_detectable_difference,
    mixed_share,
    pass_curve,
    rate,
)

ROOT = Path(__file__).resolve().parents[1]
TASKS = (30, 60, 120, 500)
PROMISE = 0.93
DRAWS = 10_000
RESAMPLES = 1_000
CHECKPOINTS = 12
Rng = np.random.Generator
Bounds = tuple[np.ndarray, np.ndarray]
Method = Callable[[np.ndarray], Bounds]


# ------------------------------------------------------------------------------------------------------------- methods


def t_interval(table: np.ndarray, added: Sequence[float] = ()) -> Bounds:
    """The t interval of every row of values, within the range of the values that are added to each."""
    table = np.hstack([table, np.tile(np.asarray(added, dtype=float), (len(table), 1))])
    with warnings.catch_warnings(action="ignore"):  # of rows of equal values: their interval has no width
        low, high = stats.ttest_1samp(table, 0.0, axis=1).confidence_interval(0.95)
    return (np.maximum(low, min(added)), np.minimum(high, max(added))) if added else (low, high)


def bootstrap_interval(table: np.ndarray) -> Bounds:
    """The percentile bootstrap, as `scipy.stats.bootstrap` has it, with the same `RESAMPLES` samples for all rows."""
    low, high = np.quantile(table @ _weights(table.shape[1]), [0.025, 0.975], axis=1)
    return low, high


@lru_cache(maxsize=1)
def _weights(tasks: int) -> np.ndarray:
    return np.random.default_rng(0).multinomial(tasks, np.full(tasks, 1 / tasks), size=RESAMPLES).T / tasks


def wilson_interval(table: np.ndarray, completions: int = 1) -> Bounds:
    """Wilson's interval over single completions: for several of a task it takes them for tasks of their own."""
    passed, n = np.rint(table.sum(axis=1) * completions).astype(int), table.shape[1] * completions
    one = {k: stats.binomtest(k, n).proportion_ci(method="wilson") for k in np.unique(passed).tolist()}
    return np.array([one[k].low for k in passed.tolist()]), np.array([one[k].high for k in passed.tolist()])


PAIRED_METHODS: dict[str, Method] = {
    "`difference`": partial(t_interval, added=(-1.0, 1.0)),
    "t": t_interval,
    "bootstrap": bootstrap_interval,
}


def rate_methods(completions: int) -> dict[str, Method]:
    ours, wilson = partial(t_interval, added=(0.0, 0.0, 1.0, 1.0)), partial(wilson_interval, completions=completions)
    return {"`rate`": ours, "Wilson": wilson, "t": t_interval, "bootstrap": bootstrap_interval}


SINGLE_METHODS = rate_methods(1)


# ------------------------------------------------------------------------------------------------------------ coverage


@dataclass(frozen=True)
class Outcomes:
    """What may come of a question whose true answer is known.

    Attributes:
        truth: the true rate or difference.
        table: a value for every task (column), for every outcome (row).
        chances: of the outcomes; they add up to 1 but for less than 1 in 10^8.
    """

    truth: float
    table: np.ndarray
    chances: np.ndarray


@dataclass(frozen=True)
class Coverage:
    """How often each method covers the truth, and how wide its interval is on average (in points); ours comes first."""

    what: str
    tasks: int
    completions: int
    covered: dict[str, float]
    widths: dict[str, float] = field(default_factory=dict)

    @property
    def ours(self) -> float:
        return next(iter(self.covered.values()))

    def __str__(self) -> str:
        found = [_percent(share) for share in self.covered.values()]
        widths = [f"{self.widths[name]:.1f}" if self.widths else "" for name in self.covered]
        return _row([self.what, str(self.tasks), str(self.completions), *found, *widths])


def _percent(share: float) -> str:
    """A share, printed bold where it is below `PROMISE`."""
    return f"{100 * share:.1f}" if round(share, 3) >= PROMISE else f"**{100 * share:.1f}**"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def covering(truth: float | np.ndarray, bounds: Bounds) -> np.ndarray:
    """Which intervals hold the truth; a bound that equals it, but for rounding, does."""
    return (bounds[0] <= truth + 1e-9) & (truth - 1e-9 <= bounds[1])


def coverage(what: str, completions: int, outcomes: Outcomes, methods: dict[str, Method]) -> Coverage:
    """Intervals of all outcomes by all methods; on some of them ours are compared with the function itself."""
    found = {name: method(outcomes.table) for name, method in methods.items()}
    low, high = next(iter(found.values()))
    function = difference if "`difference`" in methods else rate
    for i in range(0, len(low), len(low) // 5 + 1):
        one = function(outcomes.table[i].tolist())
        np.testing.assert_allclose([low[i], high[i]], [one.low, one.high], atol=1e-9)
    covered = {name: float(covering(outcomes.truth, bounds) @ outcomes.chances) for name, bounds in found.items()}
    widths = {name: 100 * float((high - low) @ outcomes.chances) for name, (low, high) in found.items()}
    return Coverage(what, outcomes.table.shape[1], completions, covered, widths)


def likely(tasks: int, share: float) -> np.ndarray:
    """Every number of tasks that a share of them may be, but for 1 in 10^9 at either end."""
    low, high = stats.binom.ppf([1e-9, 1 - 1e-9], tasks, share).astype(int)
    return np.arange(max(low, 0), high + 1)


def all_paired(tasks: int, gained: float, lost: float) -> Outcomes:
    """One completion of a task by each of two policies: tasks are gained and lost with these chances."""
    up, down = (one.ravel() for one in np.meshgrid(likely(tasks, gained), likely(tasks, lost)))
    up, down = up[up + down <= tasks], down[up + down <= tasks]
    chances = stats.multinomial.pmf(np.stack([up, down, tasks - up - down], axis=1), tasks, _shares(gained, lost))
    place = np.arange(tasks)
    table = (place < up[:, None]).astype(float) - (place >= tasks - down[:, None])
    return Outcomes(gained - lost, table, chances)


def _shares(gained: float, lost: float) -> list[float]:
    return [gained, lost, 1 - gained - lost]


def all_single(tasks: int, share: float) -> Outcomes:
    """One completion of a task by one policy, which solves this share of all tasks."""
    solved = likely(tasks, share)
    table = (np.arange(tasks) < solved[:, None]).astype(float)
    return Outcomes(share, table, stats.binom.pmf(solved, tasks, share))


@dataclass(frozen=True)
class Change:
    """How the chances of solving tasks change; the mean of the change is known for every distribution of chances.

    Attributes:
        gained: share of tasks whose chance rises by 80 % of what it lacks to 1.
        lost: share of tasks whose chance falls by 80 %.
        shift: the chance of all others rises by this share of what it lacks to 1.
        base: parameters of the beta distribution of the chances before. By default its mean is 25 %, half of the tasks
            pass at most 7 times in 100, and one in ten passes at least 84 times.
    """

    gained: float = 0.0
    lost: float = 0.0
    shift: float = 0.0
    base: tuple[float, float] = (0.2, 0.6)

    @property
    def truth(self) -> float:
        mean = self.base[0] / sum(self.base)
        return (0.8 * self.gained + self.shift * (1 - self.gained - self.lost)) * (1 - mean) - 0.8 * self.lost * mean

    def draw(self, rng: Rng, completions: int, shape: tuple[int, int]) -> np.ndarray:
        """Differences between the shares that pass before and after, of this many completions by each policy."""
        before, kind = rng.beta(*self.base, size=shape), rng.random(shape)
        after = before + np.where(kind < self.gained, 0.8, self.shift) * (1 - before)
        after = np.where((self.gained <= kind) & (kind < self.gained + self.lost), 0.2 * before, after)
        return (rng.binomial(completions, after) - rng.binomial(completions, before)) / completions


def drawn(truth: float, table: np.ndarray) -> Outcomes:
    return Outcomes(truth, table, np.full(len(table), 1 / len(table)))


PAIRED = ((0.02, 0.0), (0.05, 0.02), (0.005, 0.005), (0.1, 0.05), (0.3, 0.1))
RATES = (0.005, 0.02, 0.05, 0.3, 0.56)
CHANGES = {
    "none changed": Change(),
    **{f"{100 * up:g} % gained, {100 * down:g} % lost": Change(up, down) for up, down in PAIRED},
    "2 % gained of tasks that almost never pass": Change(0.02, base=(0.02, 0.98)),
    "all gain a little": Change(shift=0.05),
}


def paired_exactly(methods: dict[str, Method] = PAIRED_METHODS) -> Iterator[Coverage]:
    for (gained, lost), tasks in itertools.product(PAIRED, TASKS):
        what = f"{100 * gained:g} % gained, {100 * lost:g} % lost"
        yield coverage(what, 1, all_paired(tasks, gained, lost), methods)


def rates_exactly(methods: dict[str, Method] = SINGLE_METHODS) -> Iterator[Coverage]:
    for share, tasks in itertools.product(RATES, TASKS):
        yield coverage(f"{100 * share:g} %", 1, all_single(tasks, share), methods)


def worst(what: str, methods: dict[str, Method]) -> Iterator[Coverage]:
    """The least that each method covers shares of 0.1 to 99.9 %, in steps of 0.1: shares gained, or rates."""
    shares = np.arange(1, 1000) / 1000
    for tasks in TASKS:
        number = np.arange(tasks + 1)
        table, chances = (np.arange(tasks) < number[:, None]) * 1.0, stats.binom.pmf(number, tasks, shares[:, None])
        held = {name: covering(shares[:, None], method(table)) for name, method in methods.items()}
        yield Coverage(what, tasks, 1, {name: float((chances * one).sum(axis=1).min()) for name, one in held.items()})


def paired_by_draws(rng: Rng, completions: int, draws: int = DRAWS) -> Iterator[Coverage]:
    for (what, change), tasks in itertools.product(CHANGES.items(), TASKS):
        outcomes = drawn(change.truth, change.draw(rng, completions, (draws, tasks)))
        yield coverage(what, completions, outcomes, PAIRED_METHODS)


def rates_by_draws(rng: Rng, completions: int, draws: int = DRAWS) -> Iterator[Coverage]:
    """Tasks' chances are U-shaped about the rate: beta distributions whose parameters add up to 0.9."""
    for share, tasks in itertools.product(RATES, TASKS):
        chances = rng.beta(0.9 * share, 0.9 * (1 - share), size=(draws, tasks))
        outcomes = drawn(share, rng.binomial(completions, chances) / completions)
        yield coverage(f"{100 * share:g} %", completions, outcomes, rate_methods(completions))


# -------------------------------------------------------------------------------------------------------- false alarms

PValue = Callable[[int, int, int], float]


def by_difference(gained: int, lost: int, tasks: int) -> float:
    return difference([1.0] * gained + [-1.0] * lost + [0.0] * (tasks - gained - lost)).p_value


def by_mcnemar(gained: int, lost: int, _: int) -> float:
    """McNemar's exact test: were the tasks that changed gained by the toss of a coin?"""
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def most_lost(tasks: int, p_value: PValue) -> list[int]:
    """For every number of changed tasks, with how many lost a gain is still found (-1: with none).

    It never falls: one more gain among as many losses only lowers the p-value.
    """
    found, most = [], -1
    for changed in range(tasks + 1):
        while 2 * (most + 1) < changed and p_value(changed - most - 1, most + 1, tasks) < 0.05:
            most += 1
        found.append(most)
    return found


@dataclass(frozen=True)
class FalseAlarms:
    """Exact chances to call equal policies different, at the worst of many shares of changed tasks.

    Attributes:
        tasks: their number.
        difference: the chance of `difference`.
        mcnemar: the chance of McNemar's exact test.
        apart: the chance that one of the two finds a difference and the other does not.
    """

    tasks: int
    difference: float
    mcnemar: float
    apart: float

    def __str__(self) -> str:
        return _row([str(self.tasks), *(f"{100 * each:.2f}" for each in (self.difference, self.mcnemar, self.apart))])


def false_alarms(tasks: int) -> FalseAlarms:
    """As many tasks are gained as lost, from 0.5 to 50 % of all in steps of 0.5 %."""
    changed = np.arange(tasks + 1)
    ours, mcnemar = (
        2 * stats.binom.cdf(most_lost(tasks, p_value), changed, 0.5) for p_value in (by_difference, by_mcnemar)
    )
    chances = stats.binom.pmf(changed, tasks, np.arange(1, 101)[:, None] / 100)
    return FalseAlarms(tasks, *(float((chances @ each).max()) for each in (ours, mcnemar, abs(ours - mcnemar))))


# ---------------------------------------------------------------------------------------------------------- other rows


@dataclass(frozen=True)
class Rate:
    """How often something happened.

    Attributes:
        what: what was counted.
        promise: what the rate should be, in words; "naive" for a method that the table warns of.
        rate: between 0 and 1.
        repeats: how many draws it is the mean of.
    """

    what: str
    promise: str
    rate: float
    repeats: int

    def __str__(self) -> str:
        sure = stats.binomtest(round(self.rate * self.repeats), self.repeats).proportion_ci(method="wilson")
        found = f"{100 * self.rate:.1f} % [{100 * sure.low:.1f}, {100 * sure.high:.1f}]"
        return _row([self.what, self.promise, found, f"{self.repeats:,}"])


@dataclass(frozen=True)
class Bias:
    """How far a forecast is off on average, over `repeats` draws."""

    what: str
    promise: str
    off: Interval
    repeats: int

    def __str__(self) -> str:
        return _row([self.what, self.promise, f"{self.off.in_points()} points", f"{self.repeats:,}"])


def rates(rng: Rng, repeats: int, draw: Callable[[Rng], list[bool]]) -> np.ndarray:
    """How often each of the events that `draw` reports happened."""
    return np.mean([draw(rng) for _ in range(repeats)], axis=0)


def difficulties(rng: Rng, tasks: int) -> np.ndarray:
    """Chance of solving each task: most tasks are easy or hard, as in MBPP; the mean is 0.56."""
    return rng.beta(0.5, 0.4, size=tasks)


def pass_at_eight(rng: Rng, repeats: int) -> Iterator[Rate]:
    """The band of pass@k at k = 8, from 32 completions of each of 60 tasks; chances are those of `Change.base`."""
    alpha, beta = Change.base
    truth = 1 - special.beta(alpha, beta + 8) / special.beta(alpha, beta)

    def draw(rng: Rng) -> list[bool]:
        passes = rng.binomial(32, rng.beta(alpha, beta, size=60))
        band = pass_curve(passes.tolist(), samples=32, most=8)[8]
        return [band.low <= truth <= band.high]

    found = rates(rng, repeats, draw)
    yield Rate("`pass_curve` covers pass@8, 60 tasks of 32 completions", "93 % or more", found[0], repeats)


def forecasts(
    rng: Rng, repeats: int, where: str, promise: str, covers: str, chances: Callable[[Rng], np.ndarray]
) -> Iterator[Bias | Rate]:
    """Is a new group of eight mixed? For those of 160 tasks that passed in some, but not all, of eight completions."""
    apart, covered = np.empty((repeats, 2)), np.empty(repeats)
    for i in range(repeats):
        chance = chances(rng)
        passes = rng.binomial(8, chance)
        chosen = (passes > 0) & (passes < 8)
        share = passes[chosen] / 8
        truth = (1 - chance**8 - (1 - chance) ** 8)[chosen].mean()
        forecast = mixed_share(passes.tolist(), 8, 8, low=1 / 8, high=7 / 8)
        apart[i] = forecast.value - truth, (1 - share**8 - (1 - share) ** 8).mean() - truth
        covered[i] = forecast.low <= truth <= forecast.high
    low, high = t_interval(apart.T)
    chosen_so = f"for tasks chosen by their pass rate, {where}"
    for i, (name, says) in enumerate((("`mixed_share`", promise), ("1 - p^8 - (1 - p)^8", "naive"))):
        off = Interval(float(apart[:, i].mean()), float(low[i]), float(high[i]))
        yield Bias(f"{name} minus truth, {chosen_so}", says, off, repeats)
    yield Rate(f"`mixed_share` covers the truth, {chosen_so}", covers, covered.mean(), repeats)


def spread_chances(rng: Rng) -> np.ndarray:
    return rng.beta(*Change.base, size=160)


def chances_of_two_kinds(rng: Rng) -> np.ndarray:
    """No beta distribution: most tasks are never solved, and the others one time in three."""
    return np.where(rng.random(160) < 0.6, 0.0, 1 / 3)


def detectable(rng: Rng, repeats: int, tasks: int, disagreement: float) -> Iterator[Rate]:
    """The power of two tests where the true difference is the one that `minimum_detectable_difference` names."""
    change = minimum_detectable_difference(tasks, disagreement**0.5)
    chances = _shares((disagreement + change) / 2, (disagreement - change) / 2)

    def draw(rng: Rng) -> list[bool]:
        gained, lost, _ = rng.multinomial(tasks, chances)
        differences = np.repeat([1.0, -1.0, 0.0], [gained, lost, tasks - gained - lost])
        low, high = t_interval(differences[None])
        return [bool(low[0] > 0 or high[0] < 0), difference(differences.tolist()).p_value < 0.05]

    found = rates(rng, repeats, draw)
    where = f"a difference of {100 * change:.1f} points, {tasks} tasks, {100 * disagreement:g} % changed"
    yield Rate(f"a paired t test finds {where}", "80 % or more", found[0], repeats)
    yield Rate(f"`difference` finds {where}", "somewhat less", found[1], repeats)


def equal_groups(rng: Rng, repeats: int, tasks: int) -> Iterator[Rate]:
    """Two groups of which one holds most of the hard tasks; within a difficulty they are equal."""

    def draw(rng: Rng) -> list[bool]:
        hard = rng.random(tasks) < 0.5
        group = rng.random(tasks) < np.where(hard, 0.8, 0.2)
        passed = rng.random(tasks) < np.where(hard, 0.2, 0.6)
        labels = [group, rng.permutation(group), group]
        strata = [[], [], hard.tolist()]
        return [
            groups_differ(passed.tolist(), one.tolist(), within) < 0.05
            for one, within in zip(labels, strata, strict=True)
        ]

    confounded, dealt, within = rates(rng, repeats, draw)
    yield Rate(f"`groups_differ` on {tasks} tasks dealt to two groups", "at most 5 %", dealt, repeats)
    yield Rate(f"`groups_differ` on two groups, one with the hard tasks, {tasks} tasks", "naive", confounded, repeats)
    yield Rate("`groups_differ` on the same, `within` difficulty", "at most 5 %", within, repeats)


# ------------------------------------------------------------------------------------------------- the best of twelve


def outcomes(rng: Rng, tasks: int, gains: np.ndarray, shared: float) -> tuple[np.ndarray, np.ndarray]:
    """Greedy outcomes of checkpoints minus those of their base, and the true difference of each.

    Args:
        rng: where the chance comes from.
        tasks: their number.
        gains: for each checkpoint, the share of the missing ability that it gains.
        shared: chance that a checkpoint's luck on a task is the one that checkpoints share.
    """
    solved = difficulties(rng, tasks)
    chances = solved + gains[:, None] * (1 - solved)
    together, alone = rng.random(tasks), rng.random((len(gains), tasks))
    luck = np.where(rng.random(alone.shape) < shared, together, alone)
    base = rng.random(tasks) < solved
    return (luck < chances).astype(float) - base, gains * (1 - 0.5 / 0.9)


def best_of_twelve(rng: Rng, repeats: int, tasks: int, shared: float) -> Iterator[Rate]:
    """Twelve checkpoints, none better than the base, and the best of them tested on the tasks that it was chosen on."""

    def draw(rng: Rng) -> list[bool]:
        differences, _ = outcomes(rng, tasks, np.zeros(CHECKPOINTS), shared)
        naive = difference(differences[differences.mean(axis=1).argmax()].tolist())
        return [naive.p_value < 0.05, best_of(differences.tolist()).p_value < 0.05]

    found = rates(rng, repeats, draw)
    where = f"{tasks} tasks" + (f", {100 * shared:g} % of answers shared" if shared else "")
    yield Rate(
        f"`difference` on the best of {CHECKPOINTS} equal checkpoints is not undecided, {where}",
        "naive",
        found[0],
        repeats,
    )
    yield Rate(f"`best_of` on the same, {where}", "at most 5 %", found[1], repeats)


def best_interval(
    rng: Rng, repeats: int, where: str, draw_table: Callable[[Rng], tuple[np.ndarray, np.ndarray]]
) -> Iterator[Rate]:
    """Does the interval of the best of twelve checkpoints cover its true difference?"""

    def draw(rng: Rng) -> list[bool]:
        differences, truths = draw_table(rng)
        best = best_of(differences.tolist())
        naive = difference(differences[best.index].tolist())
        return [one.low <= truths[best.index] <= one.high for one in (naive, best.difference)]

    found = rates(rng, repeats, draw)
    yield Rate(
        f"`difference` covers the true difference of the best of {CHECKPOINTS}, {where}", "naive", found[0], repeats
    )
    yield Rate(f"`best_of` covers the same, {where}", "93 % or more", found[1], repeats)


def ever_better(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Of twelve checkpoints the later are truly a little better."""
    return outcomes(rng, 120, np.linspace(0.0, 0.05, CHECKPOINTS), 0.0)


def rarely_gained(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Every checkpoint gains 2 % of 120 tasks, by its own luck, and loses none."""
    return (rng.random((CHECKPOINTS, 120)) < 0.02).astype(float), np.full(CHECKPOINTS, 0.02)


# --------------------------------------------------------------------------------------------------------------- seeds


Single = Callable[[np.ndarray], tuple[float, float]]


def over_seeds(
    rng: Rng, repeats: int, where: str, truth: float, alone: tuple[str, str, Single], draw: Callable[[Rng], np.ndarray]
) -> Iterator[Rate]:
    """How often a gain is covered over seeds and tasks, and over tasks `alone`: by a method, its promise and itself."""
    name, promise, over_tasks = alone

    def covers(rng: Rng) -> list[bool]:
        table = draw(rng)
        ours, (low, high) = across_seeds(table.tolist()), over_tasks(table.mean(axis=0))
        return [ours.low <= truth <= ours.high, low <= truth <= high]

    found = rates(rng, repeats, covers)
    yield Rate(f"`across_seeds` covers {where}", "93 % or more", found[0], repeats)
    yield Rate(f"{name} over tasks alone covers {where}", promise, found[1], repeats)


def several_seeds(rng: Rng, repeats: int, seeds: int, spread: float) -> Iterator[Rate]:
    """A gain of 5 points on average, which differs between seeds by `spread` and between tasks; 120 tasks."""

    def draw(rng: Rng) -> np.ndarray:
        of_seed, of_task = rng.normal(0, spread, (seeds, 1)), rng.choice([-0.2, 0.2], 120)
        return 0.05 + of_seed + of_task + rng.choice([-0.3, 0.3], (seeds, 120))

    def over_tasks(values: np.ndarray) -> tuple[float, float]:
        found = difference(values.tolist())
        return found.low, found.high

    where = f"the gain, {seeds} seeds that differ by {100 * spread:g} points"
    alone = "`difference`", "naive" if spread else "93 % or more", over_tasks
    yield from over_seeds(rng, repeats, where, 0.05, alone, draw)


def rare_gains(rng: Rng, repeats: int, what: str, same: bool, spread: float) -> Iterator[Rate]:
    """Three seeds gain 2 % of 120 tasks on average, each from 2 % - `spread` to 2 % + `spread`, and lose none."""

    def draw(rng: Rng) -> np.ndarray:
        luck = np.tile(rng.random(120), (3, 1)) if same else rng.random((3, 120))
        return (luck < rng.uniform(0.02 - spread, 0.02 + spread, (3, 1))).astype(float)

    def over_tasks(values: np.ndarray) -> tuple[float, float]:
        low, high = t_interval(values[None])
        return float(low[0]), float(high[0])

    where = f"a gain of 2 % of 120 tasks, none lost, 3 seeds{what}"
    yield from over_seeds(rng, repeats, where, 0.02, ("a t interval", "naive", over_tasks), draw)


def other_rows(repeats: int) -> Iterator[Rate | Bias]:
    """The rows of the last table, each with a generator of its own: rows do not depend on those above."""
    sources = iter(np.random.default_rng(0).spawn(100))
    yield from pass_at_eight(next(sources), repeats)
    yield from forecasts(
        next(sources), repeats, "chances from a beta distribution", "near 0", "93 % or more", spread_chances
    )
    yield from forecasts(
        next(sources), repeats, "6 in 10 never pass, others 1 in 3", "none", "none: two kinds", chances_of_two_kinds
    )
    for tasks, disagreement in ((500, 0.05), (120, 0.2)):
        yield from detectable(next(sources), repeats, tasks, disagreement)
    for tasks, shared in ((120, 0.0), (500, 0.0), (500, 0.8)):
        yield from best_of_twelve(next(sources), repeats, tasks, shared)
    yield from best_interval(next(sources), repeats, "120 tasks", ever_better)
    yield from best_interval(next(sources), repeats, "2 % of 120 tasks gained, none lost", rarely_gained)
    for seeds, spread in ((3, 0.0), (3, 0.03), (3, 0.1), (5, 0.1), (8, 0.03)):
        yield from several_seeds(next(sources), repeats, seeds, spread)
    yield from rare_gains(next(sources), repeats, "", same=False, spread=0.0)
    yield from rare_gains(next(sources), repeats, " that gain the same tasks", same=True, spread=0.0)
    yield from rare_gains(next(sources), repeats, " that gain 0 to 4 %", same=False, spread=0.02)
    yield from equal_groups(next(sources), repeats, 60)


# ------------------------------------------------------------------------------------------------------------- the page

ABOUT = f"""How often, in 100 cases, a 95 % interval covers the truth. `difference` and `rate` promise at least
{100 * PROMISE:g} in every row; what is below is **bold**. With one completion of a task the numbers are exact, with
several they come from {DRAWS:,} draws and are off by up to 0.5. The others: the t interval over tasks, which has no
width where all values are equal; scipy's percentile bootstrap over tasks, here of {RESAMPLES:,} samples; Wilson's
interval over single completions."""
CHANGES_ARE = """Several completions: chances of passing come from a beta distribution of mean 25 %, by which half
of the tasks pass at most 7 times in 100 and one in ten at least 84 times (for tasks that almost never pass: of mean
2 %). A gained task goes 80 % of the way to 1, a lost one 80 % of the way to 0, and where all gain a little, 5 % of the
way to 1. Widths are means, in points."""
RATES_ARE = """Several completions: chances of passing come from U-shaped beta distributions, whose parameters add up to
0.9. Widths are means, in points."""
ALARMS = """Exact chances, in %, that two equal policies are called different: each is the worst of 0.5 to 50 % of tasks
gained and as many lost. The last column: that one test does so and the other does not."""
FURTHER = """Brackets are 95 % intervals; "naive" is a method that promises nothing here, for comparison."""


def coverages() -> tuple[dict[str, list[Coverage]], dict[str, list[Coverage]]]:
    """All rows on paired differences and on rates, by what they have in common."""
    sources = iter(np.random.default_rng(1).spawn(4))
    paired, single = {"1": list(paired_exactly())}, {"1": list(rates_exactly())}
    for completions in (2, 8):
        paired[str(completions)] = list(paired_by_draws(next(sources), completions))
        single[str(completions)] = list(rates_by_draws(next(sources), completions))
    paired["1; any share gained, none lost"] = list(worst("worst of 0.1 to 99.9 % gained, 0 % lost", PAIRED_METHODS))
    single["1; any rate"] = list(worst("worst of 0.1 to 99.9 %", SINGLE_METHODS))
    return paired, single


def table(columns: Sequence[str], rows: Iterable[object]) -> list[str]:
    return ["", _row(columns), "|" + "---|" * len(columns), *map(str, rows), ""]


def lowest(groups: dict[str, list[Coverage]]) -> list[str]:
    """For every method the row that it covers least often."""
    names = list(next(iter(groups.values()))[0].covered)
    least = {name: [min(row.covered[method] for row in rows) for method in names] for name, rows in groups.items()}
    rows = (_row([name, *map(_percent, each)]) for name, each in least.items())
    return table(["completions of a task", *names], rows)


def every_row(groups: dict[str, list[Coverage]]) -> list[str]:
    rows = list(itertools.chain(*groups.values()))
    names = list(rows[0].covered)
    return table(["what", "tasks", "completions", *names, *(f"width of {name}" for name in names)], rows)


def main() -> None:
    """Prints the tables and writes them to `benchmarks/results/intervals.md`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=1000, help="draws for each row of the last table")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "intervals.md")
    arguments = parser.parse_args()
    paired, single = coverages()
    missed = [str(row) for row in itertools.chain(*paired.values(), *single.values()) if row.ours < PROMISE]
    lines = [f"`python benchmarks/intervals.py --repeats {arguments.repeats}`", "", "## Coverage", "", ABOUT]
    lines += ["", "Paired differences, the lowest of all rows below:", *lowest(paired)]
    lines += ["Rates, the lowest of all rows below:", *lowest(single)]
    lines += [f"Rows in which `difference` or `rate` misses {100 * PROMISE:g}: {len(missed) or 'none'}.", *missed]
    lines += ["", "### Paired differences", "", CHANGES_ARE, *every_row(paired)]
    lines += ["### Rates", "", RATES_ARE, *every_row(single)]
    columns = ["tasks", "`difference`", "McNemar's exact test", "one of the two alone"]
    lines += ["## False alarms", "", ALARMS, *table(columns, map(false_alarms, TASKS))]
    lines += ["## Further promises", "", FURTHER, *table(["what", "promised", "found", "draws"], [])[:-1]]
    print("\n".join(lines), flush=True)
    for row in other_rows(arguments.repeats):
        lines.append(str(row))
        print(row, flush=True)
    arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

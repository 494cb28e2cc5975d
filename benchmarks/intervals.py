"""Do the intervals and tests of `statistics` hold what they say? `python benchmarks/intervals.py`, about five minutes.

Every row draws policies whose true difference is known, many times over, and counts how often the interval covers it or
the test finds it; Wilson's and McNemar's exact rows are sums over all outcomes. Seeded: the same command prints the
same table. (Not `statistics.py`: a script of that name would hide the standard library's module from its neighbours.)
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from grpo_utils.evaluation import (
    across_seeds,
    best_of,
    bootstrap_mean,
    groups_differ,
    mcnemar,
    minimum_detectable_difference,
    wilson,
)

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = 12
Rng = np.random.Generator


@dataclass(frozen=True)
class Rate:
    """How often something happened. `repeats` is 0 where the rate is exact.

    Attributes:
        what: what was counted.
        promise: what the rate should be, in words; "naive" for a method that the table warns of.
        rate: between 0 and 1.
        repeats: how many draws it is the mean of.
    """

    what: str
    promise: str
    rate: float
    repeats: int = 0

    def __str__(self) -> str:
        if not self.repeats:
            return f"| {self.what} | {self.promise} | {100 * self.rate:.2f} % | exact |"
        interval = wilson(round(self.rate * self.repeats), self.repeats)
        return (
            f"| {self.what} | {self.promise} | {100 * self.rate:.1f} % "
            f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}] | {self.repeats:,} |"
        )


def rates(rng: Rng, repeats: int, draw: Callable[[Rng], list[bool]]) -> np.ndarray:
    """How often each of the events that `draw` reports happened."""
    return np.mean([draw(rng) for _ in range(repeats)], axis=0)


def difficulties(rng: Rng, tasks: int) -> np.ndarray:
    """Chance of solving each task: most tasks are easy or hard, as in MBPP; the mean is 0.56."""
    return rng.beta(0.5, 0.4, size=tasks)


# ------------------------------------------------------------------------------------------- one policy, two policies


def one_proportion() -> Iterator[Rate]:
    """Wilson's coverage, summed over every number of successes; it oscillates with n and p."""
    for n, p in ((500, 0.56), (120, 0.3), (120, 0.05)):
        intervals = [wilson(successes, n) for successes in range(n + 1)]
        covering = [interval.low <= p <= interval.high for interval in intervals]
        yield Rate(
            f"`wilson` covers {p:g} at n = {n}", "93 to 97 %", float(stats.binom.pmf(range(n + 1), n, p) @ covering)
        )


def paired_differences(rng: Rng, repeats: int, tasks: int) -> Iterator[Rate]:
    """Four completions per task of two policies; the second is better by a known amount on every task."""

    def draw(rng: Rng) -> list[bool]:
        before = difficulties(rng, tasks)
        after = before + 0.25 * (1 - before)
        truth = 0.25 * (1 - 0.5 / 0.9)  # the mean of `difficulties` is 0.5 / 0.9
        change = (rng.binomial(4, after) - rng.binomial(4, before)) / 4
        interval = bootstrap_mean(change.tolist())
        return [interval.low <= truth <= interval.high]

    found = rates(rng, repeats, draw)
    yield Rate(f"`bootstrap_mean` covers a paired difference, {tasks} tasks", "93 to 97 %", found[0], repeats)


def one_mean(rng: Rng, repeats: int, tasks: int) -> Iterator[Rate]:
    """Four completions per task of one policy, whose true pass@1 over all possible tasks is 0.5 / 0.9."""
    truth = 0.5 / 0.9

    def draw(rng: Rng) -> list[bool]:
        passed = rng.binomial(4, difficulties(rng, tasks))
        by_task, pooled = bootstrap_mean((passed / 4).tolist()), wilson(int(passed.sum()), 4 * tasks)
        return [interval.low <= truth <= interval.high for interval in (by_task, pooled)]

    found = rates(rng, repeats, draw)
    yield Rate(f"`bootstrap_mean` covers pass@1, {tasks} tasks", "93 to 97 %", found[0], repeats)
    yield Rate(f"Wilson over single completions covers pass@1, {tasks} tasks", "naive", found[1], repeats)


def equal_policies(rng: Rng, repeats: int) -> Iterator[Rate]:
    """McNemar's rejections of policies that are equally good, first for every possible number of changed tasks."""
    worst = max(
        sum(
            stats.binom.pmf(gained, changed, 0.5)
            for gained in range(changed + 1)
            if stats.binomtest(gained, changed).pvalue < 0.05
        )
        for changed in range(1, 101)
    )
    yield Rate("`mcnemar` rejects equal policies, worst of 1 to 100 changed tasks", "at most 5 %", float(worst))

    def draw(rng: Rng) -> list[bool]:
        before, after = rng.random((2, 500)) < difficulties(rng, 500)
        return [mcnemar(before.tolist(), after.tolist()) < 0.05]

    yield Rate("`mcnemar` rejects equal policies, 500 tasks", "at most 5 %", rates(rng, repeats, draw)[0], repeats)


def detectable(rng: Rng, repeats: int, tasks: int, disagreement: float) -> Iterator[Rate]:
    """The power of two tests where the true difference is the one that `minimum_detectable_difference` names."""
    change = minimum_detectable_difference(tasks, disagreement**0.5)
    chances = [(disagreement + change) / 2, (disagreement - change) / 2, 1 - disagreement]

    def draw(rng: Rng) -> list[bool]:
        gained, lost, _ = rng.multinomial(tasks, chances)
        differences = np.repeat([1.0, -1.0, 0.0], [gained, lost, tasks - gained - lost])
        critical = float(stats.t.ppf(0.975, tasks - 1)) * float(differences.std(ddof=1)) / tasks**0.5
        return [
            abs(float(differences.mean())) > critical,
            mcnemar((differences < 0).tolist(), (differences > 0).tolist()) < 0.05,
        ]

    found = rates(rng, repeats, draw)
    where = f"a difference of {100 * change:.1f} points, {tasks} tasks, {100 * disagreement:g} % changed"
    yield Rate(f"a paired t test finds {where}", "80 % or more", found[0], repeats)
    yield Rate(f"`mcnemar` finds {where}", "somewhat less", found[1], repeats)


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


def outcomes(rng: Rng, tasks: int, gains: np.ndarray, shared: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Greedy outcomes of a base and of checkpoints, and the true difference of each to the base.

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
    return rng.random(tasks) < solved, luck < chances, gains * (1 - 0.5 / 0.9)


def best_of_twelve(rng: Rng, repeats: int, tasks: int, shared: float) -> Iterator[Rate]:
    """Twelve checkpoints, none better than the base, and the best of them tested on the tasks that it was chosen on."""

    def draw(rng: Rng) -> list[bool]:
        base, checkpoints, _ = outcomes(rng, tasks, np.zeros(CHECKPOINTS), shared)
        differences = checkpoints.astype(float) - base
        naive = mcnemar(base.tolist(), checkpoints[differences.mean(axis=1).argmax()].tolist())
        return [naive < 0.05, best_of(differences.tolist()).p_value < 0.05]

    found = rates(rng, repeats, draw)
    where = f"{tasks} tasks" + (f", {100 * shared:g} % of answers shared" if shared else "")
    yield Rate(f"`mcnemar` on the best of {CHECKPOINTS} equal checkpoints rejects, {where}", "naive", found[0], repeats)
    yield Rate(f"`best_of` on the same, {where}", "at most 5 %", found[1], repeats)


def best_interval(rng: Rng, repeats: int, tasks: int) -> Iterator[Rate]:
    """Twelve checkpoints of which the later are truly a little better: does the best one's interval cover its truth?"""
    gains = np.linspace(0.0, 0.05, CHECKPOINTS)

    def draw(rng: Rng) -> list[bool]:
        base, checkpoints, truths = outcomes(rng, tasks, gains, 0.0)
        differences = checkpoints.astype(float) - base
        best = best_of(differences.tolist())
        naive = bootstrap_mean(differences[best.index].tolist())
        return [one.low <= truths[best.index] <= one.high for one in (naive, best.difference)]

    found = rates(rng, repeats, draw)
    where = f"covers the best of {CHECKPOINTS}'s true difference, {tasks} tasks"
    yield Rate(f"`bootstrap_mean` {where}", "naive", found[0], repeats)
    yield Rate(f"`best_of` {where}", "at least 95 %", found[1], repeats)


# --------------------------------------------------------------------------------------------------------------- seeds


def several_seeds(rng: Rng, repeats: int, seeds: int, spread: float) -> Iterator[Rate]:
    """A gain of 5 points on average, which differs between seeds by `spread` and between tasks; 120 tasks."""

    def draw(rng: Rng) -> list[bool]:
        of_seed, of_task = rng.normal(0, spread, (seeds, 1)), rng.normal(0, 0.2, 120)
        table = 0.05 + of_seed + of_task + rng.normal(0, 0.3, (seeds, 120))
        found = [across_seeds(table.tolist()), bootstrap_mean(table.mean(axis=0).tolist())]
        return [one.low <= 0.05 <= one.high for one in found]

    found = rates(rng, repeats, draw)
    where = f"covers the gain, {seeds} seeds that differ by {100 * spread:g} points"
    yield Rate(f"`across_seeds` {where}", "93 % or more", found[0], repeats)
    yield Rate(f"`bootstrap_mean` over tasks alone {where}", "naive" if spread else "93 to 97 %", found[1], repeats)


def all_rates(repeats: int) -> Iterator[Rate]:
    """Every row of the table, each with a generator of its own: rows do not depend on those above."""
    sources = iter(np.random.default_rng(0).spawn(100))
    yield from one_proportion()
    for tasks in (30, 120):
        yield from one_mean(next(sources), repeats, tasks)
    yield from paired_differences(next(sources), repeats, 120)
    yield from equal_policies(next(sources), repeats)
    for tasks, disagreement in ((500, 0.05), (120, 0.2)):
        yield from detectable(next(sources), repeats, tasks, disagreement)
    for tasks, shared in ((120, 0.0), (500, 0.0), (500, 0.8)):
        yield from best_of_twelve(next(sources), repeats, tasks, shared)
    yield from best_interval(next(sources), repeats, 120)
    for seeds, spread in ((3, 0.0), (3, 0.03), (3, 0.1), (5, 0.1), (8, 0.03)):
        yield from several_seeds(next(sources), repeats, seeds, spread)
    yield from equal_groups(next(sources), repeats, 60)


def main() -> None:
    """Prints the table and writes it to `benchmarks/results/intervals.md`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "intervals.md")
    arguments = parser.parse_args()
    lines = [f"`python benchmarks/intervals.py --repeats {arguments.repeats}`; brackets are 95 % Wilson intervals.", ""]
    lines += ["| what | promised | rate | draws |", "|---|---|---|---|"]
    print("\n".join(lines))
    for rate in all_rates(arguments.repeats):
        lines.append(str(rate))
        print(rate, flush=True)
    arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

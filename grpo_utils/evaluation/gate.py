"""Is a recipe worth training? Minutes of sampling say so before hours are spent.

GRPO makes likelier what the policy samples now and then. So greedy decoding has room to rise where one of several
samples passes and the greedy completion does not; where the two are close, training makes samples more reliable and
little else (Yue et al. 2025, arXiv 2504.13837). And a group that all fail or all pass teaches nothing.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from grpo_utils import tasks
from grpo_utils.runs import Recipe, Split

from .records import Drawn, sweep
from .results import load_records, mean_over_tasks, of_policy
from .statistics import Difference, Interval, difference, mixed_groups, mixed_share, rate

DRAWN = Drawn(samples=8, temperature=0.7)
ENOUGH_ROOM, ENOUGH_MIXED = 0.25, 0.5  # rules of thumb: below them small policies were seen to gain nothing greedily
ENOUGH_TASKS = 160  # of a split: more say little more


@dataclass(frozen=True)
class Gate:
    """What the start of GRPO can do, by strict scoring.

    Attributes:
        start: the policy's name in records, the warm start or the base.
        tasks: number of validation tasks, on which all is measured but `mixed`.
        greedy: share of tasks that the greedy completion solves.
        sampled: pass@1 of samples at a temperature of 0.7.
        at_8: pass@8 of these, the share of tasks that one of eight samples solves.
        room: `at_8` less `greedy`, paired per task.
        practice: share of samples that pass on the training tasks that the recipe keeps, or on all where it keeps none.
        mixed: forecast share of groups of training that hold passes and failures (`mixed_share`).
    """

    start: str
    tasks: int
    greedy: Interval
    sampled: Interval
    at_8: Interval
    room: Difference
    practice: float
    mixed: Interval

    @property
    def sentence(self) -> str:
        """What the numbers say of training, and which of the thresholds lies within its interval."""
        room, mixed = 100 * self.room.value, self.mixed.value
        if mixed < ENOUGH_MIXED:
            what = (
                "pass: take harder tasks" if self.practice > 0.5 else "fail: take easier tasks, or a longer warm start"
            )
            said = f"Not yet: {mixed:.0%} of the groups would be mixed, and the others teach nothing. Most {what}."
        elif self.room.value >= ENOUGH_ROOM:
            said = f"Worth training: pass@8 lies {room:.0f} points above greedy, which can rise."
        else:
            where = f"lies only {room:.0f} points above it" if room > 0 else "is no higher"
            said = f"Expect samples that pass more often and a greedy completion that stays: pass@8 {where}."
        thresholds = {"room": (self.room, ENOUGH_ROOM), "mixed groups": (self.mixed, ENOUGH_MIXED)}
        wide = [f"{name} ({least:.0%})" for name, (one, least) in thresholds.items() if one.low <= least <= one.high]
        return f"{said} Undecided, for the interval holds the threshold: {', '.join(wide)}." if wide else said

    def __str__(self) -> str:
        rows = {
            "greedy": self.greedy,
            "T = 0.7, pass@1": self.sampled,
            "T = 0.7, pass@8": self.at_8,
            "pass@8 - greedy": self.room,
            "mixed groups": f"{self.mixed}, forecast for the tasks of practice",
        }
        head = f"Worth training? {self.start} on {self.tasks} validation tasks, strict, with 95 % intervals:"
        return "\n".join([head, *(f"  {name:<17}{row}" for name, row in rows.items()), self.sentence])


def try_tasks(recipe: Recipe, run: Path) -> tuple[pd.DataFrame, int]:
    """Has the start of GRPO sample the training tasks as training will, unless that was done, and counts passes.

    A recipe that filters by pass rate tries all tasks within its other filters, another one at most `ENOUGH_TASKS`.

    Returns:
        A table with a row per task: `passes`, `kept` (by `dataset.pass_rate`), and `mixed`, the forecast that a group
        of training holds passes and failures; and the number of samples of each.

    Raises:
        RunError: the recipe has a warm start, and it was not trained yet.
    """
    chosen = recipe if recipe.dataset.pass_rate else _shortened(recipe, "train")
    sweep(chosen, run, [recipe.start], "train")
    rows = of_policy(load_records(run), recipe.start, "train", recipe.prompt.shots)
    by_task = rows[rows["sample"] >= 0].groupby("task_id", sort=False)["strict"]
    passes, samples = by_task.sum().astype(int), int(by_task.size().iloc[0])
    low, high = recipe.dataset.pass_rate or (0, 1)
    mixed = mixed_groups(passes.tolist(), samples, recipe.grpo["num_generations"])
    return pd.DataFrame({"passes": passes, "kept": (passes / samples).between(low, high), "mixed": mixed}), samples


def gate_records(recipe: Recipe, run: Path, checkpoint: str) -> pd.DataFrame:
    """Returns by what the gate judges a policy: on validation a greedy completion and eight at T = 0.7 for each task.

    They are measured now, unless that was done. Columns are those of `load_records`.
    """
    sweep(_shortened(recipe, "validation"), run, [checkpoint], "validation", drawn=DRAWN)
    return of_policy(load_records(run), checkpoint, DRAWN.label("validation"), recipe.prompt.shots)


def gate(recipe: Recipe, run: Path) -> Gate:
    """Measures the start of GRPO on training and validation tasks, unless that was done, and returns what they say.

    Raises:
        RunError: the recipe has a warm start, and it was not trained yet.
    """
    tried, samples = try_tasks(recipe, run)
    kept, filters = tried[tried.kept], recipe.dataset.pass_rate or (0, 1)
    rows = gate_records(recipe, run, recipe.start)
    greedy, sampled = rows[rows["sample"] < 0], rows[rows["sample"] >= 0]
    share = sampled.groupby("task_id")["strict"].mean().astype(float)
    solved = greedy.set_index("task_id")["strict"].astype(float)
    return Gate(
        start=recipe.start,
        tasks=len(share),
        greedy=mean_over_tasks(greedy, "strict"),
        sampled=mean_over_tasks(sampled, "strict"),
        at_8=rate((share > 0).astype(float).tolist()),
        room=difference(((share > 0) - solved).tolist()),
        practice=float((kept if len(kept) else tried).passes.mean() / samples),
        mixed=mixed_share(tried.passes.tolist(), samples, recipe.grpo["num_generations"], *filters),
    )


def _shortened(recipe: Recipe, split: Split) -> Recipe:
    limits = {**recipe.dataset.limits, split: min(ENOUGH_TASKS, len(tasks.load_split(recipe, split)))}
    return recipe.model_copy(update={"dataset": recipe.dataset.model_copy(update={"limits": limits})})

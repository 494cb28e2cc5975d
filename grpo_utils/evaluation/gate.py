"""Is a recipe worth training? Minutes on its validation tasks say so before hours are spent.

GRPO makes likelier what the policy samples now and then. So greedy decoding has room to rise where one of several
samples passes and the greedy completion does not; where the two are close, training makes samples more reliable and
little else (Yue et al. 2025, arXiv 2504.13837). And a group that all fail or all pass teaches nothing.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from dataclasses import dataclass
from pathlib import Path

from grpo_utils.runs import Recipe

from .records import Drawn, sweep
from .results import load_records, mean_over_tasks, of_policy
from .statistics import Difference, Interval, difference, rate

DRAWN = Drawn(samples=8, temperature=0.7)
ENOUGH_ROOM, ENOUGH_MIXED = 0.25, 0.5  # rules of thumb: below them small policies were seen to gain nothing greedily


@dataclass(frozen=True)
class Gate:
    """What the start of GRPO can do on validation, by strict scoring.

    Attributes:
        start: the policy's name in records, the warm start or the base.
        tasks: their number.
        greedy: share of tasks that the greedy completion solves.
        sampled: pass@1 of samples at a temperature of 0.7.
        at_8: pass@8 of these, the share of tasks that one of eight samples solves.
        room: `at_8` less `greedy`, paired per task.
        mixed: share of tasks whose eight samples hold passes and failures.
    """

    start: str
    tasks: int
    greedy: Interval
    sampled: Interval
    at_8: Interval
    room: Difference
    mixed: Interval

    @property
    def sentence(self) -> str:
        """What the numbers say of training, and whether the interval of the one that decides leaves that open."""
        alive, wide = self.mixed.value >= ENOUGH_MIXED, self.room.value >= ENOUGH_ROOM
        if not alive:
            said = (
                f"Not yet: {self.mixed.value:.0%} of the groups are mixed, and the others teach nothing. Choose tasks "
                "by pass rate (dataset.pass_rate), take easier ones, or let the warm start run longer."
            )
        elif wide:
            said = (
                f"Worth training: pass@8 lies {100 * self.room.value:.0f} points above greedy, which has room to rise."
            )
        else:
            said = (
                f"Expect samples that pass more often and a greedy completion that stays: pass@8 lies only "
                f"{100 * self.room.value:.0f} points above it."
            )
        decides, least = (self.room, ENOUGH_ROOM) if alive else (self.mixed, ENOUGH_MIXED)
        open_ = f" Undecided, for the interval holds {least:.0%}." if decides.low <= least <= decides.high else ""
        return said + open_

    def __str__(self) -> str:
        rows = {
            "greedy": self.greedy,
            "T = 0.7, pass@1": self.sampled,
            "T = 0.7, pass@8": self.at_8,
            "mixed groups": self.mixed,
        }
        head = f"Worth training? {self.start} on {self.tasks} validation tasks, strict, with 95 % intervals:"
        lines = [f"  {name:<17}{interval}" for name, interval in rows.items()]
        return "\n".join([head, *lines, f"  {'pass@8 - greedy':<17}{self.room}", self.sentence])


def gate(recipe: Recipe, run: Path) -> Gate:
    """Measures the start of GRPO on the validation tasks, unless that was done, and returns what it says.

    Raises:
        RunError: the recipe has a warm start, and it was not trained yet.
    """
    sweep(recipe, run, [recipe.start], "validation", drawn=DRAWN)
    rows = of_policy(load_records(run), recipe.start, DRAWN.label("validation"), recipe.prompt.shots)
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
        mixed=rate(share.between(0, 1, inclusive="neither").astype(float).tolist()),
    )

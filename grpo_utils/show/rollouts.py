"""What a policy wrote while it was trained, for `browser.Browser`: step by step, one group of completions per prompt.

Stored are completions with their task, length, rewards and advantages, and whether they are right. Which assert fails,
and why, the sandbox finds out again when a step is looked at. `grpo rollouts --recipe cpu-code` writes a page.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from grpo_utils import evaluation, runs, tasks
from grpo_utils.runs import Recipe, UserError, nearest
from grpo_utils.sandbox import shared
from grpo_utils.tasks import Task

from .browser import Entry, Shown, headline, shown_completion, write_page

KINDS = ("step", "prompt")  # what `browser` calls a group and an entry
Kept = Literal["passed", "failed", "cut-off"]


class Rollouts(Mapping[str, list[Entry]]):
    """The stored completions of a training: a mapping from "step 3" to an entry for every prompt of that step.

    A step is read and judged when it is asked for.

    Args:
        recipe: what was trained.
        run: folder of the run.
        steps: those to show; default: all.
        only: completions to show; default: all.
        by: a reward's name, `reward` (their weighted sum), `advantage` or `tokens`: the largest comes first.

    Raises:
        UserError: there is no such step or score. A RunError: nothing is stored yet, or, when a step is asked for, its
            file cannot be used.
    """

    def __init__(
        self, recipe: Recipe, run: Path, steps: Collection[int] = (), only: Kept | None = None, by: str = "advantage"
    ) -> None:
        folder = runs.need_file(run / "checkpoints" / "completions", "04_grpo_training")
        files = {int(path.stem.partition("_")[2]): path for path in sorted(folder.glob("*.parquet"))}
        if missing := set(steps) - files.keys():
            raise UserError(f"There is no step {min(missing)} in {folder}, which has {min(files)} to {max(files)}.")
        if by not in (known := ("advantage", "reward", "tokens", *recipe.weights)):
            raise UserError(f"There is no score {by!r}{nearest(by, known)} to sort by: {', '.join(known)}.")
        self.files = {f"step {step}": path for step, path in files.items() if not steps or step in steps}
        self.recipe, self.only, self.by = recipe, only, by
        self.tasks = {task.task_id: task for task in tasks.load_split(recipe, "train")}

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __getitem__(self, step: str) -> list[Entry]:
        path = self.files[step]
        try:
            frame = pd.read_parquet(path)
            numbers = (*self.recipe.weights, "advantage", "tokens", "strict")
            kinds = {"completion": str, **dict.fromkeys(numbers, float)}
            frame = frame[["task_id", *kinds]].astype(kinds)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise runs.damaged_file(path, error) from error
        if not set(frame.task_id) <= self.tasks.keys():
            raise runs.RunError(f"{path} asks for a task that is not in the training split: the data set has changed.")
        weights = self.recipe.weights
        frame["reward"] = frame[list(weights)].fillna(0.0) @ list(weights.values())  # as TRL adds them up
        frame["mean"] = frame.groupby("task_id")["reward"].transform("mean")
        frame["truncated"] = frame.tokens >= self.recipe.grpo["max_completion_length"]
        kept = {None: frame.index >= 0, "passed": frame.strict == 1, "failed": frame.strict == 0}
        frame = frame[(kept | {"cut-off": frame.truncated})[self.only]].sort_values(
            self.by, ascending=False, kind="stable"
        )
        return [self._entry(self.tasks[task_id], group) for task_id, group in frame.groupby("task_id", sort=False)]

    def _entry(self, task: Task, group: pd.DataFrame) -> Entry:
        judged = evaluation.judge_completions([task] * len(group), group.completion.tolist(), self.recipe, shared())
        shown = [
            _shown(i, row, found, task, self.recipe)
            for i, (row, found) in enumerate(zip(group.to_dict("records"), judged, strict=True), start=1)
        ]
        title = f"{task.task_id}: {headline(task)} (mean reward {group['mean'].iloc[0]:.2f})"
        return Entry(title, task.question(self.recipe.prompt), shown)


def _shown(i: int, row: dict[str, Any], found: dict[str, Any], task: Task, recipe: Recipe) -> Shown:
    scores = {name: row[name] for name in ("advantage", "reward", *recipe.weights, "tokens")}
    found |= {"text": row["completion"], "truncated": row["truncated"]}
    return shown_completion(f"{i}.", found, task, recipe.prompt, scores)


def write_rollouts(recipe: Recipe, run: Path, **chosen: Any) -> Path:
    """Writes `rollouts.html`, a static page of some steps of a training, to the run's folder and returns its path.

    `chosen` and what is raised are those of `Rollouts`.
    """
    return write_page(run / "rollouts.html", f"Rollouts of {recipe.name}", Rollouts(recipe, run, **chosen), KINDS)

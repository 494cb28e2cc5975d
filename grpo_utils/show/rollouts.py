"""What a policy wrote while it was trained, for `browser.Browser`: step by step, one group of completions per prompt.

TRL stores completions with their task, rewards and advantages. What it does not store, verdicts and failing asserts,
the sandbox finds out again when a step is looked at. `grpo rollouts --recipe cpu-code` writes a page.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_utils import evaluation, runs, tasks
from grpo_utils.runs import Recipe
from grpo_utils.sandbox import shared
from grpo_utils.tasks import Task

from .browser import Entry, Shown, headline, show_browser, write_page

KINDS = ("step", "prompt")  # what `browser` calls a group and an entry


class Rollouts(Mapping[str, list[Entry]]):
    """The stored completions of a training: a mapping from "step 3" to an entry for every prompt of that step.

    A step is read and judged when it is asked for. Completions stand in the order of their advantages.

    Args:
        recipe: what was trained.
        run: folder of the run.

    Raises:
        RunError: nothing is stored yet, or, when a step is asked for, its file cannot be used.
    """

    def __init__(self, recipe: Recipe, run: Path) -> None:
        folder = runs.need_file(run / "checkpoints" / "completions", "04_grpo_training")
        self.files = {f"step {int(path.stem.partition('_')[2])}": path for path in sorted(folder.glob("*.parquet"))}
        self.recipe = recipe
        self.tasks = {task.task_id: task for task in tasks.load_split(recipe, "train")}

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __getitem__(self, step: str) -> list[Entry]:
        path = self.files[step]
        try:
            frame = pd.read_parquet(path)
            kinds = {"completion": str, **dict.fromkeys([*self.recipe.weights, "advantage"], float)}
            frame = frame[["task_id", *kinds]].astype(kinds)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise runs.damaged_file(path, error) from error
        if not set(frame.task_id) <= self.tasks.keys():
            raise runs.RunError(f"{path} asks for a task that is not in the training split: the data set has changed.")
        return [self._entry(self.tasks[task_id], group) for task_id, group in frame.groupby("task_id", sort=False)]

    def _entry(self, task: Task, group: pd.DataFrame) -> Entry:
        weights = self.recipe.weights
        group = group.assign(reward=group[list(weights)].fillna(0.0) @ list(weights.values()))  # as TRL adds them up
        group = group.sort_values("advantage", ascending=False, kind="stable")
        judged = evaluation.judge_completions([task] * len(group), group.completion.tolist(), self.recipe, shared())
        shown = [
            _shown(i, row, found, task, self.recipe)
            for i, (row, found) in enumerate(zip(group.to_dict("records"), judged, strict=True), start=1)
        ]
        title = f"{task.task_id}: {headline(task)} (mean reward {group.reward.mean():.2f})"
        return Entry(title, task.question(self.recipe.prompt), shown)


def _shown(i: int, row: dict[str, Any], found: dict[str, Any], task: Task, recipe: Recipe) -> Shown:
    scores = {name: row[name] for name in ("advantage", "reward", *recipe.weights)}
    return show_browser(f"{i}.", found | {"text": row["completion"]}, task, recipe.prompt, scores)


def write_rollouts(recipe: Recipe, run: Path) -> Path:
    """Writes `rollouts.html`, a static page of some steps of a training, to the run's folder and returns its path.

    Raises:
        RunError: nothing is stored yet, or a file cannot be used.
    """
    return write_page(run / "rollouts.html", f"Rollouts of {recipe.name}", Rollouts(recipe, run), KINDS)

"""What there is, in a few lines, and how two runs differ: `grpo list` and `grpo compare`."""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import csv
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from grpo_utils import evaluation, rewards, runs
from grpo_utils.evaluation import Difference
from grpo_utils.runs import commands

WIDTH = 100  # of what is said of a name
MEASURES = tuple(itertools.product(("strict", "lenient"), ("greedy", "sampled")))


def list_all() -> Iterator[str]:
    """Yields the runs in `outputs/` with how far they are, then the recipes and the rewards that ship, a line each."""
    yield f"runs in {runs.outputs_folder()}:"
    for settings in sorted(runs.outputs_folder().glob("*/recipe.yaml")):
        yield _line(settings.parent.name, _state(settings.parent))
    yield "recipes:"
    for name, path in runs.recipe_files().items():
        never_run, about = path.parent.name == "untested", path.read_text(encoding="utf-8").splitlines()
        yield _line(name, "untested: " * never_run + about[never_run].removeprefix("# "))
    yield "rewards:"
    for name, entry in sorted(rewards.REGISTRY.items()):
        yield _line(name, (inspect.getdoc(entry.function) or "").partition("\n\n")[0])


def _line(name: str, said: str) -> str:
    return f"  {name:<24} {textwrap.shorten(said, WIDTH, placeholder=' ...')}"


def _state(run: Path) -> str:
    """How far a run is: its last checkpoint, and the headline of its results if it has any."""
    trained = runs.checkpoints(run)
    step = trained[-1].name if trained else "no checkpoint"
    if not (run / "results.csv").is_file():
        return step
    with (run / "results.csv").open(encoding="utf-8") as file:
        test = [row for row in csv.DictReader(file) if row["split"] == "test"]
    measured = [f"{row['checkpoint']} {100 * float(row['greedy_strict']):.1f} %" for row in test[-2:]]  # start and end
    return f"{step}; test, strict, greedy: {', '.join(measured)}"


def compare_runs(before: str, after: str, split: runs.Split = "test") -> dict[str, tuple[float, float, Difference]]:
    """Compares two runs, or two policies of one, paired by task.

    Args:
        before, after: a run's name, and behind a colon a policy of it, such as `mine:warm-start`; without one it is the
            checkpoint that was chosen on validation.
        split: on which both are compared.

    Returns:
        Score -> both means and the difference, after - before.

    Raises:
        RunError: a run is not there, or the two were not evaluated on the same tasks.
    """
    sides = [_policy(name) for name in (before, after)]
    found = {}
    for score, kind in MEASURES:
        old, new = (evaluation.per_task(*side[:2], split, side[2], score, kind == "greedy") for side in sides)
        if not len(old) or list(old.index) != list(new.index):
            raise runs.RunError(f"{before} and {after} were not both evaluated on the same {split} tasks.")
        found[f"{score}, {kind}"] = old.mean(), new.mean(), evaluation.difference((new - old).tolist())
    return found


def _policy(name: str) -> tuple[pd.DataFrame, str, int]:
    """The records of a run, the policy of it that is meant, and how many worked examples its prompt has."""
    run, _, checkpoint = name.partition(":")
    recipe = runs.load_recipe(*commands.parameters_of(None, [], run))
    records, shots = evaluation.load_records(runs.existing_run(recipe)), recipe.prompt.shots
    there = set() if records.empty else {*records.checkpoint}
    if checkpoint and checkpoint not in there:
        raise runs.RunError(f"{run} has no evaluated {checkpoint!r}{runs.nearest(checkpoint, there)}.")
    return records, checkpoint or evaluation.choose_checkpoint(records, shots), shots

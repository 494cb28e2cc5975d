"""Evaluation records -> tables with intervals, without the model.

The checkpoint is chosen on the validation split; the test split is read once, for that checkpoint.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from pathlib import Path
from typing import Any

import pandas as pd

from grpo_utils import runs
from grpo_utils.recipes import Recipe
from grpo_utils.statistics import Interval, bootstrap_mean, mcnemar, pass_at_k

BASE = "base"
WARM_START = runs.WARM_START


def load_records(run: Path) -> pd.DataFrame:
    """Returns all records of a run, one row per completion.

    Columns: `checkpoint`, `split`, `shots`, `task_id`, `grade`, `sample` (-1 is greedy), and those of `score`.

    Raises:
        RunError: a record was damaged after it was written.
    """
    rows = []
    for path in sorted((run / "evaluations").glob("*.json")):
        record = runs.read_json(path)
        try:
            key = {name: record["settings"][name] for name in ("checkpoint", "split", "shots")}
            for task in record["tasks"]:
                owner = {"task_id": task["task_id"], "grade": task["grade"]}
                rows += [key | owner | {"sample": i} | one for i, one in enumerate(task["completions"], start=-1)]
        except (LookupError, TypeError) as error:
            raise runs.damaged(path, error) from error
    return pd.DataFrame(rows)


def step_of(checkpoint: str) -> int:
    """Returns the number of GRPO's steps behind a checkpoint: -1 for the base, 0 for the warm start."""
    special = {BASE: -1, WARM_START: 0}
    return special[checkpoint] if checkpoint in special else int(checkpoint.rpartition("-")[2])


def per_task(records: pd.DataFrame, checkpoint: str, split: str, shots: int, column: str, greedy: bool) -> pd.Series:
    """Returns each task's share of completions for which `column` holds, indexed by task."""
    kept = records[
        (records.checkpoint == checkpoint)
        & (records.split == split)
        & (records.shots == shots)
        & ((records["sample"] < 0) == greedy)
    ]
    return kept.groupby("task_id")[column].mean().astype(float)


def summarise(records: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per checkpoint, split and shots: sampled pass@1 with its interval, and what stands beside it."""
    rows = []
    for (checkpoint, split, shots), _ in records.groupby(["checkpoint", "split", "shots"]):
        samples = (
            int(
                records[(records.checkpoint == checkpoint) & (records.split == split) & (records.shots == shots)][
                    "sample"
                ].max()
            )
            + 1
        )
        row: dict[str, Any] = {"checkpoint": checkpoint, "split": split, "shots": shots, "samples": samples}
        greedy = {
            name: per_task(records, checkpoint, split, shots, name, True) for name in ("strict", "lenient", "format")
        }
        row["tasks"] = len(greedy["strict"])
        for name, values in greedy.items():
            row[f"greedy_{name}"] = values.mean()
        if samples:
            strict = bootstrap_mean(per_task(records, checkpoint, split, shots, "strict", False).tolist())
            row |= {"strict": strict.value, "strict_low": strict.low, "strict_high": strict.high}
            passes = (samples * per_task(records, checkpoint, split, shots, "strict", False)).round().astype(int)
            row["strict_pass_at_samples"] = sum(pass_at_k(samples, c, samples) for c in passes) / len(passes)
            for name in ("lenient", "format", "truncated", "visible"):
                row[name] = per_task(records, checkpoint, split, shots, name, False).mean()
        rows.append(row)
    table = pd.DataFrame(rows)
    order = table.assign(step=table.checkpoint.map(step_of)).sort_values(["split", "step", "shots"]).index
    return table.loc[order].reset_index(drop=True)


def difference(
    records: pd.DataFrame,
    after: tuple[str, int],
    before: tuple[str, int],
    split: str,
    column: str = "strict",
    greedy: bool = False,
) -> tuple[Interval, float | None]:
    """Compares two (checkpoint, shots) on the tasks of a split, paired per task.

    Returns:
        The mean difference after - before with its interval, and for greedy completions the exact McNemar p-value.
    """
    new = per_task(records, after[0], split, after[1], column, greedy)
    old = per_task(records, before[0], split, before[1], column, greedy)
    if list(new.index) != list(old.index):
        raise ValueError(f"{after} and {before} were not evaluated on the same tasks of {split}.")
    p_value = mcnemar((old > 0).tolist(), (new > 0).tolist()) if greedy else None
    return bootstrap_mean((new - old).tolist()), p_value


def choose(records: pd.DataFrame, shots: int) -> str:
    """Returns GRPO's checkpoint with the highest strict pass@1 on validation; the earlier one when two are equal.

    Sampled and greedy completions count alike: on a small validation split every completion helps.
    """
    kept = records[(records.split == "validation") & (records.shots == shots) & (records.checkpoint.map(step_of) > 0)]
    means = kept.groupby("checkpoint")["strict"].mean()
    return min(means.index, key=lambda name: (-means[name], step_of(name)))


def best_prompt(records: pd.DataFrame) -> int:
    """Returns the number of shots with which the base samples best on test, by strict pass@1: its strongest side."""
    base = records[(records.checkpoint == BASE) & (records.split == "test") & (records["sample"] >= 0)]
    return int(base.groupby("shots")["strict"].mean().idxmax())


def write(recipe: Recipe, run: Path) -> pd.DataFrame:
    """Writes `results.csv` (every evaluation) and `results.md` (what training changed on the test split).

    Returns:
        The table of `results.csv`.
    """
    records = load_records(run)
    table = summarise(records)
    runs.write(run / "results.csv", table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))
    best, trained = choose(records, recipe.prompt.shots), recipe.prompt.shots
    runs.write(run / "results.md", f"{comparison(records, best, trained)}\n")
    return table


def comparison(records: pd.DataFrame, best: str, trained_shots: int) -> str:
    """Returns Markdown: the chosen checkpoint against the base with every prompt, and what each stage gave."""
    test = records[records.split == "test"]
    after = (best, trained_shots)
    prompts = sorted(test[test.checkpoint == BASE].shots.unique())
    rows = [row for shots in prompts for row in _rows(records, f"{shots}-shot", (BASE, int(shots)), after)]
    title = f"{best} ({trained_shots}-shot, as trained) against the base on {test.task_id.nunique()} test tasks"
    parts = [f"{title}, paired per task", "", _head("base prompt", "base", "trained"), *rows]
    if WARM_START in set(test.checkpoint):
        middle = (WARM_START, trained_shots)
        rows = _rows(records, "warm start", (BASE, trained_shots), middle) + _rows(records, "GRPO", middle, after)
        parts += ["", f"What each stage gave ({trained_shots}-shot)", "", _head("stage", "before", "after"), *rows]
    return "\n".join(parts)


def _head(first: str, before: str, after: str) -> str:
    columns = [first, "pass@1", before, after, "difference [95 % interval]", "McNemar p"]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def _rows(records: pd.DataFrame, first: str, before: tuple[str, int], after: tuple[str, int]) -> list[str]:
    """One row for each measure that both were given: sampled and greedy, strict, lenient and format."""
    rows = []
    for greedy in (False, True):
        for column in ("strict", "lenient", "format"):
            old, new = (per_task(records, name, "test", shots, column, greedy) for name, shots in (before, after))
            if not len(old) or not len(new):
                continue
            change, p_value = difference(records, after, before, "test", column, greedy)
            interval = f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
            cells = [
                f"{column}, {'greedy' if greedy else 'sampled'}",
                f"{old.mean():.1%}",
                f"{new.mean():.1%}",
                interval,
            ]
            rows.append(f"| {' | '.join([first, *cells, '' if p_value is None else f'{p_value:.2g}'])} |")
    return rows

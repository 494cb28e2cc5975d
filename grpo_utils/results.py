"""Evaluation records -> tables with intervals, without the model.

The checkpoint is chosen on the validation split; the test split is read once, for that checkpoint.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import json
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_utils import runs
from grpo_utils.recipes import Recipe
from grpo_utils.statistics import Interval, bootstrap_mean, mcnemar, pass_at_k

BASE = "base"


def load_records(run: Path) -> pd.DataFrame:
    """Returns all records of a run, one row per completion.

    Columns: `checkpoint`, `split`, `shots`, `task_id`, `grade`, `sample` (-1 is greedy), and those of `score`.
    """
    rows = []
    for path in sorted((run / "evaluations").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        key = {name: record["settings"][name] for name in ("checkpoint", "split", "shots")}
        for task in record["tasks"]:
            for sample, completion in enumerate(task["completions"], start=-1):
                rows.append(key | {"task_id": task["task_id"], "grade": task["grade"], "sample": sample} | completion)
    return pd.DataFrame(rows)


def step_of(checkpoint: str) -> int:
    """Returns the training step of a checkpoint's name; the base is step 0."""
    return 0 if checkpoint == BASE else int(checkpoint.rpartition("-")[2])


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
    """Returns the checkpoint with the highest strict pass@1 on validation; the earlier one when two are equal.

    Sampled and greedy completions count alike: on a small validation split every completion helps.
    """
    kept = records[(records.split == "validation") & (records.shots == shots) & (records.checkpoint != BASE)]
    means = kept.groupby("checkpoint")["strict"].mean()
    return min(means.index, key=lambda name: (-means[name], step_of(name)))


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
    """Returns a Markdown table: the chosen checkpoint, prompted as trained, against the base with every prompt."""
    test = records[records.split == "test"]
    sampled = sorted(test[test["sample"] >= 0].shots.unique())
    after = (best, trained_shots)
    rows = []
    for shots in sorted(test[test.checkpoint == BASE].shots.unique()):
        before = (BASE, int(shots))
        for name, column in (("strict", "strict"), ("lenient", "lenient"), ("format", "format")):
            if shots in sampled and trained_shots in sampled:
                rows.append(_row(records, after, before, f"{name}, sampled", column, greedy=False))
        for name, column in (("strict", "strict"), ("lenient", "lenient")):
            rows.append(_row(records, after, before, f"{name}, greedy", column, greedy=True))
    count = test.task_id.nunique()
    title = f"{best} ({trained_shots}-shot, as trained) against the base on {count} test tasks, paired per task"
    head = (
        "| base prompt | pass@1 | base | trained | difference [95 % interval] | McNemar p |\n|---|---|---|---|---|---|"
    )
    return "\n".join([title, "", head, *rows])


def _row(
    records: pd.DataFrame, after: tuple[str, int], before: tuple[str, int], label: str, column: str, greedy: bool
) -> str:
    change, p_value = difference(records, after, before, "test", column, greedy)
    old, new = (per_task(records, name, "test", shots, column, greedy).mean() for name, shots in (before, after))
    interval = f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    p_text = "" if p_value is None else f"{p_value:.2g}"
    return f"| {before[1]}-shot | {label} | {100 * old:.1f} % | {100 * new:.1f} % | {interval} | {p_text} |"

"""Evaluation records -> tables with intervals, without the model.

The checkpoint is chosen on the validation split; of the checkpoints, that one alone is measured on the test split.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_utils import rewards, runs, tasks
from grpo_utils.runs import Recipe

from .statistics import Difference, Interval, difference, holm, pass_at_k, pass_curve, rate, verdict

TOTAL = "weighted sum"
MEASURES = ("strict", "lenient", "oracle", "format", "truncated", "visible")


def load_records(run: Path) -> pd.DataFrame:
    """Returns all records of a run, one row per completion, also of evaluations that only its user asked for.

    Columns: `checkpoint`, `split`, `shots`, `update_norm`, `task_id`, `grade`, `sample` (-1 is greedy), and those of
    `score_completions`.

    Raises:
        RunError: a record was damaged after it was written.
    """
    frames = [pd.DataFrame()]
    for path in sorted((run / "evaluations").glob("*.json")):
        record, rows = runs.read_json(path), []
        try:
            key = {name: record["settings"][name] for name in ("checkpoint", "split", "shots")}
            key["update_norm"] = record["update_norm"]
            for task in record["tasks"]:
                owner = {"task_id": task["task_id"], "grade": task["grade"]}
                for i, one in enumerate(task["completions"], start=-1):
                    visible = math.nan if one["visible"] is None else float(one["visible"])  # no assert was shown
                    rows.append(key | owner | {"sample": i} | one | {"visible": visible})
            frames.append(pd.DataFrame(rows))  # here: pandas refuses half a character, and the error names the file
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise runs.damaged_file(path, error) from error
    return pd.concat(frames, ignore_index=True)


def chain_records(recipe: Recipe, run: Path) -> pd.DataFrame:
    """Returns the records, as `load_records` does, of what the chain measures by itself, for tables and figures.

    They are the base on all splits, every adapter on validation, and on test the warm start and the chosen checkpoint
    with the prompt of training. What its user had measured besides, such as another data set, changes no table.

    Raises:
        RunError: a record was damaged after it was written.
    """
    records = load_records(run)
    if records.empty:
        return records
    records = records[records.checkpoint.map(step_of) < math.inf]
    chosen = _ranked(records, recipe.prompt.shots)[:1]
    final = records.checkpoint.isin([runs.WARM_START, *chosen]) & (records.shots == recipe.prompt.shots)
    measured = (records.checkpoint == runs.BASE) | (records.split == "validation") | (records.split == "test") & final
    return records[measured & records.split.isin(list(recipe.evaluation.samples))].reset_index(drop=True)


def step_of(checkpoint: str) -> float:
    """Returns the number of GRPO's steps behind a checkpoint: -1 for the base, 0 for the warm start.

    An adapter that the chain did not make, of any other name, has infinity: it comes last, and is never the choice.
    """
    step = re.fullmatch(r"checkpoint-(\d+)", checkpoint)
    return {runs.BASE: -1, runs.WARM_START: 0}.get(checkpoint, int(step[1]) if step else math.inf)


def of_policy(records: pd.DataFrame, checkpoint: str, split: str, shots: int) -> pd.DataFrame:
    """Returns the rows of one policy with one prompt on one split."""
    return records[(records.checkpoint == checkpoint) & (records.split == split) & (records.shots == shots)]


def mean_over_tasks(rows: pd.DataFrame, column: str) -> Interval:
    """Returns the mean over tasks of each task's share of completions for which `column` holds, with its interval.

    Raises:
        ValueError: the rows hold greedy and sampled completions: a mean of both is a share of neither.
    """
    if (rows["sample"] < 0).nunique() > 1:
        raise ValueError("Greedy and sampled completions are never counted together: select one kind of them.")
    return rate(rows.groupby("task_id")[column].mean().astype(float).tolist())


def per_task(records: pd.DataFrame, checkpoint: str, split: str, shots: int, column: str, greedy: bool) -> pd.Series:
    """Returns each task's share of completions for which `column` holds, indexed by task."""
    rows = of_policy(records, checkpoint, split, shots)
    return rows[(rows["sample"] < 0) == greedy].groupby("task_id")[column].mean().astype(float)


def summarise_records(records: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per checkpoint, split and shots: sampled pass@1 with its interval, and what stands beside it.

    The columns of `MEASURES` are shares of sampled completions, with `greedy_` before them of greedy ones.
    `hidden_given_visible` is the share of those that pass all asserts among those that pass the shown ones.
    """
    rows = []
    for (checkpoint, split, shots), group in records.groupby(["checkpoint", "split", "shots"]):
        samples = int(group["sample"].max()) + 1
        row: dict[str, Any] = {"checkpoint": checkpoint, "split": split, "shots": shots, "samples": samples}
        row |= {"tasks": group.task_id.nunique(), "update_norm": group.update_norm.iloc[0]}
        row |= group.loc[group["sample"] < 0, list(MEASURES)].mean().add_prefix("greedy_").to_dict()
        if samples:
            row |= _sampled(group[group["sample"] >= 0], samples)
        rows.append(row)
    table = pd.DataFrame(rows)
    order = table.assign(step=table.checkpoint.map(step_of)).sort_values(["split", "step", "shots"]).index
    return table.loc[order].reset_index(drop=True)


def _sampled(group: pd.DataFrame, samples: int) -> dict[str, float]:
    strict, passed = mean_over_tasks(group, "strict"), group.groupby("task_id")["strict"].sum().astype(int)
    means = group[list(MEASURES)].mean().to_dict()
    bounds = {"strict": means.pop("strict"), "strict_low": strict.low, "strict_high": strict.high}
    pass_at = {"strict_pass_at_samples": sum(pass_at_k(samples, c, samples) for c in passed) / len(passed)}
    return bounds | pass_at | means | {"hidden_given_visible": group.loc[group["visible"] == 1, "strict"].mean()}


def pass_curves(records: pd.DataFrame, split: str, shots: int) -> dict[str, dict[int, Interval]]:
    """Returns {policy: {k: strict pass@k}} of all policies that were sampled on a split, in order of training."""
    rows = records[(records.split == split) & (records.shots == shots) & (records["sample"] >= 0)]
    curves = {}
    for name in sorted(rows.checkpoint.unique(), key=step_of):
        by_task = rows[rows.checkpoint == name].groupby("task_id")["strict"]
        curves[name] = pass_curve(by_task.sum().astype(int).tolist(), int(by_task.size().iloc[0]))
    return curves


def without_effect(records: pd.DataFrame) -> list[str]:
    """Returns a sentence on every evaluated adapter that changes nothing."""
    idle = records[(records.checkpoint != runs.BASE) & (records.update_norm == 0)].checkpoint.unique()
    return [f"{name} changes nothing: the norm of its update is 0, so its scores are the base's." for name in idle]


def paired_difference(
    records: pd.DataFrame,
    after: tuple[str, int],
    before: tuple[str, int],
    split: str,
    column: str = "strict",
    greedy: bool = False,
) -> Difference:
    """Returns the mean difference after - before of two (checkpoint, shots) on the tasks of a split, paired per task.

    Raises:
        ValueError: the two were not evaluated on the same tasks.
    """
    new = per_task(records, after[0], split, after[1], column, greedy)
    old = per_task(records, before[0], split, before[1], column, greedy)
    if list(new.index) != list(old.index):
        raise ValueError(f"{after} and {before} were not evaluated on the same tasks of {split}.")
    return difference((new - old).tolist())


def choose_checkpoint(records: pd.DataFrame, shots: int) -> str:
    """Returns GRPO's checkpoint with the highest strict pass@1 of sampled completions on validation.

    When two are equal the greedy completions decide, and then the earlier step.

    Raises:
        RunError: none was evaluated on validation.
    """
    ranked = _ranked(records, shots)
    if not ranked:
        raise runs.RunError("No checkpoint was evaluated on validation: run notebook 05_checkpoint_evaluation first.")
    return ranked[0]


def _ranked(records: pd.DataFrame, shots: int) -> list[str]:
    """GRPO's checkpoints that were evaluated on validation, the best first."""
    kept = records[(records.split == "validation") & (records.shots == shots)]
    steps = kept.checkpoint.map(step_of)
    kept = kept[(steps > 0) & (steps < math.inf)]
    sampled, greedy = (kept[is_kind].groupby("checkpoint")["strict"].mean() for is_kind in _kinds(kept))

    def order(name: str) -> tuple[float, float, float]:
        return -sampled[name], -greedy[name], step_of(name)

    return sorted(kept.checkpoint.unique(), key=order)


def _kinds(records: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Which rows are sampled, and which greedy."""
    return records["sample"] >= 0, records["sample"] < 0


def best_prompt(records: pd.DataFrame) -> int:
    """Returns the number of shots with which the base samples best on test, by strict pass@1: its strongest side."""
    base = records[(records.checkpoint == runs.BASE) & (records.split == "test") & (records["sample"] >= 0)]
    return int(base.groupby("shots")["strict"].mean().idxmax())


def write_results(recipe: Recipe, run: Path) -> pd.DataFrame:
    """Writes `results.md`, what training changed on test, and `results.csv`, the table of all, which it returns."""
    records = chain_records(recipe, run)
    table = summarise_records(records)
    runs.write_file(run / "results.csv", table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))
    after = choose_checkpoint(records, recipe.prompt.shots), recipe.prompt.shots
    before = runs.BASE, best_prompt(records)
    title = f"What the rewards pay for sampled completions: the base with {before[1]} worked examples, and {after[0]}"
    paid = reward_lines(reward_table(recipe, records, before, after))
    text = "\n".join([comparison_table(records, *after), "", title, "", *paid])
    runs.write_file(run / "results.md", f"{text}\n")
    return table


def reward_table(
    recipe: Recipe, records: pd.DataFrame, before: tuple[str, int], after: tuple[str, int]
) -> pd.DataFrame:
    """Returns what the recipe's rewards pay two policies for their sampled completions of the test split.

    Rewards are computed again from the stored texts. The mean is over tasks; a task for which a reward is not known is
    left out on both sides, and so is a reward that is known for no task. A policy is a checkpoint with its shots.

    Returns:
        One row per reward and one for their weighted sum: `maximum`, `before` and `after` as means and as shares of
        the maximum (NaN where that is 0), and the paired difference with its 95 % interval from `low` to `high`.
    """
    paid = [_paid(recipe, records, *policy) for policy in (before, after)]
    maxima = {name: rewards.REGISTRY[name].high for name in recipe.rewards}
    total = sum(weight * maxima[name] for name, weight in recipe.rewards.items())
    rows = {}
    for name, maximum in {**maxima, TOTAL: total}.items():
        pair = pd.concat([table[name] for table in paid], axis=1, keys=["before", "after"]).dropna()
        if pair.empty:
            continue
        changes = pair.after - pair.before
        change = difference(changes.tolist(), max(_span(recipe, name), changes.abs().max()))
        row = {"maximum": maximum}
        for side in ("before", "after"):
            mean = pair[side].mean()
            row |= {side: mean, f"{side} / maximum": mean / maximum if maximum else math.nan}
        rows[name] = row | {"difference": change.value, "low": change.low, "high": change.high}
    return pd.DataFrame.from_dict(rows, orient="index")


def _paid(recipe: Recipe, records: pd.DataFrame, checkpoint: str, shots: int) -> pd.DataFrame:
    """Mean reward by task (rows) and reward (columns), with the weighted sum as the last column."""
    kept = of_policy(records, checkpoint, "test", shots)
    kept = kept[kept["sample"] >= 0]
    owners = {task.task_id: task for task in tasks.load_split(recipe, "test")}
    columns = tasks.columns([owners[task_id] for task_id in kept.task_id])
    columns |= {"prompts": kept.task_id.astype(str).tolist(), "completion_ids": [[0] * n for n in kept.tokens]}
    limit = recipe.evaluation.max_new_tokens  # under which these completions were written
    functions, weights = rewards.recipe_rewards(recipe, stop_on_fault=True, max_completion_length=limit)
    paid = pd.DataFrame({one.__name__: one(kept.text.tolist(), **columns) for one in functions}, dtype=float)
    paid[TOTAL] = paid.fillna(0.0) @ weights  # as TRL adds them up
    return paid.groupby(kept.task_id.to_numpy()).mean()


def _span(recipe: Recipe, name: str) -> float:
    """From the least that a reward can pay to the most, or the sum of these with the recipe's weights."""
    if name == TOTAL:
        return sum(abs(weight) * _span(recipe, part) for part, weight in recipe.rewards.items())
    return rewards.REGISTRY[name].high - rewards.REGISTRY[name].low


def reward_lines(table: pd.DataFrame) -> list[str]:
    """Returns a `reward_table` as lines of Markdown."""
    rows = []
    for name, row in table.iterrows():
        cells = [str(name), f"{row.maximum:g}"]
        for side in ("before", "after"):
            share = row[f"{side} / maximum"]
            cells += [f"{row[side]:.3f}", "" if math.isnan(share) else f"{share:.1%}"]
        rows.append([*cells, f"{row.difference:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"])
    columns = ["reward", "maximum", "base", "of maximum", "trained", "of maximum", "difference [95 % interval]"]
    return markdown_table(columns, rows)


def comparison_table(records: pd.DataFrame, best: str, trained_shots: int) -> str:
    """Returns Markdown: the chosen checkpoint against the base with every prompt, and what each stage gave.

    The p-values of a table are corrected for its number of rows (`holm`), and the verdict goes by them. An adapter that
    changes nothing is named last.
    """
    test = records[records.split == "test"]
    base, middle, after = (runs.BASE, trained_shots), (runs.WARM_START, trained_shots), (best, trained_shots)
    columns = ["difference [95 % interval]", "p (Holm)", "verdict"]
    prompts = sorted(test[test.checkpoint == runs.BASE].shots.unique())
    rows = [row for shots in prompts for row in _rows(records, f"{shots}-shot", (runs.BASE, int(shots)), after)]
    title = f"{best} ({trained_shots}-shot, as trained) against the base on {test.task_id.nunique()} test tasks"
    lines = [f"{title}, paired per task", ""]
    lines += markdown_table(["base prompt", "pass@1", "base", "trained", *columns], _corrected(rows))
    if runs.WARM_START in set(test.checkpoint):
        rows = _rows(records, "warm start", base, middle) + _rows(records, "GRPO", middle, after)
        lines += ["", f"What each stage gave ({trained_shots}-shot)", ""]
        lines += markdown_table(["stage", "pass@1", "before", "after", *columns], _corrected(rows))
    notes = without_effect(records)
    return "\n".join([*lines, "", *notes] if notes else lines)


def markdown_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Returns a table as lines of Markdown.

    Example:
        >>> markdown_table(["policy", "strict"], [["base", "9.2%"]])
        ['| policy | strict |', '|---|---|', '| base | 9.2% |']
    """
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *(f"| {' | '.join(row)} |" for row in rows)]


Row = tuple[list[str], Difference]


def _corrected(rows: list[Row]) -> list[list[str]]:
    """The rows of a table as cells, each with its corrected p-value and the verdict by that."""
    p_values = holm([change.p_value for _, change in rows])
    verdicts = [verdict(change.value, p_value) for (_, change), p_value in zip(rows, p_values, strict=True)]
    ends = zip(rows, p_values, verdicts, strict=True)
    return [[*cells, change.in_points(), f"{p_value:.2g}", word] for (cells, change), p_value, word in ends]


def _rows(records: pd.DataFrame, first: str, before: tuple[str, int], after: tuple[str, int]) -> list[Row]:
    """One row for each measure that both were given: sampled and greedy, by every rule of scoring, and the format."""
    rows = []
    for greedy, column in itertools.product((False, True), ("strict", "lenient", "oracle", "format")):
        old, new = (per_task(records, name, "test", shots, column, greedy) for name, shots in (before, after))
        if len(old) and len(new):
            shares = [f"{old.mean():.1%}", f"{new.mean():.1%}"]
            cells = [first, f"{column}, {'greedy' if greedy else 'sampled'}", *shares]
            rows.append((cells, paired_difference(records, after, before, "test", column, greedy)))
    return rows

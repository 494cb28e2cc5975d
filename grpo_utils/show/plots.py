"""The figures of a run, each drawn from its files alone: `grpo figures --recipe cpu-code`."""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import itertools
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from grpo_utils import evaluation, runs
from grpo_utils.evaluation import Difference, Interval, rate
from grpo_utils.runs import Recipe

# Found by a search: each colour has a contrast of 3 to a white and to a dark page, and any two stay apart for eyes with
# full colour vision, deuteranopia, protanopia and tritanopia (tests/show/test_plots.py measures both). The grey of
# text and axes has the same contrast to white as to a dark page, so that one file serves both.
BLUE, ORANGE, GREEN, RED, GREY, PURPLE = COLOURS = "#1371FA", "#D87E09", "#04715B", "#C71412", "#959593", "#A35BA8"
INK = "#7A7A7A"
INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
SPLIT_COLOURS = {"prompt": PURPLE, "train": GREY, "validation": ORANGE, "test": BLUE}
STYLE = {
    **dict.fromkeys(INKED, INK),
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "savefig.bbox": "tight",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "grid.alpha": 0.25,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "svg.hashsalt": "grpo",
}


def use_style() -> None:
    """Sets the style that all figures of the project share."""
    matplotlib.rcParams.update(STYLE)


def training_curves(log: list[runs.LogEntry], weights: dict[str, float]) -> Figure:
    """Draws what the trainer logged, step by step: rewards, length, groups without spread, entropy, clipping, KL.

    Thin lines are single steps, thick ones their running mean over seven steps: a step sees only a few tasks, so its
    reward shows above all which tasks came up. Clipping and KL have a panel where there were any.
    """
    use_style()
    frame = pd.DataFrame([entry for entry in log if "reward" in entry]).set_index("step")
    panels = {
        "reward (mean over completions)": [f"rewards/{name}/mean" for name in weights],
        "completion length (tokens)": ["completions/mean_length"],
        "cut off at the limit (share)": ["completions/clipped_ratio"],
        "groups without spread (share)": ["frac_reward_zero_std"],
        "entropy (nats per token)": ["entropy"],
        "clipped ratios (share of tokens)": ["clip_ratio/region_mean"],
        "gradient norm before clipping": ["grad_norm"],
        "KL to the start (nats per token)": ["kl"],
    }
    for quantity in ("clipped ratios (share of tokens)", "KL to the start (nats per token)"):
        (column,) = panels[quantity]
        if column not in frame or not frame[column].any():  # one gradient step per batch, or beta is 0
            del panels[quantity]
    figure, axes = plt.subplots(2, -(-len(panels) // 2), figsize=(13, 6), layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (quantity, columns) in zip(axes.flat, panels.items(), strict=False):
        axis.set(xlabel="training step", ylabel=quantity)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        for column, colour in zip(columns, itertools.cycle(COLOURS), strict=False):
            values = frame[column].astype(float)
            axis.plot(values, color=colour, alpha=0.3, linewidth=1)
            smooth, label = values.rolling(7, min_periods=1, center=True).mean(), column.removesuffix("/mean")
            axis.plot(smooth, color=colour, linewidth=2, label=label.removeprefix("rewards/"))
        axis.set_ylim(0, max(axis.get_ylim()[1], 0.01))
        if len(columns) > 1:
            axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize="small")
    return figure


def step_curves(panels: dict[str, dict[str, pd.Series]], ylabel: str = "", top: float | None = None) -> Figure:
    """Draws what was logged step by step, a panel for each title and a line for each label of it.

    Thin lines are single steps, thick ones their running mean over five, the first one thicker, so that it is seen
    below another. Panels share their height where it is given with `top`.
    """
    use_style()
    shape = {"figsize": (5 * len(panels) if top else 4 * len(panels), 3.7), "sharey": top is not None}
    figure, axes = plt.subplots(1, len(panels), layout="constrained", squeeze=False, **shape)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for (label, values), colour in zip(lines.items(), (ORANGE, BLUE, GREEN, RED), strict=False):
            axis.plot(values, color=colour, alpha=0.3, linewidth=1)
            smooth = values.rolling(5, min_periods=1, center=True).mean()
            axis.plot(smooth, color=colour, linewidth=2 if axis.get_legend_handles_labels()[0] else 5, label=label)
        axis.set(title=title, xlabel="training step", ylim=(0, top))
        axis.legend()
    axes[0, 0].set_ylabel(ylabel)
    return figure


def learning_curve(records: pd.DataFrame, trained_shots: int) -> Figure:
    """Draws strict pass@1 on validation for base, warm start and every checkpoint: sampled, and dashed greedy.

    A colour is a number of worked examples; bands are 95 % intervals over tasks.
    """
    use_style()
    figure, axis = plt.subplots(figsize=(6.6, 4.0), layout="constrained")
    kept = records[records.split == "validation"]
    names = sorted(kept.checkpoint.unique(), key=evaluation.step_of)
    prompts = sorted(kept.shots.unique(), key=lambda shots: shots != trained_shots)  # the prompt of training first
    for shots, colour, marker in zip(prompts, (BLUE, ORANGE, GREEN, RED), "osD^", strict=False):
        rows = kept[kept.shots == shots]
        for is_kind, kind, line in ((rows["sample"] >= 0, "sampled", "-"), (rows["sample"] < 0, "greedy", "--")):
            policies = _by_checkpoint(rows[is_kind])
            if not policies:
                continue
            places, points = [names.index(name) for name in policies], policies.values()
            label = f"{shots}-shot{', as trained' if shots == trained_shots else ''}, {kind}"
            heights = [point.value for point in points]
            axis.plot(places, heights, marker=marker, color=colour, linestyle=line, label=label)
            low, high = [point.low for point in points], [point.high for point in points]
            axis.fill_between(places, low, high, color=colour, alpha=0.15 if kind == "sampled" else 0.08, linewidth=0)
    count = kept.task_id.nunique()
    axis.set_xticks(range(len(names)), [_label(name) for name in names])
    axis.set(xlabel="policy", ylabel="strict pass@1 (share of completions)", ylim=(0, None))
    axis.set_title(f"Learning curve on {count} validation tasks, bands are 95 % intervals")
    axis.legend()
    return figure


def pass_at_k(curves: dict[str, dict[int, Interval]], tasks: str) -> Figure:
    """Draws pass@k over k for several policies, from `evaluation.pass_curves`; bands are 95 % intervals over tasks.

    Where curves cross, the one policy finds more in one try and the other in many (Yue et al. 2025, arXiv 2504.13837).
    `tasks` says in the title what was solved.
    """
    use_style()
    figure, axis = plt.subplots(figsize=(6.6, 4.0), layout="constrained")
    for (name, curve), colour, marker in zip(curves.items(), itertools.cycle(COLOURS), itertools.cycle("osD^v")):
        axis.plot(
            list(curve), [point.value for point in curve.values()], color=colour, marker=marker, label=_label(name)
        )
        low, high = ([getattr(point, side) for point in curve.values()] for side in ("low", "high"))
        axis.fill_between(list(curve), low, high, color=colour, alpha=0.12, linewidth=0)
    ks = sorted({k for curve in curves.values() for k in curve})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.set(xlabel="k: completions tried for a task", ylabel="pass@k (share of tasks)", ylim=(0, 1))
    axis.set_title(f"pass@k on {tasks}, bands are 95 % intervals")
    axis.legend()
    return figure


def differences(panels: dict[str, dict[str, Difference]], xlabel: str) -> Figure:
    """Draws differences as points with their 95 % intervals, a panel for each title; one that leaves 0 out is blue."""
    use_style()
    tallest = max(len(rows) for rows in panels.values())
    size = (5.5 * len(panels), 1.0 + 0.4 * tallest)
    figure, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axis, (title, rows) in zip(axes[0], panels.items(), strict=True):
        for place, change in enumerate(rows.values()):
            colour = GREY if change.low <= 0 <= change.high else BLUE
            reach = [[100 * side[0]] for side in _reach([change])]
            axis.errorbar(100 * change.value, -place, xerr=reach, fmt="o", color=colour)
        axis.axvline(0, color=INK, linewidth=1)
        axis.set_yticks([-place for place in range(len(rows))], list(rows))
        axis.set(title=title, xlabel=xlabel, ylim=(0.6 - tallest, 0.6))
    return figure


def _by_checkpoint(rows: pd.DataFrame) -> dict[str, Interval]:
    """Strict pass@1 of every policy in the rows in order of training, with its interval over tasks."""
    names = sorted(rows.checkpoint.unique(), key=evaluation.step_of)
    return {name: evaluation.mean_over_tasks(rows[rows.checkpoint == name], "strict") for name in names}


def _label(checkpoint: str) -> str:
    return {runs.WARM_START: "warm start"}.get(checkpoint, checkpoint.replace("checkpoint-", "step "))


def beside_published(published: pd.DataFrame, records: pd.DataFrame | None, trained_shots: int) -> Figure:
    """Draws a published table of checkpoints with the error bars that it lacks, and our validation curve beside it.

    Args:
        published: the columns `step`, `tasks`, `0-shot` and `3-shot`, greedy.
        records: their greedy completions count, as there. None on other tasks: the published table has all the room.
        trained_shots: worked examples in the prompt of training, the only ones drawn on our side.
    """
    use_style()
    panels = 1 if records is None else 2
    figure, axes = plt.subplots(
        1, panels, figsize=(5.5 * panels, 4.0), layout="constrained", sharey=True, squeeze=False
    )
    left = axes[0, 0]
    aside = published.step.max() / 120  # points of the two prompts stand side by side
    for column, shift, colour in (("0-shot", -aside, GREEN), ("3-shot", aside, ORANGE)):
        rows = zip(published[column], published.tasks, strict=True)
        errors = _reach([rate(_outcomes(round(share * tasks), tasks)) for share, tasks in rows])
        left.errorbar(published.step + shift, published[column], errors, fmt="o", color=colour, label=column)
    left.set(xlabel="training step (0 is the base)", ylabel="pass@1 (share of completions)", ylim=(0, None))
    left.set_title(f"Published: an 8B model, {published.tasks.iloc[0]} test tasks")
    left.legend(loc="lower right")
    if records is None:
        return figure
    right, is_greedy = axes[0, 1], records["sample"] < 0
    validation = records[(records.split == "validation") & (records.shots == trained_shots) & is_greedy]
    ours = _by_checkpoint(validation)
    heights = [point.value for point in ours.values()]
    right.errorbar(range(len(ours)), heights, _reach(ours.values()), fmt="o", color=BLUE, label=f"{trained_shots}-shot")
    right.set_xticks(range(len(ours)), [_label(name) for name in ours])
    right.set(xlabel="policy", ylabel="strict pass@1, greedy")
    right.set_title(f"This run: {validation.task_id.nunique()} validation tasks, bars are 95 % intervals")
    right.legend(loc="lower right")
    return figure


def _outcomes(passed: int, tasks: int) -> list[float]:
    return [1.0] * passed + [0.0] * (tasks - passed)


def _reach(points: Collection[Interval]) -> list[list[float]]:
    """How far intervals reach below and above their values, as matplotlib wants error bars."""
    return [[point.value - point.low for point in points], [point.high - point.value for point in points]]


def before_and_after(records: pd.DataFrame, best: str, trained_shots: int) -> Figure:
    """Draws base, warm start and trained policy on the test split: by prompt, then by grade.

    On the right the base has the prompt that suits it best, the others the prompt of their training.
    """
    use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(3, 2))
    test = records[records.split == "test"]
    sampled, greedy = test[test["sample"] >= 0], test[test["sample"] < 0]
    names = {runs.BASE: "base", runs.WARM_START: "warm start", best: "trained"}
    prompts = [(name, shots) for name in names for shots in sorted(test[test.checkpoint == name].shots.unique())]
    series = (
        (-0.27, "strict, sampled", sampled, "strict", BLUE),
        (0.0, "lenient, sampled", sampled, "lenient", ORANGE),
        (0.27, "strict, greedy", greedy, "strict", GREEN),
    )
    for offset, label, kept, column, colour in series:
        groups = [evaluation.of_policy(kept, name, "test", shots) for name, shots in prompts]
        _bars(left, groups, offset, column, colour, label)
    left.set_xticks(range(len(prompts)), [f"{names[name]}\n{shots}-shot" for name, shots in prompts])
    left.set(xlabel="policy and prompt", ylabel="pass@1 (share of completions)", ylim=(0, None))
    left.set(title=f"Test split, {test.task_id.nunique()} tasks")
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=3)
    grades = sorted(grade for grade in test.grade.dropna().unique())
    chosen = {runs.BASE: evaluation.best_prompt(records), runs.WARM_START: trained_shots, best: trained_shots}
    for (name, shots), offset, colour in zip(chosen.items(), (-0.27, 0.0, 0.27), (GREY, PURPLE, BLUE), strict=True):
        kept = evaluation.of_policy(sampled, name, "test", shots)
        if kept.empty:  # a recipe without a warm start
            continue
        groups = [kept[kept.grade == grade] for grade in grades]
        _bars(right, groups, offset, "strict", colour, f"{names[name]}, {shots}-shot")
    counts = [test.task_id[test.grade == grade].nunique() for grade in grades]
    right.set_xticks(range(len(grades)), [f"{grade:.0f}\n{n} tasks" for grade, n in zip(grades, counts, strict=True)])
    right.set(xlabel="grade, from easy to hard", ylabel="strict pass@1, sampled", ylim=(0, None), title="By grade")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=3, fontsize="small", columnspacing=0.8)
    return figure


def _bars(axis: Axes, groups: list[pd.DataFrame], offset: float, column: str, colour: str, label: str) -> None:
    """Draws a bar for each group of rows with the 95 % interval over its tasks; an empty group has none."""
    bars = {i + offset: evaluation.mean_over_tasks(rows, column) for i, rows in enumerate(groups) if len(rows)}
    heights = [point.value for point in bars.values()]
    axis.bar(list(bars), heights, 0.25, label=label, yerr=_reach(bars.values()), **_tinted(colour))


def _tinted(colour: str) -> dict[str, Any]:
    """How bars look: tinted, so that their error bars stand out of them on a white and on a dark page."""
    return {"color": to_rgba(colour, 0.5), "edgecolor": colour, "ecolor": colour, "error_kw": {"elinewidth": 1.5}}


def errors_by_kind(records: pd.DataFrame, best: str, trained_shots: int) -> Figure:
    """Draws how sampled completions on test fail, as shares of all, with 95 % intervals over tasks.

    The base has the prompt that suits it best, the policy that of its training.
    """
    use_style()
    policies = {"base": (runs.BASE, evaluation.best_prompt(records)), "trained": (best, trained_shots)}
    sampled = records[records["sample"] >= 0]
    kept = [evaluation.of_policy(sampled, name, "test", shots) for name, shots in policies.values()]
    kinds = pd.concat(kept)["error"].value_counts().drop(index="none", errors="ignore").index[::-1]
    figure, axis = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
    sides = zip(policies.items(), kept, (0.2, -0.2), (GREY, BLUE), strict=True)
    for (label, (_, shots)), rows, offset, colour in sides:
        points = [rate((rows["error"] == kind).groupby(rows.task_id).mean().tolist()) for kind in kinds]
        heights, widths = [i + offset for i in range(len(kinds))], [point.value for point in points]
        axis.barh(heights, widths, 0.38, label=f"{label}, {shots}-shot", xerr=_reach(points), **_tinted(colour))
    axis.set_yticks(range(len(kinds)), kinds)
    axis.set(xlabel="share of sampled completions", ylabel="kind of failure", title="Why completions on test fail")
    axis.legend(loc="lower right")
    return figure


def task_map(planes: dict[str, np.ndarray], labels: pd.DataFrame) -> Figure:
    """Draws tasks as points, a row of panels for each of `embedding.planes`.

    `labels` has one row per point with the columns `split`, `difficulty` (a number) and `cluster` (from 0).
    """
    use_style()
    size = (11, 3.6 * len(planes))
    figure, axes = plt.subplots(len(planes), 3, figsize=size, layout="constrained", squeeze=False)
    order = np.random.default_rng(0).permutation(len(labels))  # so that no split lies on top of the others
    labels, dots = labels.iloc[order].reset_index(drop=True), {"s": 16, "alpha": 0.8, "linewidths": 0}
    for row, (name, points) in zip(axes, planes.items(), strict=True):
        x, y = points[order].T
        for axis, title in zip(row, ("split", "difficulty", "cluster"), strict=True):
            axis.set(title=f"by {title}", xlabel=f"{name} 1", ylabel=f"{name} 2", xticks=[], yticks=[])
        row[0].scatter(x, y, c=labels.split.map(SPLIT_COLOURS), **dots)
        hard = row[1].scatter(x, y, c=labels.difficulty, cmap="viridis", **dots)
        figure.colorbar(hard, ax=row[1], ticks=MaxNLocator(integer=True), label="difficulty", shrink=0.8)
        for cluster, group in labels.groupby("cluster"):
            shape, colour = "os"[cluster // len(COLOURS) % 2], COLOURS[cluster % len(COLOURS)]
            row[2].scatter(x[group.index], y[group.index], marker=shape, color=colour, **dots)
            middle = np.median(x[group.index]), np.median(y[group.index])
            halo = [withStroke(linewidth=3, foreground="white")]
            row[2].annotate(str(cluster), middle, weight="bold", color="black", path_effects=halo)
    for split, colour in SPLIT_COLOURS.items():
        axes[-1, 0].scatter([], [], color=colour, label=split)
    figure.legend(loc="outside lower left", ncols=4, columnspacing=0.8, handletextpad=0.0)
    return figure


def save_figure(figure: Figure, run: Path, name: str) -> Path:
    """Writes a figure as PNG and SVG to `run/figures/` and returns the PNG's path."""
    folder = run / "figures"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    return folder / f"{name}.png"


CAPTIONS = {
    "before_and_after": "Base, warm start and trained policy on the test split, by prompt and by grade of the tasks.",
    "learning_curve": "Strict pass@1 on validation; the checkpoint is chosen by the sampled completions.",
    "errors_by_kind": "How sampled completions on test fail, as shares of all.",
    "training_curves": "What the trainer logged; thick lines are running means over seven steps.",
}


def draw_figures(recipe: Recipe, run: Path) -> list[Path]:
    """Draws the figures in `CAPTIONS` from the files of a finished run and returns the paths of their PNGs."""
    log = runs.read_log(runs.need_file(run / "training_log.jsonl", "04_grpo_training"))
    runs.need_file(run / "results.csv", "05_checkpoint_evaluation")
    records, shots = evaluation.chain_records(recipe, run), recipe.prompt.shots
    best = evaluation.choose_checkpoint(records, shots)
    figures = (
        before_and_after(records, best, shots),
        learning_curve(records, shots),
        errors_by_kind(records, best, shots),
        training_curves(log, recipe.weights),
    )
    return [save_figure(figure, run, name) for name, figure in zip(CAPTIONS, figures, strict=True)]


def publish_figures(figures: Sequence[Path], folder: Path, command: str) -> None:
    """Copies figures beside a `README.md` that shows them with captions and the command that made them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"# Figures of `{folder.name}`", "", "Error bars and bands are 95 % intervals over tasks."]
    for path in figures:
        for kind in (".png", ".svg"):
            shutil.copyfile(path.with_suffix(kind), folder / path.with_suffix(kind).name)
        caption = f"{CAPTIONS[path.stem]} Made by `{command}`."
        lines += ["", f"![{path.stem}]({path.stem}.svg)", "", caption]
    runs.write_file(folder / "README.md", "\n".join(lines) + "\n")

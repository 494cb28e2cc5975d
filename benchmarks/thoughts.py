"""What is a thought worth in the warm start? `python benchmarks/thoughts.py --recipe cpu-code`, about half an hour.

The same supervised steps on the same tasks, with three kinds of text in the first tag of the reference answers
(`prompt.thoughts`): none, a template (of programs the question in other words, of sums one sentence for all), and each
task's own. Then the validation tasks, greedy and eight times at temperature 0.7. Three seeds of the training; intervals
are over seeds and tasks. Writes `benchmarks/results/<recipe>-thoughts.md`; what is measured already is kept.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from grpo_utils import evaluation, runs, training
from grpo_utils.runs import commands

RESULTS = Path(__file__).parent / "results"
ARMS = ("none", "template", "own")
SEEDS = (0, 1, 2)


def measured(recipe: runs.Recipe) -> pd.DataFrame:
    """Returns the records of the recipe's warm start on validation, trained and measured now unless they are there."""
    run = runs.start_run(recipe)
    training.warm_start(recipe, run)
    evaluation.sweep(recipe, run, [runs.WARM_START], "validation")
    return evaluation.load_records(run)


def scores(records: pd.DataFrame) -> pd.DataFrame:
    """Returns what is compared, by task: greedy, the samples' mean, whether one of them passes, format, length."""
    greedy, sampled = records[records["sample"] < 0].set_index("task_id"), records[records["sample"] >= 0]
    by_task = sampled.groupby("task_id")
    columns = {
        "greedy": greedy["strict"].astype(float),
        "T = 0.7, pass@1": by_task["strict"].mean().astype(float),
        "pass@8": by_task["strict"].max().astype(float),
        "format": by_task["format"].mean().astype(float),
        "tokens": by_task["tokens"].mean(),
    }
    return pd.DataFrame(columns)


def main() -> None:
    """Trains, measures and writes the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    parser.add_argument("--tasks", type=int, help="so many of the validation tasks, where time is short")
    arguments = parser.parse_args()
    name, fewer = arguments.recipe, {"dataset.limits.validation": arguments.tasks} if arguments.tasks else {}
    plain = runs.load_recipe(name, fewer)
    found: dict[str, list[pd.DataFrame]] = {arm: [] for arm in ARMS}
    for seed in SEEDS:
        for arm in ARMS:
            sampled = {"evaluation.temperature": 0.7, "evaluation.samples.validation": {plain.prompt.shots: 8}}
            own = {"prompt.thoughts": arm, "seed": seed, "name": f"{name}-thoughts-{arm}-{seed}"}
            found[arm].append(scores(measured(runs.load_recipe(name, fewer | sampled | own))))
    steps, count = (plain.warm_start or {})["max_steps"], len(found["own"][0])
    lines = [
        f"`python benchmarks/thoughts.py {' '.join(sys.argv[1:])}`: {steps} supervised steps on answers with no "
        f"thought, a template, and a thought of each task's own; {count} validation tasks, {len(SEEDS)} seeds; points, "
        "intervals over seeds and tasks.",
        "",
        f"| score | {' | '.join(ARMS)} | own - none | own - template | template - none |",
        "|---|---|---|---|---|---|---|",
    ]
    for score in found["own"][0]:
        table = {arm: [seed[score].tolist() for seed in found[arm]] for arm in ARMS}
        means = {arm: sum(map(sum, rows)) / count / len(SEEDS) for arm, rows in table.items()}
        if score == "tokens":
            lines.append(f"| tokens | {' | '.join(f'{mean:.0f}' for mean in means.values())} | | | |")
            continue
        pairs = (("own", "none"), ("own", "template"), ("template", "none"))
        changes = [(np.array(table[after]) - np.array(table[before])).tolist() for after, before in pairs]
        cells = [f"{100 * mean:.1f}" for mean in means.values()]
        cells += [evaluation.across_seeds(change).in_points() for change in changes]
        lines.append(f"| {score} | {' | '.join(cells)} |")
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS / f"{name}-thoughts.md", "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    commands.run_command(main)

"""Which settings train best? `python benchmarks/configurations.py "all layers"`, about 15 minutes a row, one at a time.

Every row is one training that differs from `PLAIN` in what its name says: a warm start, the gate of chapter 3, GRPO,
and the last checkpoint on the validation tasks, greedy and eight times at temperature 0.7. One seed each, so a row
decides nothing alone; the test split is not read. A row is appended to
`benchmarks/results/configurations.jsonl` when its run ends, beside a figure of its curves, and `configurations.md` is
written from all of them. A run that was stopped goes on where it was.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import argparse
import datetime
import json
import shutil
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from grpo_utils import evaluation, policy, runs, training
from grpo_utils.runs import commands
from grpo_utils.show import panel, plots

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "configurations.jsonl"
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PLAIN = {  # of cpu-code: more steps than its chain has time for, and harder tasks to practise on
    "dataset.max_grade": 3,
    "grpo.max_steps": 40,
    "grpo.save_steps": 40,
    "grpo.learning_rate": 1.5e-4,
    "grpo.lr_scheduler_type": "linear",
}
ALL_LAYERS = {"lora.target_modules": SEVEN, "lora.layers_to_transform": None, "warm_start.learning_rate": 5e-4}
GRADED = {"tests_graded": 1.0, "strict_format": 0.25}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("four matrices in the upper half of the layers, as in the recipe", {}),
    "80 steps": ("twice as many, to see whether it stands them", {"grpo.max_steps": 80}),
    "all layers": ("where the adapter lies decides what can be learned", ALL_LAYERS),
    "low rate": ("learning rates of 3e-4 were seen to spend the entropy early", {"grpo.learning_rate": 5e-5}),
    "high rate": ("the recipe's own, which 16 steps stand", {"grpo.learning_rate": 3e-4}),
    "groups of 16": (
        "rare successes are in more groups; half as many prompts",
        {"grpo.num_generations": 16, "grpo.per_device_train_batch_size": 16, "grpo.gradient_accumulation_steps": 2},
    ),
    "not divided by std": ("Dr. GRPO, arXiv 2503.20783: all groups weigh alike", {"grpo.scale_rewards": "none"}),
    "T = 0.8": ("more of the samples pass, fewer are new", {"grpo.temperature": 0.8}),
    "graded tests": ("a share of the asserts is worth something", {"rewards": GRADED}),
}  # fmt: skip


def measured(name: str) -> dict[str, Any]:
    """Trains and measures one configuration, unless that is done, and returns its row."""
    why, own = CONFIGURATIONS[name]
    folder = f"configuration-{name.replace(' ', '-').replace('=', '').replace('.', '-')}"
    recipe = runs.load_recipe("cpu-code", PLAIN | own | {"name": folder})
    is_same = not any(key.startswith(("lora", "warm_start")) for key in own)
    run = begin(recipe, runs.outputs_folder() / "configuration-plain") if is_same else runs.start_run(recipe)
    training.warm_start(recipe, run)
    gate = evaluation.gate(recipe, run)
    print(gate, flush=True)
    last = training.train(recipe, run, on_log=panel.Panel())[-1].name
    before, after = (scores(evaluation.gate_records(recipe, run, name)) for name in (recipe.start, last))
    log = [entry for entry in runs.read_log(run / "training_log.jsonl") if "reward" in entry]
    plots.training_curves(log, recipe.weights).savefig(RESULTS / f"{folder}.svg", metadata={"Date": None})
    late = log[-len(log) // 4 :]
    return {
        "name": name,
        "why": why,
        "settings": own,
        "steps": recipe.grpo["max_steps"],
        "seconds a step": round(median(entry["step_time"] for entry in log), 1),
        "tasks": len(before),
        "mixed groups forecast": round(gate.mixed.value, 3),
        **{score: compared(before[score], after[score]) for score in before},
        "entropy": round(fmean(entry["entropy"] for entry in late), 3),
        "groups without spread": round(fmean(entry["frac_reward_zero_std"] for entry in late), 3),
        "date": datetime.date.today().isoformat(),
        "commit": runs.read_json(run / "environment.json")["commit"][:7],
        "processor": runs.processor(),
    }


def begin(recipe: runs.Recipe, source: Path) -> Path:
    """Returns the run's folder, which begins with the warm start of another run and its records, if it is new."""
    run, made = runs.start_run(recipe), source / "checkpoints" / runs.WARM_START
    folder = run / "checkpoints" / runs.WARM_START
    if made.exists() and not folder.exists():  # it has its name when all else is there: a kill may come anywhere
        for path in (source / "checkpoints" / policy.MADE_WITH, *source.glob(f"evaluations/{runs.WARM_START}.*.json")):
            (run / path.parent.name).mkdir(exist_ok=True)
            shutil.copy(path, run / path.parent.name)
        partial = folder.with_name(f"{runs.WARM_START}.partial")
        shutil.copytree(made, partial, dirs_exist_ok=True)
        partial.rename(folder)
    return run


def scores(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns what is compared, by validation task: greedy, the samples' mean, and whether one of eight passes."""
    greedy, sampled = rows[rows["sample"] < 0].set_index("task_id"), rows[rows["sample"] >= 0].groupby("task_id")
    columns = {"greedy": greedy["strict"], "sampled": sampled["strict"].mean(), "pass@8": sampled["strict"].max()}
    return pd.DataFrame(columns).astype(float)


def compared(before: pd.Series, after: pd.Series) -> dict[str, Any]:
    """Returns both means and the paired difference, in points."""
    change = evaluation.difference((after - before).tolist())
    means = {"before": round(100 * before.mean(), 1), "after": round(100 * after.mean(), 1)}
    return means | {"change": change.in_points(), "p": round(change.p_value, 4)}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the page: a row for each training, the same question of each, one question after the other."""
    head = ["row", "steps", "s a step", "greedy", "T = 0.7", "pass@8", "entropy", "no spread"]
    lines = [
        f"`python benchmarks/configurations.py NAME`: cpu-code with {json.dumps(PLAIN)}, and what a row changes. From "
        f"the warm start to the last step on {rows[0]['tasks']} validation tasks, greedy and 8 samples at T = 0.7; "
        "points, the change with a 95 % interval paired over tasks, each for itself. One seed a row. Entropy and the "
        "share of groups without spread are of the last quarter of the steps.",
        "",
        f"| {' | '.join(head)} |",
        "|---|" + "---|" * (len(head) - 1),
    ]
    for row in rows:
        cells = [row["name"], row["steps"], row["seconds a step"]]
        cells += [
            "{before:.1f} to {after:.1f}: {change}".format(**row[score]) for score in ("greedy", "sampled", "pass@8")
        ]
        lines.append(f"| {' | '.join(map(str, [*cells, row['entropy'], row['groups without spread']]))} |")
    lines += ["", "Why, when and where:", ""]
    lines += [f"- *{row['name']}*: {row['why']}. {row['date']}, {row['commit']}, {row['processor']}." for row in rows]
    missing = [name for name in CONFIGURATIONS if name not in {row["name"] for row in rows}]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains one configuration, appends its row and writes the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("name", choices=CONFIGURATIONS)
    name = parser.parse_args().name
    rows = runs.read_log(ROWS) if ROWS.is_file() else []
    rows = [row for row in rows if row["name"] != name] + [measured(name)]
    runs.write_file(ROWS, "".join(json.dumps(row) + "\n" for row in rows))
    runs.write_file(RESULTS / "configurations.md", table(rows))
    print(table(rows))


if __name__ == "__main__":
    commands.run_command(main)

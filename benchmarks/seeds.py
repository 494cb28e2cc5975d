"""Does the result depend on the training seed? `python benchmarks/seeds.py --seeds 0 1 2`, about 15 minutes a seed.

Needs a finished `make reproduce`, whose measurements of the base policy it shares. Every seed trains its own warm start
and policy, chooses its own checkpoint on validation, and reads the test split once, prompted as trained. What a seed
gained on every task is kept in `benchmarks/results/<recipe>-seeds.json`, so that seeds can be added one at a time, on
other machines too, and `<recipe>-seeds.md` is written from that.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from grpo_utils import evaluation, runs, training
from grpo_utils.evaluation import across_seeds, difference
from grpo_utils.runs import commands

RESULTS = Path(__file__).parent / "results"
FEWEST = 3  # of seeds, for an interval over them


def measured(name: str, seed: int) -> tuple[runs.Recipe, Path]:
    """Trains and measures one seed unless that is done, and returns its recipe and its run's folder."""
    recipe = runs.load_recipe(name)
    finished = runs.outputs_folder() / recipe.name
    runs.need_file(finished / "results.csv", "05_checkpoint_evaluation")
    if seed == recipe.seed:
        return recipe, finished
    samples = {split: dict(plan) for split, plan in recipe.evaluation.samples.items()}
    samples["validation"] = {recipe.prompt.shots: samples["validation"][recipe.prompt.shots]}
    recipe = runs.load_recipe(name, {"seed": seed, "name": f"{recipe.name}-seed-{seed}", "evaluation.samples": samples})
    run = runs.start_run(recipe)
    (run / "evaluations").mkdir(exist_ok=True)
    for record in finished.glob("evaluations/base.*.json"):
        shutil.copy(record, run / "evaluations")
    training.warm_start(recipe, run)
    if recipe.dataset.pass_rate:
        evaluation.sweep(recipe, run, [recipe.start], "train")
    training.train(recipe, run)
    evaluation.sweep(recipe, run, [folder.name for folder in runs.checkpoints(run)], "validation")
    best = evaluation.choose_checkpoint(evaluation.load_records(run), recipe.prompt.shots)
    warm_start = [runs.WARM_START] if recipe.warm_start else []
    evaluation.sweep(recipe, run, [*warm_start, best], "test", [recipe.prompt.shots])
    return recipe, run


def changes(recipe: runs.Recipe, run: Path) -> dict[str, Any]:
    """Returns the chosen checkpoint and, by column of the table, what every test task gained."""
    records, shots = evaluation.load_records(run), recipe.prompt.shots
    best = evaluation.choose_checkpoint(records, shots)
    start, after = (runs.WARM_START, shots), (best, shots)

    def gained(before: tuple[str, int], score: str, greedy: bool) -> list[float]:
        new, old = (evaluation.per_task(records, name, "test", n, score, greedy) for name, n in (after, before))
        return (new - old).tolist()

    gains = {"all, sampled": gained((runs.BASE, evaluation.best_prompt(records)), "strict", False)}
    if recipe.warm_start:
        gains["GRPO, sampled"] = gained(start, "strict", False)
        gains["GRPO, greedy"] = gained(start, "strict", True)
        gains["GRPO, greedy, lenient"] = gained(start, "lenient", True)
    return {"chosen": best, "processor": runs.processor(), "gains": gains}


def page(name: str, kept: dict[str, Any]) -> str:
    """Returns one row per seed, and the mean over three seeds or more with an interval over seeds and tasks."""
    columns = list(next(iter(kept.values()))["gains"])
    lines = [
        f"`python benchmarks/seeds.py --recipe {name} --seeds {' '.join(kept)}`. Gains in pass@1 on test, strict but "
        "where a column says lenient, in points with 95 % intervals, over tasks for each seed and over seeds and tasks "
        "for all. *GRPO* compares with the warm start, *all* with the base and its best prompt. Each column asks one "
        "question, which the interval over all seeds decides: where it holds 0, or is still open, it is undecided.",
        "",
        f"| seed | chosen | {' | '.join(columns)} |",
        "|---|---|" + "---|" * len(columns),
    ]
    for seed, row in kept.items():
        cells = [difference(row["gains"][column]).in_points() for column in columns]
        lines.append(f"| {seed} | {row['chosen']} | {' | '.join(cells)} |")
    if len(kept) >= FEWEST:
        over_all = [across_seeds([row["gains"][column] for row in kept.values()]).in_points() for column in columns]
        lines.append(f"| all | | {' | '.join(over_all)} |")
    else:
        lines += ["", f"Open: an interval over seeds takes {FEWEST}."]
    where = sorted({row["processor"] for row in kept.values()})
    return "\n".join([*lines, "", f"On {', '.join(where)}."]) + "\n"


def main() -> None:
    """Trains and measures the seeds that are not kept yet, and writes the page after each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help=f"in all at least {FEWEST}")
    arguments = parser.parse_args()
    name = runs.load_recipe(arguments.recipe).name
    path = RESULTS / f"{name}-seeds.json"
    kept = runs.read_json(path) if path.is_file() else {}
    for seed in map(str, arguments.seeds):
        if seed not in kept:
            kept[seed] = changes(*measured(arguments.recipe, int(seed)))
            kept = dict(sorted(kept.items(), key=lambda item: int(item[0])))
            runs.write_file(path, json.dumps(kept) + "\n")
            runs.write_file(path.with_suffix(".md"), page(arguments.recipe, kept))
    print(page(arguments.recipe, kept))


if __name__ == "__main__":
    commands.run_command(main)

"""Does the result depend on the training seed? `python benchmarks/seeds.py --seeds 0 1 2`, about 12 minutes a seed.

Needs a finished `make reproduce`, whose measurements of the base policy it shares. Every seed trains its own policy,
chooses its own checkpoint on validation, and reads the test split once, prompted as trained.
"""

import argparse
import shutil

import numpy as np

from grpo_utils import commands, evaluation, recipes, results, runs, training
from grpo_utils.statistics import bootstrap_mean


def run_seed(name: str, seed: int) -> tuple[str, list[float]]:
    """Trains and measures one seed; returns the chosen checkpoint and the per-task gains in strict pass@1 on test."""
    recipe = recipes.load(name)
    finished = runs.outputs() / name
    runs.need(finished / "results.csv", "05_checkpoint_evaluation")
    run, shots = finished, recipe.prompt.shots
    if seed != recipe.seed:
        samples = {split: {shots: plan[shots]} for split, plan in recipe.evaluation.samples.items()}
        overrides = {"seed": seed, "name": f"{name}-seed-{seed}", "evaluation.samples": samples}
        recipe = recipes.load(name, overrides)
        run = runs.start(recipe)
        (run / "evaluations").mkdir(exist_ok=True)
        for record in finished.glob(f"evaluations/base.*.{shots}shot.json"):
            shutil.copy(record, run / "evaluations")
        names = [folder.name for folder in training.train(recipe, run)]
        evaluation.sweep(recipe, run, names, "validation")
        evaluation.sweep(recipe, run, [results.choose(results.load_records(run), shots)], "test")
    records = results.load_records(run)
    best = results.choose(records, shots)
    gain = results.per_task(records, best, "test", shots, "strict", False)
    return best, (gain - results.per_task(records, results.BASE, "test", shots, "strict", False)).tolist()


def main() -> None:
    """Prints one row per seed, and the mean over seeds with its range."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    gains = []
    print("| seed | chosen | gain in strict pass@1 on test [95 % interval] |\n|---|---|---|", flush=True)
    for seed in arguments.seeds:
        best, per_task = run_seed(arguments.recipe, seed)
        change = bootstrap_mean(per_task)
        gains.append(change.value)
        print(f"| {seed} | {best} | {100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}] |")
    low, high = 100 * min(gains), 100 * max(gains)
    print(f"\nmean of {len(gains)} seeds {100 * np.mean(gains):+.1f} points, from {low:+.1f} to {high:+.1f}")


if __name__ == "__main__":
    commands.run(main)

"""Does the result depend on the training seed? `python benchmarks/seeds.py --seeds 0 1 2`, about 15 minutes a seed.

Needs a finished `make reproduce`, whose measurements of the base policy it shares. Every seed trains its own warm start
and policy, chooses its own checkpoint on validation, and reads the test split once, prompted as trained. Writes
`benchmarks/results/<recipe>-seeds.md`.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np

from grpo_utils import commands, evaluation, recipes, results, runs, training

RESULTS = Path(__file__).parent / "results"


def measured(name: str, seed: int) -> tuple[recipes.Recipe, Path]:
    """Trains and measures one seed unless that is done, and returns its recipe and its run's folder."""
    recipe = recipes.load(name)
    finished = runs.outputs() / recipe.name
    runs.need(finished / "results.csv", "05_checkpoint_evaluation")
    if seed == recipe.seed:
        return recipe, finished
    samples = {split: dict(plan) for split, plan in recipe.evaluation.samples.items()}
    samples["validation"] = {recipe.prompt.shots: samples["validation"][recipe.prompt.shots]}
    recipe = recipes.load(name, {"seed": seed, "name": f"{recipe.name}-seed-{seed}", "evaluation.samples": samples})
    run = runs.start(recipe)
    (run / "evaluations").mkdir(exist_ok=True)
    for record in finished.glob("evaluations/base.*.json"):
        shutil.copy(record, run / "evaluations")
    training.train(recipe, run)
    evaluation.sweep(recipe, run, [folder.name for folder in runs.checkpoints(run)], "validation")
    best = results.choose(results.load_records(run), recipe.prompt.shots)
    warm_start = [results.WARM_START] if recipe.warm_start else []
    evaluation.sweep(recipe, run, [*warm_start, best], "test", [recipe.prompt.shots])
    return recipe, run


def main() -> None:
    """Prints one row per seed, and the mean over seeds with its range."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    lines = [
        f"Strict sampled pass@1 on test, in points, with 95 % intervals: `python benchmarks/seeds.py --recipe "
        f"{arguments.recipe} --seeds {' '.join(map(str, arguments.seeds))}`\n",
        "| seed | chosen | trained | against the base's best prompt | of which GRPO, after the warm start |",
        "|---|---|---|---|---|",
    ]
    gains: dict[str, list[float]] = {"against the base": [], "of GRPO": []}
    for seed in arguments.seeds:
        recipe, run = measured(arguments.recipe, seed)
        records, shots = results.load_records(run), recipe.prompt.shots
        after = (results.choose(records, shots), shots)
        befores = [(results.BASE, results.best_prompt(records)), (results.WARM_START, shots)]
        changes = [
            results.difference(records, after, before, "test")[0] for before in befores[: 1 + bool(recipe.warm_start)]
        ]
        for values, change in zip(gains.values(), changes, strict=False):
            values.append(100 * change.value)
        cells = [f"{100 * c.value:+.1f} [{100 * c.low:+.1f}, {100 * c.high:+.1f}]" for c in changes]
        trained = results.per_task(records, after[0], "test", shots, "strict", greedy=False).mean()
        lines.append(f"| {seed} | {after[0]} | {trained:.1%} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    for label, values in gains.items():
        if values:
            lines.append(f"\nMean {label}: {np.mean(values):+.1f}, from {min(values):+.1f} to {max(values):+.1f}.")
    print("\n".join(lines))
    runs.write(RESULTS / f"{arguments.recipe}-seeds.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    commands.run(main)

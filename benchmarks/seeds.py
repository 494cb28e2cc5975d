"""Does the result depend on the training seed? `python benchmarks/seeds.py --seeds 0 1 2`, about 15 minutes a seed.

Needs a finished `make reproduce`, whose measurements of the base policy it shares. Every seed trains its own warm start
and policy, chooses its own checkpoint on validation, and reads the test split once, prompted as trained. Writes
`benchmarks/results/<recipe>-seeds.md`.
"""

import argparse
import shutil
from pathlib import Path

from grpo_utils import evaluation, runs, training
from grpo_utils.evaluation import across_seeds, difference
from grpo_utils.runs import commands

RESULTS = Path(__file__).parent / "results"


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


def changes(recipe: runs.Recipe, run: Path) -> tuple[str, dict[str, list[float]]]:
    """Returns the chosen checkpoint, and its gains in strict sampled pass@1 per test task: in all, and GRPO's share."""
    records, shots = evaluation.load_records(run), recipe.prompt.shots
    best = evaluation.choose_checkpoint(records, shots)
    before = {"against the base's best prompt": (runs.BASE, evaluation.best_prompt(records))}
    if recipe.warm_start:
        before["of which GRPO, after the warm start"] = (runs.WARM_START, shots)
    after = evaluation.per_task(records, best, "test", shots, "strict", greedy=False)
    gains = {}
    for label, (name, number) in before.items():
        gains[label] = (after - evaluation.per_task(records, name, "test", number, "strict", greedy=False)).tolist()
    return best, gains


def main() -> None:
    """Prints one row per seed, and the mean over seeds with an interval over seeds and tasks."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="at least three")
    arguments = parser.parse_args()
    if len(set(arguments.seeds)) < max(3, len(arguments.seeds)):
        parser.error("--seeds needs at least three different seeds")
    rows, gains = [], {}
    for seed in arguments.seeds:
        best, found = changes(*measured(arguments.recipe, seed))
        for label, per_task in found.items():
            gains.setdefault(label, []).append(per_task)
        rows.append(f"| {seed} | {best} | {' | '.join(difference(each).in_points() for each in found.values())} |")
        print(rows[-1], flush=True)
    over_all = " | ".join(across_seeds(each).in_points() for each in gains.values())
    seeds = " ".join(map(str, arguments.seeds))
    lines = [
        "Gain in strict sampled pass@1 on test, in points with 95 % intervals, over tasks for each seed and over seeds "
        "and tasks for all. Each column asks one question, which its last interval decides: where it holds 0, it is "
        f"undecided. `python benchmarks/seeds.py --recipe {arguments.recipe} --seeds {seeds}`",
        "",
        f"| seed | chosen | {' | '.join(gains)} |",
        "|---|---|" + "---|" * len(gains),
        *rows,
        f"| all | | {over_all} |",
    ]
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS / f"{runs.load_recipe(arguments.recipe).name}-seeds.md", "\n".join(lines) + "\n")
    print("", *lines, sep="\n")


if __name__ == "__main__":
    commands.run_command(main)

"""What is the last line of a system prompt worth? `python benchmarks/prompts.py --recipe cpu-math`, about 5 minutes.

The base policy answers the validation tasks under the recipe's system prompt and under the same prompt without its
last line, and is compared task by task. The GSM8K walkthrough whose prompt `cpu-math` has ("LLM Reinforcement Learning
with GRPO", March 2025) added such a line and found it "especially effective" for an 8B base, without a number. Writes
`benchmarks/results/<recipe>-prompts.md`.
"""

import argparse
from pathlib import Path

import pandas as pd

from grpo_utils import evaluation, runs
from grpo_utils.runs import commands

RESULTS = Path(__file__).parent / "results"
SHORT = "base, shorter prompt"


def measured(recipe: runs.Recipe) -> pd.DataFrame:
    """Returns the records of the base on validation, measured now unless they are there."""
    run = runs.start_run(recipe)
    evaluation.sweep(recipe, run, [runs.BASE], "validation")
    records = evaluation.load_records(run)
    return records.loc[(records.checkpoint == runs.BASE) & (records.split == "validation")]


def main() -> None:
    """Measures both prompts and writes the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-math")
    arguments = parser.parse_args()
    recipe = runs.load_recipe(arguments.recipe)
    shorter, _, line = recipe.prompt.system.rstrip().rpartition("\n")
    name = f"{recipe.name}-shorter-prompt"
    without = measured(runs.load_recipe(arguments.recipe, {"prompt.system": shorter, "name": name}))
    records = pd.concat([measured(recipe), without.assign(checkpoint=SHORT)])
    lines = [
        f"`python benchmarks/prompts.py --recipe {recipe.name}`: the base on {records.task_id.nunique()} validation "
        f'tasks, with and without the last line of the system prompt, "{line}"; greedy completions, points. '
        "The p-values are corrected for the number of rows (Holm), and the verdicts go by them.",
        "",
        "| shots | score | without | with | difference [95 % interval] | p (Holm) | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    rows, gains = [], []
    for shots in sorted(set(records.shots)):
        for score in ("strict", "lenient", "format"):
            before, after = (SHORT, shots), (runs.BASE, shots)
            gains.append(evaluation.paired_difference(records, after, before, "validation", score, greedy=True))
            means = [
                100 * evaluation.per_task(records, policy, "validation", shots, score, greedy=True).mean()
                for policy in (SHORT, runs.BASE)
            ]
            rows.append(f"| {shots} | {score} | {means[0]:.1f} | {means[1]:.1f} | {gains[-1].in_points()} |")
    corrected = evaluation.holm([gain.p_value for gain in gains])
    for row, gain, p_value in zip(rows, gains, corrected, strict=True):
        lines.append(f"{row} {p_value:.2g} | {evaluation.verdict(gain.value, p_value)} |")
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS / f"{recipe.name}-prompts.md", "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    commands.run_command(main)

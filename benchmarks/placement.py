"""Where should the adapter lie? `python benchmarks/placement.py`, about three minutes an arm on two CPU cores.

The warm start of cpu-code with its adapter on four matrices in the upper half of the layers, which the recipe has for
speed, and on all seven of all layers, at two learning rates. Then the validation tasks, greedy and eight times at
temperature 0.7. One seed; intervals are over tasks, paired. Writes `benchmarks/results/cpu-code-placement.md`; what is
measured already is kept.
"""

from typing import Any

from configurations import ALL_LAYERS
from thoughts import RESULTS, measured, scores

from grpo_utils import evaluation, runs
from grpo_utils.runs import commands

ARMS: dict[str, dict[str, Any]] = {
    "upper half": {},
    "all layers, 1e-3": ALL_LAYERS | {"warm_start.learning_rate": 1e-3},
    "all layers, 5e-4": ALL_LAYERS,
}


def main() -> None:
    """Trains, measures and writes the table."""
    sampled = {"evaluation.temperature": 0.7, "evaluation.samples.validation": {0: 8}}
    found = {}
    for arm, own in ARMS.items():
        name = f"placement-{arm.replace(' ', '-').replace(',', '')}"
        found[arm] = scores(measured(runs.load_recipe("cpu-code", sampled | own | {"name": name})))
    (first, base), *others = found.items()
    lines = [
        f"`python benchmarks/placement.py`: the warm start of cpu-code (16 supervised steps), its adapter on four "
        f"matrices in the upper half of the layers, or on seven of all; {len(base)} validation tasks, one seed; in "
        "points, with 95 % intervals paired over tasks, verdicts by Holm's correction over a row.",
        "",
        f"| score | {' | '.join(found)} | {' | '.join(f'{arm} - {first}' for arm, _ in others)} |",
        "|---|" + "---|" * (len(found) + len(others)),
    ]
    for score in ("greedy", "T = 0.7, pass@1", "pass@8", "format"):
        changes = [evaluation.difference((table[score] - base[score]).tolist()) for _, table in others]
        p_values = evaluation.holm([change.p_value for change in changes])
        cells = [f"{100 * table[score].mean():.1f}" for table in found.values()]
        cells += [
            f"{change.in_points()}, {evaluation.verdict(change.value, p_value)}"
            for change, p_value in zip(changes, p_values, strict=True)
        ]
        lines.append(f"| {score} | {' | '.join(cells)} |")
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS / "cpu-code-placement.md", "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    commands.run_command(main)

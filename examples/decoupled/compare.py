"""Does a vLLM server beside the trainer give the same learning, and how fast? `python examples/decoupled/compare.py`

Trains recipe `cpu-code` twice from one warm start, with generation in the trainer and with the server, and compares
them step by step: both are given the same tasks in the same order. Needs the environment of
`requirements/cpu-vllm.lock` and the measurements of a finished `make reproduce`. Writes
`benchmarks/results/decoupled.md`; 16 steps take about 20 minutes on two cores.
"""

import argparse
import functools
import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import Any

import server
from scipy import stats

from grpo_utils import runs, training
from grpo_utils.evaluation import Interval
from grpo_utils.runs import commands

RESULTS = runs.ROOT / "benchmarks" / "results"
LEARNED_FROM = {"reward": "reward", "tests": "rewards/tests/mean", "strict format": "rewards/strict_format/mean"}
GENERATING = {"seconds": 0.0}


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which adds the seconds that it takes to `GENERATING`."""

    @functools.wraps(function)
    def measured(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args)
        finally:
            GENERATING["seconds"] += time.perf_counter() - began

    return measured


def trained(name: str, steps: int, decoupled: bool, record: Path, warm_start: Path | None) -> list[dict[str, Any]]:
    """Trains one of the two from the beginning, with or without the adapter of another run; returns its log.

    Args:
        name: of the run.
        steps: how many.
        decoupled: with the server.
        record: how often the start of GRPO solves each training task.
        warm_start: a run's folder of checkpoints, whose warm start this run takes over.
    """
    recipe = runs.load_recipe("cpu-code", {"name": name, "grpo.max_steps": steps, "grpo.save_steps": steps})
    run = runs.outputs_folder() / name
    shutil.rmtree(run, ignore_errors=True)
    runs.start_run(recipe)
    (run / "evaluations").mkdir()
    shutil.copy(record, run / "evaluations")
    if warm_start:
        shutil.copytree(warm_start, run / "checkpoints", ignore=shutil.ignore_patterns("checkpoint-*", "completions"))
    entries: list[dict[str, Any]] = []

    def on_log(entry: dict[str, Any]) -> None:
        if "reward" in entry:
            entries.append(entry | {"generating": GENERATING["seconds"]})
            GENERATING["seconds"] = 0.0
            print(f"{name} {entry['step']}: reward {entry['reward']:.3f}, {entry['step_time']:.1f} s", flush=True)

    beside = functools.partial(server.VllmServer, recipe, run / "vllm.log") if decoupled else nullcontext
    training.train(recipe, run, on_log, beside)
    return entries


def table(coupled: list[dict[str, Any]], decoupled: list[dict[str, Any]]) -> list[str]:
    """The comparison as lines of Markdown."""
    lines = ["| mean over steps | coupled | decoupled | paired difference |", "|---|---|---|---|"]
    for label, key in LEARNED_FROM.items():
        before, after = ([entry[key] for entry in log] for log in (coupled, decoupled))
        low, high = stats.ttest_rel(after, before).confidence_interval()
        change = Interval(fmean(after) - fmean(before), float(low), float(high))
        lines.append(f"| {label} | {fmean(before):.3f} | {fmean(after):.3f} | {change} |")
    for label, key in (("seconds a step", "step_time"), ("of which generating", "generating")):
        before, after = ([entry[key] for entry in log] for log in (coupled, decoupled))
        ratio = median(a / b for a, b in zip(before, after, strict=True))
        lines.append(f"| {label} | {fmean(before):.1f} | {fmean(after):.1f} | {ratio:.2f} times as fast |")
    return lines


def noise(*logs: list[dict[str, Any]], completions: int) -> float:
    """Standard error of the difference between two runs' mean rewards, had both the same policy at every step.

    An upper bound: TRL's `reward_std` is taken over all completions of a step, and both runs share its tasks.
    """
    variances = [entry["reward_std"] ** 2 / completions for log in logs for entry in log]
    return math.sqrt(sum(variances)) / len(logs[0])


def main() -> None:
    """Prints and writes the comparison."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--steps", type=int, default=16)
    steps = parser.parse_args().steps
    record = runs.record_path(runs.outputs_folder() / "cpu-code", runs.WARM_START, "train", 0)
    runs.need_file(record, "03_reward_design")
    server.need_vllm()
    training.grpo.coupled = timed(training.coupled)
    server.VllmServer.rollouts = timed(server.VllmServer.rollouts)
    server.VllmServer.sync_weights = timed(server.VllmServer.sync_weights)
    decoupled = trained("decoupled", steps, True, record, None)
    coupled = trained("coupled", steps, False, record, runs.outputs_folder() / "decoupled" / "checkpoints")
    grpo = runs.load_recipe("cpu-code").grpo
    error = noise(
        coupled, decoupled, completions=grpo["per_device_train_batch_size"] * grpo["gradient_accumulation_steps"]
    )
    ratios = [entry["sampling/importance_sampling_ratio/mean"] for entry in decoupled]
    lines = [
        f"Recipe `cpu-code`, {steps} steps from the same warm start on the same tasks, with generation in the trainer "
        "(coupled) and by a vLLM server on the same cores (decoupled). Differences with 95 % t intervals over steps; "
        f"speed as the median of the steps' ratios. `python examples/decoupled/compare.py --steps {steps}`",
        "",
        *table(coupled, decoupled),
        "",
        f"The sampling of completions alone gives the difference in reward a standard error of at most {error:.3f}. "
        f"Importance-sampling ratio of the decoupled run: {min(ratios):.3f} to {max(ratios):.3f} (means of steps).",
    ]
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS / "decoupled.md", "\n".join(lines) + "\n")
    print("", *lines, sep="\n")


if __name__ == "__main__":
    commands.run_command(main)

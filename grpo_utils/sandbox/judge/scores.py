"""How the asserts of one check went, and the verdict that follows from it."""

import itertools
import os
import signal
from dataclasses import dataclass, field
from typing import Any

from ..jail.codec import NotPlain
from ..jail.protocol import EXITED, MAX_MESSAGE, MAX_STDOUT
from ..verdict import Status, Verdict
from .session import Ended, Report, Stop, Unsupported

GONE = "gone"  # stands for "timeout" or "crash" until the report of the candidate's process is there


class CandidateError(Exception):
    """The candidate raised; the name of its exception and the text are whatever it chose to send."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(message)
        self.of_the_candidate = (type_name, message)


@dataclass
class Tally:
    """What running the tests told: most of a `Verdict`."""

    outcomes: list[str] = field(default_factory=list)  # the status of every assert, or `GONE`
    error_type: str = ""
    error_message: str = ""
    unsupported: str = ""  # why the tests cannot be judged
    timed_out: bool = False  # the candidate's process is to be ended at once
    decided_by_candidate: bool = False

    def add(self, error: BaseException | None, source: str = "") -> None:
        """Note how an assert went: what it raised, if it did."""
        self.outcomes.append(outcome(error))
        if error is not None:
            self._explain(error, source)

    def stop(self, error: BaseException, count: int) -> None:
        """Note what kept the last `count` asserts from running."""
        self.outcomes.extend(itertools.repeat(outcome(error), count))
        self._explain(error)

    def _explain(self, error: BaseException, source: str = "") -> None:
        if isinstance(error, Unsupported):
            self.unsupported = self.unsupported or _storable(str(error))[:MAX_MESSAGE]
        elif not self.error_type and not self.error_message and not isinstance(error, Ended):
            name, text = getattr(error, "of_the_candidate", (type(error).__name__, _text(error)))
            if isinstance(error, NotPlain):
                name = ""
            if isinstance(error, AssertionError) and outcome(error) == "failed":
                name, text = "AssertionError", text or source
            self.error_type, self.error_message = _storable(name), _storable(text)[:MAX_MESSAGE]


def outcome(error: BaseException | None) -> str:
    """The status of an assert that raised this: it does not hold, cannot be judged, or met another exception."""
    if error is None:
        return "passed"
    if isinstance(error, Stop):
        return "unsupported" if isinstance(error, Unsupported) else GONE
    failure = isinstance(error, AssertionError | NotPlain) and not hasattr(error, "of_the_candidate")
    return "failed" if failure else "error"


def verdict(tally: Tally, report: Report, printed: bytes, judged: bool = True) -> Verdict:
    """The verdict on a check; `judged` is False where its tests use nothing of the candidate's."""
    if tally.unsupported:
        return Verdict("unsupported", error_message=tally.unsupported)
    late = tally.timed_out or report.reason != EXITED
    end: Status = "timeout" if late else "crash"
    outcomes: list[Any] = [end if one == GONE else one for one in tally.outcomes]
    failures: list[Status] = [one for one in outcomes if one != "passed"]
    if not failures and not judged:  # passing them means nothing
        unused = "the tests use nothing of the program's"
        return Verdict("unsupported", 0, len(outcomes), tuple(outcomes), error_message=unused)
    message = tally.error_message
    if failures[:1] == [end] or (not message and not tally.error_type and failures):
        message = message or how_it_ended(report, late)
    return Verdict(
        failures[0] if failures else "passed",
        outcomes.count("passed"),
        len(outcomes),
        tuple(outcomes),
        tally.error_type,
        message,
        printed.decode(errors="replace")[:MAX_STDOUT],
        report.cpu_seconds,
        report.wall_seconds,
        tally.decided_by_candidate,
    )


def how_it_ended(report: Report, late: bool) -> str:
    if late:
        return f"stopped after {report.cpu_seconds:.1f} s of computing, {report.wall_seconds:.1f} s in all"
    code = os.waitstatus_to_exitcode(report.wait_status)
    if code < 0:
        return f"the process was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"the process left with exit code {code} before it answered"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a class of the tests' own may do anything
        return ""


def _storable(text: str) -> str:
    """A text of the candidate's as files and logs take it: half a character, which Python allows, is escaped."""
    return text.encode("utf-8", errors="backslashreplace").decode()

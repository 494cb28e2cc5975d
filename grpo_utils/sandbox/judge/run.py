"""Runs the tests of one check: split asserts on the values that came back, or bodies with stand-ins."""

import contextlib
import io
import json
import random
import sys
import time
import types
from collections.abc import Iterator
from functools import partialmethod
from typing import Any

from ..jail.codec import NotPlain
from ..jail.protocol import OPAQUE, RAISED
from ..jail.reader import decode
from . import names, remote
from .body import JUDGED, Body
from .link import Link
from .planner import Plan, SplitAssert
from .scores import CandidateError, Tally
from .session import Session, Stop, Unsupported
from .stand_ins import Failed

SMALL = 1 << 16  # bytes of a value that the judge's own process reads, whatever they are
# Short values that can take long to compute with; a hostile program may write blanks and escapes where ours does not.
EXPENSIVE = (b'"range"', b'"Decimal"', b'"Fraction"', b'"int"', b"\\u")


class NeedsBody(Exception):
    """A call returned what is not plain data: the tests must run as they are."""


def loaded(session: Session) -> None:
    """Wait until the candidate's module has run; raises what it raised."""
    kind, payload = session.receive()
    if kind == RAISED:
        raise candidate_error(payload)


def candidate_error(payload: bytes) -> CandidateError:
    try:
        name, text = json.loads(payload[:SMALL])
        return CandidateError(str(name)[:100], str(text))
    except (ValueError, TypeError, RecursionError):  # whatever a hostile program sends
        return CandidateError("Exception", "")


class _Values(dict[str, Any]):
    """The placeholders of one assert; one whose call failed raises when the assert reads it, not before."""

    def __init__(self) -> None:
        self.failures: dict[str, Exception] = {}

    def __missing__(self, name: str) -> Any:
        raise self.failures.get(name) or KeyError(name)


def run_split(plan: Plan, session: Session) -> Tally:
    """Judge asserts by the values of the candidate's calls.

    Raises:
        NeedsBody: a value is not plain data.
    """
    tally = Tally()
    space = names.trusted(plan.datetime_class)
    try:
        if plan.setup_code is not None:
            error = _stopped_by(plan.setup_code, space, session)
            if error is not None:
                raise error
        loaded(session)
        for test in plan.asserts:
            tally.add(_judged(test, session, space))
    except (CandidateError, Stop) as error:
        tally.stop(error, len(plan.asserts) - len(tally.outcomes))
    tally.timed_out = session.timed_out
    return tally


def _judged(test: SplitAssert, session: Session, space: dict[str, Any]) -> BaseException | None:
    """What an assert raises, if it does."""
    values = _Values()
    for number in range(test.last - test.first):
        kind, payload = session.receive()
        if kind == OPAQUE:
            raise NeedsBody
        try:
            if kind == RAISED:
                raise candidate_error(payload)
            if len(payload) > SMALL or any(tag in payload for tag in EXPENSIVE):
                session.isolate()
            values[f"_{number}_"] = decode(payload)
        except (CandidateError, NotPlain) as error:
            values.failures[f"_{number}_"] = error
    try:
        return None if eval(test.rest, space, values) else AssertionError(test.source)
    except Stop:
        raise
    except Exception as error:
        return error
    except (SystemExit, GeneratorExit, KeyboardInterrupt) as error:  # sys.exit() in a test
        raise Unsupported(f"the tests raise {type(error).__name__}") from None


class _Builtins(dict[str, Any]):
    """What a name means that the tests do not bind: a builtin, or something of the candidate's."""

    def __init__(self, link: Link, own: frozenset[str]) -> None:
        super().__init__({name: value for name, value in names.BUILTINS.items() if name not in own})
        self._link = link
        self._found: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        if name in self._found:
            return self._found[name]
        value = self._link.request("global", name)
        if type(value) is remote.RemoteType and name[:1].isupper():
            type.__setattr__(value, "named", True)
        if type(value) is remote.RemoteType or remote.is_remote(value):
            self._found[name] = value
        return value


class _Judged:
    """What the asserts of a body report to; `body` put the calls there."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.results: dict[int, BaseException | None] = {}
        self.held: set[int] = set()

    def armed(self, numbers: list[int]) -> None:
        self.held.update(numbers)

    def broken(self, number: int) -> None:
        self.note(number, AssertionError())

    def note(self, number: int, error: BaseException | None) -> None:
        error = self._session.stopped or error
        if error is not None or number not in self.results:
            self.results[number] = self.results.get(number) or error

    @contextlib.contextmanager
    def _noting(self, kinds: Any, number: int) -> Iterator[None]:
        """Note how the assert in the block went, and carry on after exceptions of these kinds."""
        try:
            yield
        except kinds as error:
            self.note(number, error)
        except Failed as failure:
            self.note(number, AssertionError(str(failure)))
            raise
        else:
            self.note(number, None)

    noted = partialmethod(_noting, Exception)
    tried = partialmethod(_noting, AssertionError)
    caught = partialmethod(_noting, ())


def run_body(plan: Plan, session: Session) -> Tally:
    """Run tests as they are; what they use of the candidate's is asked for as they come to it."""
    body, tally = plan.body, Tally()
    judged = _Judged(session)
    stops: dict[int, BaseException] = {}
    link = Link(session, body.expects_stop, body.asks_once)
    remote.connect(link)
    try:
        loaded(session)
        _join(session, link)
        space = {name: value for name, value in names.trusted(plan.datetime_class).items() if name not in plan.own}
        space |= {"__builtins__": _Builtins(link, plan.own), JUDGED: judged}
        link.share(space, body.classes)
        for number, unit in enumerate(body.units):
            error = _stopped_by(unit.code, space, session)
            if error is not None:
                stops[number] = error
                if unit.is_step:
                    break
        else:
            _require_all_tests_called(space, body)
    except (CandidateError, Stop) as error:
        stops = dict.fromkeys(range(len(body.units)), error)
    _collect(body, judged, stops, session, tally)
    if link.extended and tally.error_type == "TypeError":  # `", ".join(...)` takes no stand-in
        tally.unsupported = tally.unsupported or f"where a {link.extended} itself is needed, the program has a subclass"
    tally.timed_out, tally.decided_by_candidate = session.timed_out, link.decided
    return tally


def _require_all_tests_called(space: dict[str, Any], body: Body) -> None:
    """See that no test was made by other means than a definition: `test_f = make(1, 2)`."""
    classes = [value for name, value in space.items() if name.startswith("Test") and type(value) is type]
    for holder in (space, *map(vars, classes)):
        for name, value in holder.items():
            if name.startswith("test") and isinstance(value, types.FunctionType) and name not in body.defined:
                raise Unsupported(f"pytest would call {name!r}, and here nobody does: it is no definition")


def _stopped_by(code: Any, space: dict[str, Any], session: Session) -> BaseException | None:
    """What ended a part of the tests before its end."""
    try:
        exec(code, space)
    except Stop as stop:
        return stop
    except BaseException as error:
        if hasattr(error, "of_the_candidate"):
            return error
        if isinstance(error, Failed):
            return AssertionError(str(error))
        if code.co_filename == "<setup>":
            return Unsupported(f"the setup raises {type(error).__name__}: {error}")
        # SystemExit and its like: the tests leave
        return error if isinstance(error, Exception) else Unsupported(f"the tests raise {type(error).__name__}")
    return session.stopped


def _collect(body: Body, judged: _Judged, stops: dict[int, BaseException], session: Session, tally: Tally) -> None:
    """One outcome per assert that ran, or that something kept from running."""
    ended = session.stopped or next((stops[index] for index in stops if body.units[index].is_step), None)
    for number in range(body.count):
        # a function that one part of the tests defines is perhaps called by a later one
        stop = ended or next((stops[index] for index in stops if number < body.units[index].last), None)
        if number in judged.results:
            error = judged.results[number]
            tally.add(error, body.sources[number])
        elif stop is not None:
            tally.add(stop)
        elif number in body.promises and number in judged.held:
            tally.add(None)
    if stops and all(outcome == "passed" for outcome in tally.outcomes):
        tally.add(next(iter(stops.values())))
    if not tally.outcomes:
        if body.uncalled:
            tally.unsupported = "nothing calls the functions that the tests define"
        tally.add(AssertionError("no assert ran"))


def _join(session: Session, link: Link) -> None:
    """Tests see what the candidate prints, share its clock, and seed its random numbers with theirs."""
    sys.stdout = nowhere = _Nowhere()

    def capture(data: bytes) -> None:
        if sys.stdout is not nowhere:
            sys.stdout.write(data.decode(errors="replace"))

    seed = random.seed

    def seed_both(*arguments: Any) -> None:
        seed(*arguments)
        link.request("seed", *arguments)

    session.capture = capture
    time.sleep, random.seed = session.sleep, seed_both


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)

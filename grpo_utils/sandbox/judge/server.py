"""The judge's process: reads checks from the trainer, and answers each with a verdict.

Asserts that only compute are judged in this process. Everything else runs in a fork of it, so that what tests change,
such as `decimal.getcontext().prec`, is gone with the check. Time and memory of both are limited by the kernel: a check
that exceeds them ends this process or the fork.
"""

import contextlib
import gc
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..jail import kernel, seccomp
from ..jail.protocol import BACKSTOP, LENGTH, MAX_MESSAGE, MAX_STDOUT
from ..jail.wire import send_json
from ..verdict import Verdict, judge_ended
from . import names
from .planner import Plan, plan
from .run import NeedsBody, run_body, run_split
from .scores import Tally, verdict
from .script import judge_script
from .session import Session, Unsupported, Zygote, ZygoteDied, compiled

OWN_SHARE = 0.9  # of a check's time that the judge may compute, besides the candidate's
PLANNING = 20.0  # seconds that it may take to read tests, which are then kept


def main(to_trainer: int, to_zygote: int, zygote: int, config: dict[str, Any]) -> None:
    """Serve checks until the trainer closes the connection; `to_...` are file descriptors, `zygote` a process id."""
    trainer, control = socket.socket(fileno=to_trainer), socket.socket(fileno=to_zygote)
    if config["numpy"]:
        sys.path.append(config["numpy"])
        names.allow_numpy()
    names.trusted()
    send_json(trainer, receive(control))
    # as a candidate's: more is not needed to judge it
    kernel.limit_resources(AS=config["memory_mb"] << 20, CORE=0, STACK=kernel.STACK_BYTES)
    close_doors = confine(config)
    gc.collect()
    gc.freeze()
    server = Server(trainer, Zygote(control, zygote, trainer), close_doors)
    while (checks := receive(trainer)) is not None:
        for check in checks:
            send_json(trainer, server.answer(check))


def confine(config: dict[str, Any]) -> Callable[[], None]:
    """Take from this process what judging does not need: it reads what hostile programs send.

    What this host cannot do is left out; the zygote, which does the same and more, tells the trainer.

    Returns:
        What a fork of this process calls to lose what the fork does not need: processes, and signals to others.
    """
    close_doors: Callable[[], None] = lambda: None  # noqa: E731
    layers: dict[str, Callable[[], object]] = {
        "privileges": kernel.limit_privileges,
        "capabilities": kernel.drop_capabilities,
        "landlock": lambda: kernel.restrict_files(config["numpy"], "/proc"),  # tells which process had no core
    }
    for name, layer in layers.items():
        if name not in config["without"]:
            with contextlib.suppress(OSError):
                layer()
    if "seccomp" not in config["without"]:
        with contextlib.suppress(OSError):
            _, close_doors = seccomp.install(files=True)
    return close_doors


def receive(connection: socket.socket) -> Any:
    """The next message, or None when the other side is gone."""
    header = connection.recv(LENGTH.size, socket.MSG_WAITALL)
    if len(header) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(header)
    data = connection.recv(length, socket.MSG_WAITALL)
    return json.loads(data) if len(data) == length else None


class Server:
    """Judges one check after the other."""

    def __init__(self, trainer: socket.socket, zygote: Zygote, close_doors: Callable[[], None]) -> None:
        self._trainer, self._zygote, self._close_doors = trainer, zygote, close_doors
        self._writer: int | None = None  # in a fork: where its result goes

    def answer(self, check: dict[str, Any]) -> Any:
        """The fields of a verdict, in order; or the reason why nothing is known about the candidate."""
        try:
            signal.setitimer(signal.ITIMER_PROF, OWN_SHARE * check["timeout"])  # ends this process
            judge = judge_script if "stdin" in check else self._judge
            return list(vars(judge(self._zygote, check)).values())
        except Unsupported as error:
            return list(vars(Verdict("unsupported", error_message=str(error)[:MAX_MESSAGE])).values())
        except ZygoteDied as error:
            return str(error)
        except Exception as error:  # a fault of the judge itself: it must not end a batch, or a training
            text = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
            return list(vars(Verdict("infrastructure", error_message=text)).values())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _judge(self, zygote: Zygote, check: dict[str, Any]) -> Verdict:
        signal.setitimer(signal.ITIMER_PROF, PLANNING)
        planned = plan(tuple(check["tests"]), tuple(check["names"]), check["setup"])
        _ = planned.count  # a body is prepared here, where it is kept, and not in a fork
        signal.setitimer(signal.ITIMER_PROF, OWN_SHARE * check["timeout"])
        if check["names"]:
            names.require_definitions(planned.used, planned.own, check["code"])
        code, left = compiled(check["code"]), check["timeout"]
        if planned.asserts:
            request = ("calls", code, planned.shipped, planned.calls)
            found, left = self._run(planned, request, left, run_split, not planned.pure)
            if found is not None:
                return _without_what_was_kept_back(found, planned.kept_back)
        body = planned.body
        names.require_globals_of_its_own(body.bound, check["code"])
        found, _ = self._run(planned, ("remote", code, body.candidates_setup, body.classes), left, run_body, True)
        assert found is not None
        return _without_what_was_kept_back(found, body.kept_back)

    def _run(
        self, planned: Plan, request: tuple[Any, ...], timeout: float, run: Any, fork: bool
    ) -> tuple[Verdict | None, float]:
        """Start the candidate, run the tests, end it: the verdict, and the seconds that are left.

        None is no verdict: a call returned what is not plain data, so that the tests must run as they are.
        """
        session = self._zygote.start(timeout, request)
        session.isolate = lambda: self._isolate(session)
        try:
            if run is run_split:
                session.await_end()
            if fork:
                session.isolate()
            ran = _ran(planned, session, run)
            if self._writer is not None:
                os.write(self._writer, json.dumps(vars(ran)).encode())
        except _Elsewhere as elsewhere:
            (ran,) = elsewhere.args
        except Exception:  # a fault of the judge itself: `answer` tells it, and the next check must not get this report
            if self._writer is None:  # a fork has its own end, and the report is not for it
                self._zygote.finish(session, 0.0)
            raise
        finally:
            if self._writer is not None:
                os._exit(0)
        tally = None if ran.tally is None else Tally(**ran.tally)
        in_time = tally is not None and not tally.timed_out
        report = self._zygote.finish(session, ran.left if in_time else 0.0)
        if ran.died:
            return judge_ended(ran.died, planned.count, report.wall_seconds), ran.left
        if tally is None:
            return None, ran.left
        return verdict(tally, report, ran.printed.encode("latin-1"), bool(planned.used)), ran.left

    def _isolate(self, session: Session) -> None:
        """Go on in a fork of this process; here `_Elsewhere` is raised, with what the fork tells in the end."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._writer = writer
            kernel.die_with_parent()
            self._close_doors()
            signal.setitimer(signal.ITIMER_PROF, OWN_SHARE * session.timeout)
            os.close(reader)
            session.in_own_process = True
            session.isolate = lambda: None
            return
        os.close(writer)
        data = self._result(reader, pid, session.timeout)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        try:
            raise _Elsewhere(_Ran(**json.loads(data)))
        except ValueError:  # it did not come to the end
            code = os.waitstatus_to_exitcode(status) or -signal.SIGABRT
            raise _Elsewhere(_Ran(None, died=code)) from None

    def _result(self, reader: int, pid: int, timeout: float) -> bytes:
        """What a fork writes until it ends; it is ended when it takes too long or the trainer is gone."""
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        poll.register(self._trainer, select.POLLRDHUP)
        data = b""
        while True:
            ready = dict(poll.poll(2 * BACKSTOP * 1000 * timeout))
            if self._trainer.fileno() in ready:
                os._exit(0)
            if not ready:
                os.kill(pid, signal.SIGKILL)
                return data
            part = os.read(reader, 1 << 16)
            if not part:
                return data
            data += part


def _without_what_was_kept_back(found: Verdict, names: frozenset[str]) -> Verdict:
    """A verdict, or "unsupported" where the program looked for a name of the setup that stays with the tests."""
    missing = re.match(r"name '(\w+)' is not defined", found.error_message)
    if found.error_type != "NameError" or not missing or missing[1] not in names:
        return found
    why = f"the program uses {missing[1]!r} of the setup, which stays with the tests: it may hold what they expect"
    return Verdict("unsupported", error_message=why)


class _Elsewhere(BaseException):
    """A fork has run the tests, and its argument came of it; not to be caught by them."""


@dataclass
class _Ran:
    """What came of running the tests: fields of a tally, or None where they must run as they are, or `died`."""

    tally: dict[str, Any] | None
    printed: str = ""
    left: float = 0.0
    died: int = 0


def _ran(planned: Plan, session: Session, run: Any) -> _Ran:
    before = time.process_time()
    try:
        tally = vars(run(planned, session))
    except NeedsBody:
        tally = None
    return _Ran(tally, session.printed[:MAX_STDOUT].decode("latin-1"), session.left + before - time.process_time())

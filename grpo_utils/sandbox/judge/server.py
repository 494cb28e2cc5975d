"""The judge's process: reads checks from the trainer, and answers each with a verdict.

Asserts that only compute are judged in this process. Everything else runs in a fork of it, so that what tests change,
such as `decimal.getcontext().prec`, is gone with the check. Time and memory of both are limited by the kernel: a check
that exceeds them ends this process or the fork.
"""

import contextlib
import gc
import json
import os
import resource
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
from ..verdict import Verdict
from . import names
from .planner import Plan, plan
from .run import NeedsBody, run_body, run_split
from .scores import Tally, own_end, verdict
from .script import judge_script
from .session import Session, Unsupported, Zygote, ZygoteDied, compiled

OWN_SHARE = 0.9  # of a check's time that the judge may compute, besides the candidate's


def main(to_trainer: int, to_zygote: int, zygote: int, config: dict[str, Any]) -> None:
    """Serve checks until the trainer closes the connection.

    Args:
        to_trainer: file descriptor of a stream socket.
        to_zygote: the same.
        zygote: its process id.
        config: see `zygote.main`.
    """
    trainer, control = socket.socket(fileno=to_trainer), socket.socket(fileno=to_zygote)
    if config["numpy"]:
        sys.path.append(config["numpy"])
        names.allow_numpy()
    names.trusted()
    (length,) = LENGTH.unpack(control.recv(LENGTH.size, socket.MSG_WAITALL))
    send(trainer, json.loads(control.recv(length, socket.MSG_WAITALL)))
    limit_resources(config["memory_mb"])
    confine(config)
    gc.collect()
    gc.freeze()
    server = Server(trainer, Zygote(control, zygote, trainer))
    while (checks := receive(trainer)) is not None:
        for check in checks:
            send(trainer, server.answer(check))


def limit_resources(memory_mb: int) -> None:
    """Bound the memory of this process and its forks; they need no more than a candidate."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, 64 << 20),
    ):
        _, allowed = resource.getrlimit(kind)
        limit = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
        resource.setrlimit(kind, (limit, allowed))


def confine(config: dict[str, Any]) -> None:
    """Take from this process what judging does not need: it reads what hostile programs send.

    What this host cannot do is left out; the zygote, which does the same and more, tells the trainer.
    """
    layers: dict[str, Callable[[], object]] = {
        "privileges": kernel.limit_privileges,
        "capabilities": kernel.drop_capabilities,
        "landlock": lambda: kernel.restrict_files(config["numpy"], "/proc"),  # tells which process had no core
        "seccomp": lambda: seccomp.install(files=True),
    }
    for name, layer in layers.items():
        if name not in config["without"]:
            with contextlib.suppress(OSError):
                layer()


def send(connection: socket.socket, message: Any) -> None:
    """Send a message as JSON."""
    data = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(data)) + data)


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

    def __init__(self, trainer: socket.socket, zygote: Zygote) -> None:
        self._trainer, self._zygote = trainer, zygote
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
        planned = plan(tuple(check["tests"]), tuple(check["names"]), check["setup"])
        if check["names"]:
            names.require_definitions(planned.used, planned.own, check["code"])
        timeout = check["timeout"]
        if planned.asserts:
            try:
                return self._split(planned, check["code"], timeout)
            except _Again as again:
                timeout = again.left
        body = planned.body
        request = ("remote", compiled(check["code"]), body.candidates_setup, body.classes)
        return self._run(planned, request, timeout, run_body, True)

    def _split(self, planned: Plan, code: str, timeout: float) -> Verdict:
        request = ("calls", compiled(code), planned.setup, planned.calls)
        return self._run(planned, request, timeout, run_split, not planned.pure)

    def _run(self, planned: Plan, request: tuple[Any, ...], timeout: float, run: Any, fork: bool) -> Verdict:
        """Start the candidate, run the tests, end it, and say how it went."""
        session = self._zygote.start(timeout, request)
        session.isolate = lambda: self._isolate(session)
        try:
            if run is run_split:
                session.await_end()
            if fork:
                _ = planned.count  # prepared here, where it is kept
                session.isolate()
            ran = _ran(planned, session, run)
            if self._writer is not None:
                os.write(self._writer, json.dumps(vars(ran)).encode())
        except _Elsewhere as elsewhere:
            ran = elsewhere.ran
        finally:
            if self._writer is not None:
                os._exit(0)
        tally = None if ran.tally is None else Tally(**ran.tally)
        in_time = tally is not None and not tally.timed_out
        report = self._zygote.finish(session, ran.left if in_time else 0.0)
        if ran.died:
            return _without_judge(ran.died, planned.count, report.wall_seconds)
        if tally is None:
            raise _Again(ran.left)
        return verdict(tally, report, ran.printed.encode("latin-1"), bool(planned.used))

    def _isolate(self, session: Session) -> None:
        """Go on in a fork of this process, which tells in the end what came of it.

        Raises:
            _Elsewhere: in this process, with what the fork told.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._writer = writer
            kernel.die_with_parent()
            signal.setitimer(signal.ITIMER_PROF, OWN_SHARE * session.timeout)
            os.close(reader)
            session.in_own_process = True
            session.isolate = lambda: None
            return
        os.close(writer)
        try:
            data = self._result(reader, pid, session.timeout)
        finally:
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
            part = os.read(reader, 1 << 16) if ready else b""
            if not ready:
                os.kill(pid, signal.SIGKILL)
            if not part:
                return data
            data += part


class _Elsewhere(BaseException):
    """A fork has run the tests; not to be caught by them."""

    def __init__(self, ran: "_Ran") -> None:
        super().__init__()
        self.ran = ran


class _Again(Exception):
    """A call returned what is not plain data: the tests must run as they are, in the time that is left."""

    def __init__(self, left: float) -> None:
        super().__init__()
        self.left = left


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


def _without_judge(code: int, count: int, seconds: float) -> Verdict:
    """The process that judged was ended by a limit."""
    outcome, text = own_end(code)
    return Verdict(outcome, 0, count, (outcome,) * count, "", text, wall_seconds=seconds)

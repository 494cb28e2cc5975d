"""The trusted side's end of one zygote: starts it, runs one check at a time in it, replaces it when it dies."""

import contextlib
import json
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from .jail.protocol import BACKSTOP, EXITED, HEADER, LENGTH, NOT_STARTED, PRINTED, REPORT, START

_JAIL_PARENT = Path(__file__).parent
_BOOT = """
import json, sys
sys.path[0] = sys.argv[1]
from jail import zygote
del sys.path[0]
zygote.main(int(sys.argv[2]), json.loads(sys.argv[3]))
"""
_ENVIRONMENT = {  # nothing of the trainer's environment: it may hold tokens, or the answers
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",  # the order of a set of strings must not change a verdict
}
MAX_ANSWERS = 4 << 20  # bytes that one check may send back in all
START_SECONDS = 30.0  # a zygote that takes longer is given up
GRACE_SECONDS = 10.0  # a zygote that reports later than this after its own limits is given up


class WorkerDied(Exception):
    """The zygote, not the candidate, failed; nothing is known about the candidate."""


@dataclass(frozen=True)
class Report:
    """How a candidate's process ended: `reason` is EXITED or TIMED_OUT of the zygote."""

    reason: bytes
    wait_status: int
    cpu_seconds: float
    wall_seconds: float


class Session:
    """One candidate's process, from the trusted side: send it calls, read its answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._received = 0
        self.printed = bytearray()
        self.report: Report | None = None

    def send(self, message: Any) -> None:
        """Send one marshalled message; a child that is gone does not read it, which shows when answers lack.

        Raises:
            ValueError: the message holds something that is not plain data.
            WorkerDied: the connection failed for another reason.
        """
        data = marshal.dumps(message)
        try:
            self._connection.sendall(LENGTH.pack(len(data)) + data)
        except (BrokenPipeError, ConnectionResetError):
            return
        except OSError as error:
            raise WorkerDied(f"no connection to the sandbox process: {error}") from error

    def receive(self) -> tuple[bytes, bytes] | None:
        """The kind and payload of the next answer, or None when the child ended or broke the protocol."""
        while True:
            header = self._take(HEADER.size)
            if header is None:
                return None
            kind, length = HEADER.unpack(header)
            payload = self._take(length)
            if payload is None:
                return None
            if kind != PRINTED:
                return kind, payload
            self.printed += payload

    def _take(self, length: int) -> bytes | None:
        while len(self._buffer) < length:
            if length > MAX_ANSWERS or self._received > MAX_ANSWERS:
                return None
            try:
                part = self._connection.recv(1 << 16)
            except ConnectionResetError:  # the child ended with input unread
                return None
            except OSError as error:
                raise WorkerDied(f"no sign of life from the sandbox process: {error}") from error
            if not part:
                return None
            self._received += len(part)
            self._buffer += part
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken


class Worker:
    """One zygote. It starts at the first check and again after a failure."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.layers: list[Any] = []

    def start(self) -> None:
        """Start the zygote and wait until it is ready, unless it runs already.

        Raises:
            WorkerDied: it did not come up.
        """
        if self._control is not None:
            return
        try:
            self._control, theirs = socket.socketpair()
            with theirs:
                arguments = [str(_JAIL_PARENT), str(theirs.fileno()), json.dumps(self._config)]
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-S", "-B", "-X", "utf8", "-c", _BOOT, *arguments],
                    pass_fds=[theirs.fileno()],
                    env=_ENVIRONMENT,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in the terminal is for the trainer
                )
            self._control.settimeout(START_SECONDS)
            (length,) = LENGTH.unpack(_receive(self._control, LENGTH.size))
            self.layers = json.loads(_receive(self._control, length))
        except (OSError, WorkerDied) as error:
            self.stop()
            raise WorkerDied(f"the sandbox process did not start: {error}") from error

    @contextlib.contextmanager
    def session(self, timeout: float) -> Iterator[Session]:
        """Run a child; when the block is left, it is gone and `Session.report` says how it ended.

        Raises:
            WorkerDied: the zygote failed; it starts anew at the next session.
        """
        self.start()
        control = self._control
        if control is None:  # stopped by another thread
            raise WorkerDied("the sandbox process was stopped")
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptor left; the zygote is well
            raise WorkerDied(str(error)) from error
        patience = BACKSTOP * timeout + GRACE_SECONDS
        try:
            with ours:
                with theirs:
                    socket.send_fds(control, [START.pack(timeout)], [theirs.fileno()])
                ours.settimeout(patience)
                session = Session(ours)
                yield session
            control.settimeout(patience)
            session.report = Report(*REPORT.unpack(_receive(control, REPORT.size)))
            if session.report.reason == NOT_STARTED:
                raise WorkerDied("the sandbox process could not fork")
        except OSError as error:
            self.stop()
            raise WorkerDied(str(error)) from error
        except BaseException:  # KeyboardInterrupt among others: the child may still run
            self.stop()
            raise
        if session.report.reason == EXITED and os.waitstatus_to_exitcode(session.report.wait_status) == -SIGKILL:
            # The filter keeps a candidate from doing this to itself.
            raise WorkerDied("the candidate's process was killed from outside, perhaps for lack of memory")

    def forget(self) -> None:
        """After a fork, in the new process: let go of a zygote that belongs to the parent."""
        if self._control is not None:
            self._control.close()
        self._control = self._process = None

    def stop(self) -> None:
        """End the zygote and everything below it, and reap it."""
        control, process = self._control, self._process
        self._control = self._process = None
        if control is not None:
            with contextlib.suppress(OSError):  # the zygote is gone already
                control.shutdown(socket.SHUT_RDWR)  # the zygote ends; a thread that waits for it wakes up
            control.close()
        if process is not None:
            try:
                process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _receive(control: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = control.recv(length - len(data))
        if not part:
            raise WorkerDied("the sandbox process ended")
        data += part
    return data

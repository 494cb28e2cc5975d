"""The judge's end of one candidate: starts it through the zygote, sends and reads messages, and owns its clock."""

import contextlib
import marshal
import os
import select
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..jail.codec import MAX_BYTES
from ..jail.protocol import (
    BACKSTOP,
    EXITED,
    HEADER,
    KILL,
    LENGTH,
    MAX_CAPTURED,
    MAX_SCRIPT_OUTPUT,
    NOT_STARTED,
    PRINTED,
    REPORT,
    START,
)

BUFFERED = 1 << 16  # bytes that a socket surely takes
LONG_SOURCE = 100_000  # characters
SHORT_SECONDS = 0.02  # a candidate that ends within this time has answered in one go
MAX_ANSWERS = 64 << 20  # bytes that one check may send back in all


class Stop(BaseException):
    """The tests cannot go on. No Exception: a test that expects one must not take this for it."""


class Ended(Stop):
    """The candidate's process ended, or used up its time, before it answered."""


class Unsupported(Stop):
    """The tests cannot be judged here; the text says why."""


class ZygoteDied(Exception):
    """The zygote, not the candidate, failed; nothing is known about the candidate."""


class Report(NamedTuple):
    """How a candidate's process ended: EXITED, or ended by the zygote."""

    reason: bytes
    wait_status: int
    cpu_seconds: float
    wall_seconds: float


def compiled(source: str) -> str | bytes:
    """The marshalled code of a program, made here because a process that was just forked takes three times as long.

    A text that is no Python, is too deeply nested or very long stays as it is: the program's own process finds out.
    """
    if len(source) > LONG_SOURCE:
        return source
    try:
        with warnings.catch_warnings(record=True):
            return marshal.dumps(compile(source, "<candidate>", "exec", dont_inherit=True))
    except Exception:  # of any class: a hostile text finds the faults of the compiler too, such as a SystemError
        return source


class Zygote:
    """The control socket of a zygote, and its process id."""

    def __init__(self, control: socket.socket, pid: int, trainer: socket.socket) -> None:
        self.control, self.pid, self.trainer = control, pid, trainer
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def start(self, timeout: float, request: tuple[Any, ...], *descriptors: int) -> "Session":
        """Start a child that reads this request, and has these descriptors besides its connection."""
        ours, theirs = socket.socketpair()
        session = Session(ours, self, timeout)
        data = marshal.dumps(request)
        with theirs:
            if len(data) < BUFFERED:  # the child finds it there
                session.send_bytes(data)
            try:
                socket.send_fds(self.control, [START], [theirs.fileno(), *descriptors])
            except OSError as error:
                ours.close()
                raise ZygoteDied(f"the sandbox process ended: {error}") from error
        if len(data) >= BUFFERED:
            session.send_bytes(data)
        return session

    def has_report(self, seconds: float) -> bool:
        return bool(self._poll.poll(1000 * seconds))

    def finish(self, session: "Session", patience: float) -> Report:
        """End the child if it does not within `patience` seconds, and learn how it went.

        Raises:
            ZygoteDied: the zygote ended, could not fork, or the child was killed from outside.
        """
        session.connection.close()  # a child that waits for more ends now
        if not session.has_ended and (patience <= 0 or not self.has_report(patience + 0.001)):
            with contextlib.suppress(OSError):  # shows when the report lacks
                self.control.send(KILL)
        data = b""
        with contextlib.suppress(OSError):
            data = self.control.recv(REPORT.size, socket.MSG_WAITALL)
        if len(data) < REPORT.size:
            raise ZygoteDied("the sandbox process ended")
        report = Report(*REPORT.unpack(data))
        if report.reason == NOT_STARTED:
            raise ZygoteDied("the sandbox process could not fork")
        if report.reason == EXITED and os.waitstatus_to_exitcode(report.wait_status) == -9:
            # The filter keeps a candidate from doing this to itself.
            raise ZygoteDied("the candidate's process was killed from outside, perhaps for lack of memory")
        return report


class Session:
    """One candidate's process. The clock of its time runs while the judge waits for it."""

    def __init__(self, connection: socket.socket, zygote: Zygote, timeout: float) -> None:
        self.connection, self._zygote, self.timeout = connection, zygote, timeout
        self._buffer = bytearray()
        self._received = 0
        self._spent = self._excused = 0.0  # seconds of waiting, and those of them in which it had no core
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(zygote.trainer, select.POLLRDHUP)
        self.printed = bytearray()  # to its standard output
        self.timed_out = False
        self.has_ended = False  # all its answers are here
        self.stopped: Stop | None = None  # what ended the tests, even if they went on as if nothing had happened
        self.capture: Any = None  # called with what it prints while the tests wait
        self.in_own_process = False  # whether this check has a judge of its own, whose waits for a core are the check's
        self.isolate: Callable[[], None] = lambda: None  # makes the rest of the check run in a process of its own

    @property
    def left(self) -> float:
        """Seconds that the candidate may still use."""
        return max(0.0, self.timeout - (self._spent - self._excused))

    def await_end(self) -> None:
        """Wait a little for the end of a candidate that is asked nothing more: its answers are then read at once."""
        started = time.monotonic()
        self.has_ended = self._zygote.has_report(min(SHORT_SECONDS, self.timeout))
        self._spent += time.monotonic() - started

    def send_bytes(self, data: bytes) -> None:
        """Send a message; a child that is gone does not read it, which shows when answers lack."""
        message = memoryview(LENGTH.pack(len(data)) + data)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while message:
                try:
                    message = message[self.connection.send(message, socket.MSG_DONTWAIT) :]
                except BlockingIOError:  # a child that reads nothing must not stop the clock
                    self._wait(select.POLLOUT)

    def receive(self) -> tuple[bytes, bytes]:
        """The kind and payload of the next answer; raises `Ended` where there is none, or what is no answer."""
        while True:
            kind, length = HEADER.unpack(self._take(HEADER.size))
            if length > 2 * MAX_BYTES:
                self.stop(Ended())
            payload = self._take(length)
            if kind != PRINTED:
                return kind, payload
            self.printed += payload
            if not payload or len(self.printed) > MAX_CAPTURED:  # no frames that a child of ours would send
                self.stop(Ended())
            if self.capture is not None:
                self.capture(payload)

    def stop(self, why: Stop) -> NoReturn:
        """Nothing more can be learned from the candidate."""
        self.stopped = self.stopped or why
        raise self.stopped

    def _take(self, length: int) -> bytes:
        while len(self._buffer) < length:
            if not self.has_ended:
                self._wait(select.POLLIN)
            try:
                part = self.connection.recv(1 << 18)
            except ConnectionResetError:  # the child ended with input unread
                part = b""
            self._received += len(part)
            if not part or self._received > MAX_ANSWERS:
                self.stop(Ended())
            self._buffer += part
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def _wait(self, event: int) -> None:
        if self.stopped is not None:
            raise self.stopped
        self._poll.modify(self.connection, event)
        self._ready()

    def _ready(self) -> set[int]:
        """Wait for one of the registered descriptors, on the candidate's time."""
        started, spent = time.monotonic(), self._spent
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(1 + 1000 * self.left)}
            self._spent = spent + time.monotonic() - started
            if self._zygote.trainer.fileno() in ready:
                os._exit(0)  # the trainer is gone
            if not ready or not self.left:  # one that trickles is always ready
                self._look_at_the_clock()
            if ready:
                return ready

    def _look_at_the_clock(self) -> None:
        """The time is up: unless the candidate, or the judge, had to wait for a core meanwhile."""
        computed, waited = times_of_child(self._zygote.pid)
        if self.in_own_process:
            with contextlib.suppress(OSError, ValueError):  # this kernel does not tell
                waited += waited_for_core("self")
        self._excused = min(waited, self._spent)
        if not self.left or computed >= self.timeout or self._spent >= BACKSTOP * self.timeout:
            self.timed_out = True
            self.stop(Ended())

    def sleep(self, seconds: float) -> None:
        """What `time.sleep` does in tests: their sleep is the check's time, too."""
        if seconds > self.left:
            time.sleep(self.left)
            self.timed_out = True
            self.stop(Ended())
        time.sleep(seconds)
        self._spent += seconds

    def run_script(self, stdin: bytes, feed: int, output: int) -> bytes:
        """Feed a script and collect what it prints, until nobody can write to its standard output any more.

        `feed` and `output` are file descriptors of pipes; the first is closed here.
        """
        printed = bytearray()
        os.set_blocking(feed, False)
        self._poll.unregister(self.connection)
        self._poll.register(output, select.POLLIN)
        self._poll.register(feed, select.POLLOUT)
        try:
            while True:
                ready = self._ready()
                if feed in ready:
                    rest, stdin = stdin, b""
                    with contextlib.suppress(BrokenPipeError):  # the script does not read it
                        stdin = rest[os.write(feed, rest[: 1 << 16]) :]
                    if not stdin:
                        self._poll.unregister(feed)
                        os.close(feed)
                        feed = -1
                if output in ready:
                    part = os.read(output, 1 << 18)
                    if not part:
                        return bytes(printed)
                    printed += part[: MAX_SCRIPT_OUTPUT - len(printed)]
        finally:
            if feed >= 0:
                os.close(feed)
            self.printed += printed[:MAX_CAPTURED]
            self._poll.unregister(output)
            self._poll.register(self.connection, select.POLLIN)


def times_of_child(zygote: int) -> tuple[float, float]:
    """Seconds that the child of a zygote computed, and was ready to compute but had no core; 0 where nobody says."""
    computed = waited = 0.0
    with contextlib.suppress(OSError, ValueError, IndexError):  # it is gone, or this kernel does not tell
        process = zygote
        while children := Path(f"/proc/{process}/task/{process}/children").read_text().split():
            process = int(children[0])
        # of all threads, those that have ended too; from the name on, which may hold anything
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
        computed = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        for thread in os.listdir(f"/proc/{process}/task"):
            waited = max(waited, waited_for_core(f"{process}/task/{thread}"))
    return computed, waited


def waited_for_core(process: str) -> float:
    """Seconds that a process or thread was ready to run but had no core."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9

"""The trainer's end of one judge: starts it, sends it checks, reads its verdicts, replaces it when it dies.

The judge, its zygote and the candidates are processes of their own. Nothing that a candidate sends, and no test, is
parsed or computed with in this one; a verdict is JSON of bounded length.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from .batch import Batch, Numbered
from .jail.protocol import BACKSTOP, LENGTH
from .jail.wire import send_json
from .verdict import Verdict, judge_ended

_BOOT = """
import _socket, json, os, sys, types
folder, trainer, config = sys.argv[1:]
del sys.path[0]
sys.modules["sandbox"] = package = types.ModuleType("sandbox")
package.__path__ = [folder]
from sandbox.jail import zygote
config = json.loads(config)
os.sched_setaffinity(0, {config["core"]})
ours, theirs = _socket.socketpair()
pid = os.fork()
if pid:
    theirs.close()
    from sandbox.judge import server
    server.main(int(trainer), ours.detach(), pid, config)
    os._exit(0)
try:
    ours.close()
    os.close(int(trainer))
    run = zygote.main(theirs, config)
    run()
finally:
    zygote._exit(0)  # skip exit handlers: they would be the candidate's
"""
_ENVIRONMENT = {  # nothing of the trainer's environment: it may hold tokens, or the answers
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "LD_BIND_NOW": "1",  # or each child would look the same functions up again
    "MALLOC_ARENA_MAX": "1",  # or each thread would reserve 64 MiB of the memory that a candidate may use
    "PYTHONHASHSEED": "0",  # the order of a set of strings must not change a verdict
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's threads would each reserve memory
}
MAX_VERDICT = 1 << 24  # bytes
START_SECONDS = 30.0  # a judge that takes longer is given up
GRACE_SECONDS = 10.0  # a judge that answers later than this after its own limits is given up
STOP_SECONDS = 0.5  # for a judge to end by itself
AHEAD = 2  # checks that a judge still has when it gets the next ones


class WorkerDied(Exception):
    """The judge or the zygote, not the candidate, failed; nothing is known about the candidate."""


class Worker:
    """One judge. It starts at the first check and again after a failure."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._buffer = bytearray()
        self.layers: list[Any] = []

    def start(self) -> None:
        """Start the judge and wait until it is ready, unless it runs already."""
        if self._connection is not None:
            return
        try:
            self._connection, theirs = socket.socketpair()
            with theirs:
                arguments = [str(Path(__file__).parent), str(theirs.fileno()), json.dumps(self._config)]
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
            self._buffer.clear()
            self._connection.settimeout(START_SECONDS)
            self.layers = self._receive(self._connection)
        except (OSError, WorkerDied) as error:
            self.stop()
            raise WorkerDied(f"the sandbox process did not start: {error}") from error

    def run(self, batch: Batch) -> None:
        """Judge what there is to judge. What could not be judged is given back, and the judge starts anew."""
        pending: deque[Numbered] = deque()
        try:
            while True:
                if len(pending) <= AHEAD:
                    checks = batch.take()
                    pending.extend(checks)
                    if checks:
                        self.start()
                        self._send([check for _, check in checks])
                if not pending:
                    return
                number, check = pending[0]
                verdict = self._verdict(check["timeout"])
                pending.popleft()
                batch.put(number, verdict)
        except WorkerDied as error:
            ended = self.stop()
            if pending and ended in (-signal.SIGPROF, -signal.SIGSEGV, -signal.SIGABRT):
                batch.put(pending.popleft()[0], judge_ended(ended))
                batch.give_back([*pending], None)
            else:
                batch.give_back([*pending], error)
        except BaseException:  # KeyboardInterrupt among others: a check may still run
            self.stop()
            raise

    def _running(self, seconds: float) -> socket.socket:
        """The connection to the judge, which waits as long for what it does next."""
        connection = self._connection
        if connection is None:
            raise WorkerDied("the sandbox process was stopped")  # by another thread
        connection.settimeout(seconds)
        return connection

    def _send(self, checks: list[dict[str, Any]]) -> None:
        try:
            send_json(self._running(START_SECONDS), checks)
        except OSError as error:
            raise WorkerDied(f"no connection to the sandbox process: {error}") from error

    def _verdict(self, timeout: float) -> Verdict:
        answer = self._receive(self._running(3 * BACKSTOP * timeout + GRACE_SECONDS))
        if isinstance(answer, str):
            raise WorkerDied(answer)
        status, passed, total, outcomes, *rest = answer
        return Verdict(status, passed, total, tuple(outcomes), *rest)

    def _receive(self, connection: socket.socket) -> Any:
        """The next message; several that arrived together take one call of the system."""
        while True:
            if len(self._buffer) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(self._buffer)
                if length > MAX_VERDICT:
                    raise WorkerDied("the sandbox process sent what is no verdict")
                if len(self._buffer) >= LENGTH.size + length:
                    message = json.loads(self._buffer[LENGTH.size : LENGTH.size + length])
                    del self._buffer[: LENGTH.size + length]
                    return message
            try:
                part = connection.recv(1 << 16)
            except OSError as error:
                raise WorkerDied(f"no sign of life from the sandbox process: {error}") from error
            if not part:
                raise WorkerDied("the sandbox process ended")
            self._buffer += part

    def forget(self) -> None:
        """After a fork, in the new process: let go of a judge that belongs to the parent."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._process = None

    def stop(self) -> int:
        """End the judge and everything below it; its return code tells why one had ended by itself."""
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if connection is not None:
            with contextlib.suppress(OSError):  # the judge is gone already
                connection.shutdown(socket.SHUT_RDWR)  # the judge ends; a thread that waits for it wakes up
            connection.close()
        if process is None:
            return 0
        try:
            return process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:  # it computes; the zygote below it ends with it
            process.kill()
            return process.wait()

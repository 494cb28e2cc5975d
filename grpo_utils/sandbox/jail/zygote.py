"""The zygote: a small process that forks one child per check, watches it, and clears up after it.

It never sees source text or results. Those travel on a socket that it hands to the child unread, because
whatever it held, the next candidate could find in its freed memory.
"""

import _socket  # not `socket`: what it holds would cost every fork a little
import contextlib
import gc
import importlib
import marshal
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import child, kernel, seccomp
from .protocol import EXITED, KILL, KILLED, LENGTH, NOT_STARTED, REPORT
from .wire import send_json

WATCH_SECONDS = 0.01  # how often a long check is looked after
THREADS = 64  # of one candidate
SPARE_THREADS = 1024  # that the user of a worker may start after it, where they count together
POOL, MOST_GAPS = 1 << 14, 10_000  # bytes of a pool of objects; gaps that are filled, for each size
_EMPTY = sys.getsizeof(b"")

_INT = 4  # bytes of a descriptor in a message
_ENDED = [signal.SIGCHLD]
_exit = os._exit  # the candidate may replace the one in `os`

# What programs import most. Each import in a child would cost milliseconds, each module in the zygote costs every
# fork a little.
PRELOADED = (
    "bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "math", "operator", "random",
    "re", "string", "sys", "typing",
)  # fmt: skip
# Where files cannot be shut out by Landlock, children cannot open any, so that every import must be done already.
PRELOADED_WITHOUT_FILES = (
    "abc", "array", "base64", "calendar", "cmath", "contextlib", "datetime", "decimal", "difflib", "enum", "fractions",
    "hashlib", "json", "numbers", "pprint", "queue", "secrets", "statistics", "struct", "textwrap", "threading",
    "timeit", "unicodedata", "unittest.mock", "uuid", "zlib",
)  # fmt: skip


def main(control: _socket.socket, config: dict[str, Any]) -> Callable[[], None]:
    """Serve checks on a socket to the judge until the other end is closed; `config` is made by `pool`.

    Returns:
        Only in a child, and there what it has to run: called from further up, it can recurse deeper.
    """
    preload(PRELOADED)
    if config["numpy"]:
        sys.path.append(config["numpy"])
        importlib.import_module("numpy")
        sys.path.remove(config["numpy"])  # no other package there can be imported later
    child.prepare()
    rehearse()
    zygote = Zygote(control, config)
    send_json(control, zygote.layers)
    gc.collect()
    zygote.filling = fill_gaps()
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    gc.disable()
    try:
        return zygote.serve()
    except BrokenPipeError:  # the judge is gone
        _exit(0)
        raise


def preload(names: tuple[str, ...]) -> None:
    """Import modules; `random` must not seed itself anew in each child: the same program, the same verdict."""
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    importlib.import_module("random").seed(0)
    os.register_at_fork = register
    for name in names:
        importlib.import_module(name)


REHEARSAL = """
import math
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y
def area(points, *, scale=1.0):
    total = {name: [] for name in "ab"}
    for index, point in enumerate(points):
        if point.x > 0 and not point.y:
            total["a"].append((point.x, f"{index}"))
    return [len(total["a"]) * scale, math.pi, "text"[::-1], sorted({1, 2})]
"""


def rehearse() -> None:
    """Run a harmless program here a few times.

    Code that has run before writes to fewer pages when it runs again in a child, and each page that a child writes
    to costs it two microseconds of copying.
    """
    calls = tuple((compile(call, "<call>", "eval"), False) for call in ("area([Point(1, 0)])", "area([], scale=2)"))
    request = marshal.dumps(("calls", REHEARSAL, "", calls))
    for _ in range(20):
        ours, theirs = _socket.socketpair()
        theirs.sendall(LENGTH.pack(len(request)) + request)
        child.run([ours.fileno()], lambda: None)
        ours.close()
        theirs.close()
        del sys.modules["candidate"]


def fill_gaps() -> list[object]:
    """Objects that fill the gaps between those that are here: what a child makes then lies together, on few pages."""
    filling: list[object] = []
    for size in range(48, 513, 16):  # bytes; Python keeps objects of one size in pools
        last = before = 0
        for _ in range(MOST_GAPS):
            filling.append(bytes(size - _EMPTY))
            earlier, before, last = before, last, id(filling[-1])
            if last - before == before - earlier == size and earlier % POOL < 48 + size:  # a new pool
                break
    return filling


class Zygote:
    """The confined process. `layers` lists name, whether it is on, and what it does or why it is missing."""

    def __init__(self, control: _socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.control_fd = control.fileno()
        self.layers: list[tuple[str, bool, str]] = []
        self.filling: list[object] = []
        self._without = config["without"]
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDED)  # it is waited for
        # In this order: each step may take away what the ones before it need.
        self.own_processes = self._turn_on("namespaces", enter_namespaces)
        if self.own_processes:  # the first process in its table takes all others with it when it ends
            first = os.fork()
            if first:
                self.control.close()
                os.waitpid(first, 0)
                os._exit(0)
            kernel.die_with_parent()
        self._turn_on("privileges", kernel.limit_privileges)
        self._turn_on("limits", lambda: limit_resources(config["memory_mb"]))
        kernel.limit_resources(NPROC=most_threads(private=self.own_processes))
        self._turn_on("capabilities", kernel.drop_capabilities)
        files = self._turn_on("landlock", lambda: kernel.restrict_files(config["numpy"]))
        if not files:
            preload(PRELOADED_WITHOUT_FILES)
        self.close_doors: Callable[[], None] = lambda: None
        self.filtered = self._turn_on("seccomp", lambda: self._filter_system_calls(files))

    def _turn_on(self, name: str, layer: Callable[[], str]) -> bool:
        try:
            if name in self._without:
                raise kernel.Unavailable("left off on request")
            self.layers.append((name, True, layer()))
        except OSError as error:
            self.layers.append((name, False, str(error)))
        return self.layers[-1][1]

    def _filter_system_calls(self, files: bool) -> str:
        detail, self.close_doors = seccomp.install(files)
        return detail

    def serve(self) -> Callable[[], None]:
        while True:
            message, ancillary, _, _ = self.control.recvmsg(1, _socket.CMSG_SPACE(3 * _INT))
            if not message:
                _exit(0)
            if message == KILL:  # meant for a child that has ended by itself
                continue
            descriptors = [*memoryview(ancillary[0][2]).cast("i")]
            started = time.monotonic()
            report, pid = (NOT_STARTED, 0, 0.0), -1
            with contextlib.suppress(OSError):
                pid = os.fork()
            if pid == 0:
                return self.child(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            if pid > 0:
                report = self.watch(pid)
            self.control.sendall(REPORT.pack(*report, time.monotonic() - started))

    def child(self, connection: list[int]) -> Callable[[], None]:
        if not self.own_processes:  # else the kernel sees to it
            kernel.die_with_parent()
            os.setsid()
        gc.enable()
        os.close(self.control_fd)
        return lambda: child.run(connection, self.close_doors)

    def watch(self, pid: int) -> tuple[bytes, int, float]:
        """Wait until the child ends, or end it when the judge says so or is gone; how it ended, and its CPU seconds."""
        reason = EXITED
        while True:
            signal.sigtimedwait(_ENDED, WATCH_SECONDS)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                break
            with contextlib.suppress(BlockingIOError):  # nobody says so
                if reason == EXITED:
                    self.control.recv(1, _socket.MSG_DONTWAIT)
                    reason = KILLED
                    os.kill(pid, signal.SIGKILL)
        if not self.filtered:
            self.clear_up(pid)
        return reason, status, usage.ru_utime + usage.ru_stime

    def clear_up(self, pid: int) -> None:
        """Where no filter keeps a child from starting processes: kill what it left behind, and reap it."""
        with contextlib.suppress(ProcessLookupError):  # there is nothing
            os.kill(-1, signal.SIGKILL) if self.own_processes else os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def enter_namespaces() -> str:
    """Try it in a process that ends at once: some hosts fail halfway, and there is no way back."""
    trial = os.fork()
    if trial == 0:
        try:
            kernel.enter_namespaces()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1])
    if code != 0:
        raise kernel.Unavailable(code, f"{os.strerror(code)} by this host or container", "unshare")
    return kernel.enter_namespaces()


def limit_resources(memory_mb: int) -> str:
    """Limits that every child inherits."""
    kernel.limit_resources(AS=memory_mb << 20, FSIZE=0, NOFILE=32, CORE=0, STACK=kernel.STACK_BYTES)
    return f"{memory_mb} MiB of memory, no file writing, 32 descriptors, no core dump"


def most_threads(private: bool) -> int:
    """What a worker may bring the number of its user's processes to; `private` in a user namespace of its own."""
    if os.getuid() == 0:
        with contextlib.suppress(OSError):  # a container without such user ids: the limit does not hold for root there
            kernel.own_real_user()
        return THREADS
    return THREADS if private else THREADS + SPARE_THREADS + threads_of(os.getuid())


def threads_of(user: int) -> int:
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count

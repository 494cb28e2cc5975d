"""The zygote: a small process that forks one child per check, watches it, and clears up after it.

It never sees source text or results. Those travel on a socket that it hands to the child unread, because
whatever it held, the next candidate could find in its freed memory.
"""

import contextlib
import gc
import importlib
import json
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from . import child, kernel, seccomp
from .protocol import EXITED, KILL, KILLED, LENGTH, NOT_STARTED, REPORT, START

SHORT_SECONDS = 0.02  # a child that takes no longer is watched by one call of the system
THREADS = 64  # of one candidate
SPARE_THREADS = 1024  # that the user of a worker may start after it, where they count together
STACK_BYTES = 64 << 20  # deep recursion is honest

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


def main(control: socket.socket, config: dict[str, Any]) -> Callable[[], None]:
    """Serve checks on a socket until the other end is closed.

    Args:
        control: a stream socket to the judge.
        config: memory_mb, without: names of layers to leave off, numpy: the folder it is in, or "".

    Returns:
        Only in a child, and there what it has to run: called by whoever called this function, the candidate can recurse
        nearly as deep as in a fresh interpreter.
    """
    preload(PRELOADED)
    if config["numpy"]:
        preload_numpy(config["numpy"])
    child.prepare()
    rehearse()
    zygote = Zygote(control, config)
    hello = json.dumps(zygote.layers).encode()
    control.sendall(LENGTH.pack(len(hello)) + hello)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    gc.disable()
    try:
        return zygote.serve()
    except BrokenPipeError:  # the judge is gone
        _exit(0)
        raise


def preload_numpy(folder: str) -> None:
    """Import it from the folder of packages that it is in; no other package there can be imported later."""
    sys.path.append(folder)
    importlib.import_module("numpy")
    sys.path.remove(folder)


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
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(LENGTH.pack(len(request)) + request)
            child.run([ours.fileno()], lambda: None)
        del sys.modules["candidate"]


class Zygote:
    """The confined process. `layers` lists name, whether it is on, and what it does or why it is missing."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.control_fd = control.fileno()
        self.layers: list[tuple[str, bool, str]] = []
        self._without = config["without"]
        os.close(os.pidfd_open(os.getpid()))  # a kernel without it fails now and not in the middle of a check
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # it is waited for
        # In this order: each step may take away what the ones before it need.
        self.own_processes = self._turn_on("namespaces", enter_namespaces)
        if self.own_processes:
            self._become_first_process()
        self._turn_on("privileges", kernel.limit_privileges)
        self._turn_on("limits", lambda: limit_resources(config["memory_mb"]))
        most = most_threads(private=self.own_processes)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
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

    def _become_first_process(self) -> None:
        """Fork into the new process table; the first process there takes all others with it when it ends."""
        first = os.fork()
        if first:
            self.control.close()
            os.waitpid(first, 0)
            os._exit(0)
        kernel.die_with_parent()

    def serve(self) -> Callable[[], None]:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.control, START.size, 3)
            if not message:
                _exit(0)
            if message == KILL:  # meant for a child that has ended by itself
                continue
            _, timeout = START.unpack(message)
            started = time.monotonic()
            try:
                pid = os.fork()
            except OSError:
                pid = -1
            if pid == 0:
                return self.child(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            if pid == -1:
                self.control.sendall(REPORT.pack(NOT_STARTED, 0, 0.0, 0.0))
                continue
            signal.sigtimedwait([signal.SIGCHLD], SHORT_SECONDS)
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            reason = EXITED if ended else self.watch(pid, timeout)
            if not ended or not self.filtered:
                status, usage = self.clear_up(pid, status, usage)
            seconds = usage.ru_utime + usage.ru_stime
            self.control.sendall(REPORT.pack(reason, status, seconds, time.monotonic() - started))

    def child(self, connection: list[int]) -> Callable[[], None]:
        if not self.own_processes:  # else the kernel sees to it
            kernel.die_with_parent()
            os.setsid()
        gc.enable()
        os.close(self.control_fd)
        return lambda: child.run(connection, self.close_doors)

    def watch(self, pid: int, timeout: float) -> bytes:
        """Wait until the child ends, or the judge says that it has used up its time, or is gone itself."""
        handle = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(handle, select.POLLIN)  # readable when the child has ended
        poll.register(self.control, select.POLLIN)
        try:
            ready = poll.poll(1000 * timeout)
        finally:
            os.close(handle)
        if any(fd == handle for fd, _ in ready):
            return EXITED
        if ready:
            self.control.recv(len(KILL))
        return KILLED

    def clear_up(self, pid: int, status: int, usage: Any) -> tuple[int, Any]:
        """Kill the child, if it runs yet, and whatever it left behind, and reap it.

        Args:
            pid: the child.
            status: its wait status if it has ended.
            usage: the time it took, in the same case.
        """
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            if self.own_processes:
                os.kill(-1, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                ended, code, used = os.wait4(-1, 0)
                if ended == pid:
                    status, usage = code, used
        signal.sigtimedwait([signal.SIGCHLD], 0)  # of those: the next child shall not be taken for ended
        return status, usage


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
    """Limits that every child inherits; none of them can be raised again."""
    limits = {"AS": memory_mb << 20, "FSIZE": 0, "NOFILE": 32, "CORE": 0, "STACK": STACK_BYTES}
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, allowed = resource.getrlimit(kind)
        limit = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
        resource.setrlimit(kind, (limit, limit))
    return f"{memory_mb} MiB of memory, no file writing, 32 descriptors, no core dump"


def most_threads(private: bool) -> int:
    """What a worker may bring the number of its user's processes and threads to.

    Args:
        private: whether this process has a user namespace of its own, in which it is counted by itself.
    """
    if os.getuid() == 0:
        with contextlib.suppress(
            OSError
        ):  # in a container without such user ids; the limit does not hold for root there
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

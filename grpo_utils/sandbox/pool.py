"""The sandbox itself: a set of workers, shared by threads, rebuilt after a fork, gone after `close`."""

import atexit
import contextlib
import importlib.util
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue
from types import TracebackType
from typing import Any

from .batch import Batch
from .verdict import Check, Layer, Script, Verdict, joined
from .worker import Worker, WorkerDied

NOT_LINUX = (
    "The sandbox needs Linux. macOS and Windows have none of what confines a candidate here: no seccomp (it could start"
    " programs and open connections), no Landlock (it could read and overwrite your files), no namespaces (it could"
    " signal and watch your processes), no enforced memory limit. Use a Linux container or virtual machine: Docker"
    " Desktop, WSL 2 or Colab offer what is needed."
)

LAYERS = ("namespaces", "privileges", "limits", "capabilities", "landlock", "seccomp")
_warned: list[set[str]] = []  # each set of missing layers is reported once per process


def _seconds(timeout: float) -> float:
    """Returns a timeout if it is one; a ValueError says that it must be above 0 and at most an hour."""
    if not 0.001 <= timeout <= 3600:
        raise ValueError(f"a timeout is between 0.001 and 3600 seconds, not {timeout}")
    return timeout


class SandboxUnavailable(RuntimeError):
    """This host cannot confine a candidate as was asked."""


class Sandbox:
    """Runs untrusted Python against asserts and judges it by the values it returns.

    Args:
        workers: processes that run checks at the same time; default: one per core that this process may use,
            divided by the processes of a distributed run on this machine.
        timeout: seconds per check, on a clock that stands while the candidate waits for a core. Ten times as
            many seconds of wall-clock time end a check in any case.
        memory_mb: address space of a candidate, in MiB.
        strict: refuse to run when this host lacks a layer of protection. Otherwise warn once.
        without: layers to leave off, by the names that `capabilities` gives them; default: those that the
            environment variable GRPO_SANDBOX_WITHOUT names, separated by commas. A sandbox without seccomp is
            refused unless it is named here.
        numpy: let candidates and tests import NumPy, where it is installed. Each check then takes a little
            longer, because a larger process is forked (`benchmarks/sandbox.py` measures it).

    Raises:
        SandboxUnavailable: strict and a layer is missing, a layer to leave off is unknown, or the host cannot confine
            a candidate at all.
        ValueError: fewer than one worker.

    Example:
        >>> with Sandbox(workers=1) as sandbox:
        ...     verdict = sandbox.check("def inc(n): return n + 2", ["assert inc(1) == 3", "assert inc(1) == 2"])
        >>> verdict.status, verdict.outcomes
        ('failed', ('passed', 'failed'))
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout: float = 3.0,
        memory_mb: int = 1024,
        strict: bool = False,
        without: Sequence[str] | None = None,
        numpy: bool = False,
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(NOT_LINUX)
        if without is None:
            named = os.environ.get("GRPO_SANDBOX_WITHOUT", "").split(",")
            without = [name.strip() for name in named if name.strip()]
        if unknown := set(without) - set(LAYERS):
            raise SandboxUnavailable(f"there is no layer {min(unknown)!r} to leave off; layers: {', '.join(LAYERS)}")
        if workers is not None and workers < 1:
            raise ValueError(f"a sandbox needs at least one worker, not {workers}")
        self.timeout = _seconds(timeout)
        # a launcher of distributed training runs several processes on this machine, each with a sandbox of its own
        shares = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._size = workers or max(1, len(os.sched_getaffinity(0)) // shares)
        self._config = _config(memory_mb, without, numpy)
        self._closed = False
        self._fill()
        _sandboxes.add(self)
        try:
            self._require_layers(strict, without)
        except BaseException:  # Ctrl-C too: no zygote may be left behind; the exception goes on
            self.close()
            raise

    def _require_layers(self, strict: bool, without: Sequence[str]) -> None:
        missing = [layer for layer in self.layers if not layer.on]
        text = "; ".join(f"{layer.name} ({layer.detail})" for layer in missing)
        names = {layer.name for layer in missing}
        if strict and missing:
            raise SandboxUnavailable(f"this host lacks layers of the sandbox: {text}")
        if "seccomp" in names - set(without):
            raise SandboxUnavailable(
                f"without seccomp a candidate can start programs and open connections: {text}. To run it all the same,"
                " on a machine that may be harmed, set GRPO_SANDBOX_WITHOUT=seccomp."
            )
        if names and names not in _warned:
            _warned.append(names)
            warnings.warn(f"the sandbox runs without some of its layers: {text}", stacklevel=3)

    def _fill(self) -> None:
        # A judge, its zygote and its candidates take turns: on one core they find each other's data in its cache.
        cores = sorted(os.sched_getaffinity(0))
        first = int(os.environ.get("LOCAL_RANK", "0")) * self._size
        self._workers = [
            Worker(self._config | {"core": cores[(first + number) % len(cores)]}) for number in range(self._size)
        ]
        # Last in, first out: a caller that runs one check at a time keeps one judge warm and starts no other.
        self._idle: LifoQueue[Worker] = LifoQueue()
        for worker in reversed(self._workers):
            self._idle.put(worker)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What protects this host from the candidates of this sandbox."""
        with self._borrow() as worker:
            return _layers(worker)

    def check(
        self,
        code: str,
        tests: Sequence[str],
        *,
        names: Sequence[str] = (),
        setup: str = "",
        timeout: float | None = None,
    ) -> Verdict:
        """Run one candidate against its tests; the arguments are those of `Check`."""
        return self.check_many([Check(code, tests, names, setup, timeout)])[0]

    def check_many(self, checks: Sequence[Check | Script]) -> list[Verdict]:
        """Run many checks on all workers; a slow one holds up its own worker only.

        Args:
            checks: any number of checks and scripts. A script that once runs out of time is not run on all that is
                left: its runs come in rounds of 1, 2, 4 and so on.

        Returns:
            The verdicts, in their order.
        """
        tests = iter(self._map([self._message(check) for check in checks if isinstance(check, Check)]))
        scripts = iter(self._run_scripts([check for check in checks if isinstance(check, Script)]))
        return [next(scripts if isinstance(check, Script) else tests) for check in checks]

    def _run_scripts(self, scripts: Sequence[Script]) -> list[Verdict]:
        runs: list[list[Verdict]] = [[] for _ in scripts]
        done, size = 0, 1
        while todo := [
            (number, pair)
            for number, script in enumerate(scripts)
            if not any(run.status == "timeout" for run in runs[number])
            for pair in script.pairs[done : done + size]
        ]:
            verdicts = self._map([self._message(scripts[number], pair) for number, pair in todo])
            for (number, _), verdict in zip(todo, verdicts, strict=True):
                runs[number].append(verdict)
            done, size = done + size, 2 * size
        return [joined(found, len(script.pairs)) for found, script in zip(runs, scripts, strict=True)]

    def check_script(self, code: str, expected: str, *, stdin: str = "", timeout: float | None = None) -> Verdict:
        """Run a whole program on one input; the verdict counts one assert, that it prints what is expected.

        Example:
            >>> with Sandbox(workers=1) as sandbox:
            ...     sandbox.check_script("print(int(input()) * 2)", "42", stdin="21").status
            'passed'
        """
        return self.check_many([Script(code, [(stdin, expected)], timeout)])[0]

    def _message(self, check: Check | Script, pair: tuple[str, str] = ("", "")) -> dict[str, Any]:
        """A check, or one run of a script, as the judge gets it."""
        timeout = self.timeout if check.timeout is None else _seconds(check.timeout)
        message = {"code": str(check.code), "timeout": timeout}
        if isinstance(check, Script):
            return {**message, "stdin": pair[0], "expected": pair[1]}
        return {**message, "tests": [*check.tests], "names": [*check.names], "setup": check.setup}

    def _map(self, checks: Sequence[dict[str, Any]]) -> list[Verdict]:
        threads = min(self._size, len(checks))
        batch = Batch(checks, self._size)
        if threads <= 1:
            self._work(batch)
            return batch.verdicts()
        # Threads are cheap here: they spend their time waiting for their judges.
        with ThreadPoolExecutor(threads, "sandbox") as pool:
            futures = [pool.submit(self._work, batch) for _ in range(threads)]
            try:
                for future in futures:
                    future.result()
            except BaseException:  # KeyboardInterrupt above all: neither wait for a slow check nor start another
                batch.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop_workers()
                raise
        return batch.verdicts()

    def _work(self, batch: Batch) -> None:
        while not batch.is_empty:
            with self._borrow() as worker:
                worker.run(batch)

    @contextlib.contextmanager
    def _borrow(self) -> Iterator[Worker]:
        idle, worker = self._idle, None
        try:
            worker = idle.get()
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            yield worker
        finally:
            if worker is not None:
                idle.put(worker)

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _after_fork(self) -> None:
        """In a forked process: the zygotes are the parent's, and a lock may be held by a thread that is not here."""
        for worker in self._workers:
            worker.forget()
        self._fill()

    def close(self) -> None:
        """End all processes. Closing twice does nothing; a check after it raises RuntimeError."""
        self._closed = True
        self._stop_workers()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def capabilities() -> tuple[Layer, ...]:
    """The layers of protection, whether this host offers them, and why not.

    Raises:
        SandboxUnavailable: no process of the sandbox comes up at all.
    """
    if sys.platform != "linux":
        return tuple(Layer(name, False, f"{sys.platform} has no such thing") for name in LAYERS)
    worker = Worker(_config(1024, (), False) | {"core": min(os.sched_getaffinity(0))})
    try:
        return _layers(worker)
    finally:
        worker.stop()


def _config(memory_mb: int, without: Sequence[str], numpy: bool) -> dict[str, Any]:
    """What a judge and its zygote are told; for NumPy the folder that it is installed in."""
    spec = importlib.util.find_spec("numpy") if numpy else None
    if numpy and (spec is None or spec.origin is None):
        raise SandboxUnavailable("numpy=True, but NumPy is not installed here; install it: pip install numpy")
    folder = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin is not None else ""
    return {"memory_mb": memory_mb, "without": list(without), "numpy": folder}


def _layers(worker: Worker) -> tuple[Layer, ...]:
    try:
        worker.start()
    except WorkerDied as error:
        raise SandboxUnavailable(f"{error} (it needs Linux 5.3 or newer)") from error
    return tuple(Layer(*layer) for layer in worker.layers)


_sandboxes: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()
_default: Sandbox | None = None
_default_lock = threading.Lock()


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for sandbox in list(_sandboxes):
        sandbox._after_fork()


if sys.platform == "linux":
    os.register_at_fork(after_in_child=_after_fork)


def shared() -> Sandbox:
    """The sandbox of this process: made at the first call, closed when Python exits."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Sandbox()
            atexit.register(_default.close)
    return _default


def run_tests(
    code: str, tests: Sequence[str], *, names: Sequence[str] = (), setup: str = "", timeout: float | None = None
) -> Verdict:
    """Run one candidate in the `shared` sandbox; the arguments are those of `Check`.

    Example:
        >>> run_tests("def add(a, b): return a + b", ["assert add(1, 2) == 3"]).ok
        True
    """
    return shared().check(code, tests, names=names, setup=setup, timeout=timeout)

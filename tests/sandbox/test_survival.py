"""What happens to the sandbox around it, and what it leaves behind."""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_utils.sandbox import Check, Sandbox

from .conftest import check_of

HONEST = "def add(a, b): return a + b"
TESTS = ["assert add(1, 2) == 3"]
ENDLESS = Check("while True: pass", TESTS)


def descendants(pid: int) -> set[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = {int(child) for path in children for child in path.read_text().split()}
    return found.union(*(descendants(child) for child in found)) if found else found


def processes_of(sandbox: Sandbox) -> set[int]:
    roots = {worker._process.pid for worker in sandbox._workers if worker._process}
    return roots.union(*(descendants(pid) for pid in roots))


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def leftovers() -> tuple[set[int], int, int]:
    return descendants(os.getpid()), len(os.listdir("/proc/self/fd")), threading.active_count()


def start_in_another_process(body: str) -> subprocess.Popen[str]:
    """A Python that runs `body` with a sandbox; it prints when it is ready."""
    header = f"import time\nfrom grpo_utils.sandbox import Check, Sandbox\nHONEST, TESTS = {HONEST!r}, {TESTS!r}\n"
    code = header + textwrap.dedent(body)
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root)


def test_closing_leaves_no_process_descriptor_or_thread() -> None:
    before = leftovers()
    with Sandbox(workers=3) as sandbox:
        sandbox.check_many([Check(HONEST, TESTS)] * 12)
        assert len(leftovers()[0]) > len(before[0])
    assert leftovers() == before
    sandbox.close()
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.check(HONEST, TESTS)


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_outlives_a_parent_that_is_killed(busy: bool) -> None:
    body = """
        with Sandbox(workers=2) as sandbox:
            sandbox.check_many([Check(HONEST, TESTS)] * 20)
            print("ready", flush=True)
            sandbox.check_many([Check("while True: pass", TESTS, timeout=60)] * 2 if BUSY else [])
            time.sleep(60)
    """.replace("BUSY", str(busy))
    parent = start_in_another_process(body)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    time.sleep(0.5)  # the endless checks are running now
    family = descendants(parent.pid)
    parent.kill()
    parent.wait()
    assert family
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    parent.stdout.close()


def test_a_killed_zygote_is_replaced() -> None:
    with Sandbox(workers=1) as sandbox:
        sandbox.check(HONEST, TESTS)
        for pid in processes_of(sandbox):
            os.kill(pid, signal.SIGKILL)
        assert sandbox.check(HONEST, TESTS).ok


@pytest.mark.parametrize("which", [min, max])
def test_a_check_whose_zygote_or_own_process_is_killed_is_repeated(which: Callable[[set[int]], int]) -> None:
    """As the kernel does when memory runs out: nothing is known about the candidate, so it is not scored 0."""
    with Sandbox(workers=1) as sandbox:
        sandbox.check(HONEST, TESTS)
        killer = threading.Timer(0.2, lambda: os.kill(which(processes_of(sandbox)), signal.SIGKILL))
        killer.start()
        assert sandbox.check("import time\ntime.sleep(0.4)\nx = 1", ["assert x == 1"]).ok
        killer.join()


def test_a_candidate_cannot_pretend_to_be_killed_from_outside(sandbox: Sandbox) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert sandbox.check(code, TESTS).error_type == "PermissionError"


def test_a_zygote_that_cannot_start_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(workers=1) as sandbox:
        sandbox._stop_workers()
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        verdict = sandbox.check(HONEST, TESTS)
        assert (verdict.status, verdict.passed, verdict.total) == ("infrastructure", 0, 0)
        monkeypatch.undo()
        assert sandbox.check(HONEST, TESTS).ok


def test_silence_of_the_zygote_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped processes stand for a host that hangs; the candidate is not to blame, so it is not scored 0."""
    monkeypatch.setattr("grpo_utils.sandbox.worker.GRACE_SECONDS", 0.2)
    monkeypatch.setattr("grpo_utils.sandbox.batch.ATTEMPTS", 1)
    with Sandbox(workers=1) as sandbox:
        sandbox.check(HONEST, TESTS)
        for pid in processes_of(sandbox):
            os.kill(pid, signal.SIGSTOP)
        assert sandbox.check(HONEST, TESTS, timeout=0.1).status == "infrastructure"
        assert sandbox.check(HONEST, TESTS).ok


def test_it_recovers_when_descriptors_run_out() -> None:
    with Sandbox(workers=1) as sandbox:
        sandbox.check(HONEST, TESTS)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
        taken: list[int] = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            assert sandbox.check(HONEST, TESTS).ok  # a check needs none in this process
            sandbox._stop_workers()
            assert sandbox.check(HONEST, TESTS).status == "infrastructure"
            threading.Timer(0.1, lambda: [os.close(taken.pop()) for _ in range(10)]).start()
            assert sandbox.check(HONEST, TESTS).ok
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in taken:
                os.close(descriptor)


def test_a_full_disk_does_not_matter() -> None:
    """No process here can write to a file, and none has to."""
    body = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with Sandbox(workers=1) as sandbox:
            print(sandbox.check(HONEST, TESTS).status)
    """
    assert start_in_another_process(body).communicate(timeout=20)[0] == "passed\n"


def test_a_forked_process_gets_workers_of_its_own() -> None:
    with Sandbox(workers=1) as sandbox:
        sandbox.check(HONEST, TESTS)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:  # what a data loader does
            os.write(writer, sandbox.check(HONEST, TESTS).status.encode())
            sandbox.close()
            os._exit(0)
        assert sandbox.check(HONEST, TESTS).ok
        os.waitpid(pid, 0)
        assert os.read(reader, 100) == b"passed"
        assert sandbox.check(HONEST, TESTS).ok
        os.close(reader)
        os.close(writer)


def test_threads_share_it() -> None:
    failed: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            verdict = sandbox.check(f"x = {number}", [f"assert x == {number}"])
            if not verdict.ok:
                failed.append(number)

    with Sandbox(workers=2) as sandbox:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_it_outlives_the_thread_that_made_it() -> None:
    made: list[Sandbox] = []
    thread = threading.Thread(target=lambda: made.append(Sandbox(workers=1)))
    thread.start()
    thread.join()
    with made[0] as sandbox:
        pids = processes_of(sandbox)
        assert sandbox.check(HONEST, TESTS).ok
        assert processes_of(sandbox) == pids  # it was not started anew


def test_it_works_inside_a_running_event_loop(sandbox: Sandbox) -> None:
    async def cell() -> list[bool]:
        return [verdict.ok for verdict in sandbox.check_many([Check(HONEST, TESTS)] * 4)]

    assert asyncio.run(cell()) == [True] * 4


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own reaction to Ctrl-C, which a process that was started in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("checks", [[ENDLESS], [ENDLESS] * 6])
def test_an_interrupted_batch_ends_at_once_and_the_next_one_works(checks: list[Check]) -> None:
    with Sandbox(workers=2, timeout=30) as sandbox:
        sandbox.check(HONEST, TESTS)
        before = leftovers()[1:]
        started = time.monotonic()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            sandbox.check_many(checks)
        assert time.monotonic() - started < 5
        assert sandbox.check(HONEST, TESTS).ok
        assert leftovers()[1:] == before


def test_a_busy_machine_does_not_turn_a_right_answer_into_a_timeout() -> None:
    """The clock stands while a candidate waits for a core: eight of them, of which each computes for 0.4 seconds."""
    code = "import time\nwhile time.process_time() < 0.4: pass\nx = 1"
    with Sandbox(workers=8, timeout=0.8) as sandbox:
        verdicts = sandbox.check_many([Check(code, ["assert x == 1"])] * 8)
    assert [verdict.status for verdict in verdicts] == ["passed"] * 8
    if len(os.sched_getaffinity(0)) <= 4:
        assert max(verdict.wall_seconds for verdict in verdicts) > 0.8


def test_cold_plans_never_break_a_batch(tasks: list[dict[str, Any]]) -> None:
    """In CPython before 3.11.8 (gh-106905) a finalizer in one thread's parser lets another thread's parser fail."""
    checks = [check_of(task) for task in tasks[:100]]
    before = gc.get_threshold()
    gc.callbacks.append(hand_over)
    gc.set_threshold(50, 2, 2)
    try:
        with Sandbox(workers=2) as sandbox:
            for turn in range(30):
                cold = [replace(check, tests=[f"{test}  # {turn}" for test in check.tests]) for check in checks]
                assert all(verdict.ok for verdict in sandbox.check_many(cold))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(hand_over)


def hand_over(phase: str, info: dict[str, int]) -> None:
    """Lets another thread run in the middle of a collection, as any finalizer may."""
    time.sleep(0)


FORGED = """
import os, stat, struct

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False

connection = next(filter(is_socket, range(3, 32)))
for payload in (b"null", {payload!r}):
    os.write(connection, struct.pack("<cI", b"v", len(payload)) + payload)
os._exit(0)
"""


@pytest.mark.parametrize("payload", [b'{ "range":[0,1000000000000,1]}', b'{"\\u0072ange":[0,1000000000000,1]}'])
def test_a_forged_value_that_takes_long_to_compute_with_ends_no_judge(payload: bytes) -> None:
    with Sandbox(workers=1, timeout=0.5) as sandbox:
        sandbox.check("def f(n): return n", ["assert f(1) == 1"])
        judge = sandbox._workers[0]._process
        verdict = sandbox.check(FORGED.format(payload=payload), ["assert sum(f(1)) == 3"], names=["f"])
        assert verdict.outcomes == ("timeout",)
        assert sandbox._workers[0]._process is judge


def test_an_error_of_the_judge_is_told_and_ends_no_batch() -> None:
    with Sandbox(workers=2) as sandbox:
        no_check = {"code": HONEST, "timeout": 1.0}
        verdicts = sandbox._map([no_check, sandbox._message(Check(HONEST, TESTS))] * 2)
        assert [verdict.status for verdict in verdicts] == ["infrastructure", "passed"] * 2
        assert verdicts[0].error_message == "KeyError: 'tests'"

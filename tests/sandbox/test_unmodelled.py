"""What the judge does not model is unsupported with its reason, and nothing that tests expect reaches a program."""

import ast
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_utils import tasks
from grpo_utils.sandbox import Check, Sandbox
from grpo_utils.sandbox.judge import planner
from grpo_utils.sandbox.judge.planner import plan
from grpo_utils.sandbox.judge.server import Server

DATA = os.environ.get("GRPO_DATA_DIR")
SEARCH = """
import gc

def search(x):
    found, seen, todo = False, set(), [globals(), *gc.get_objects()]
    while todo and len(seen) < 200_000:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            found = found or (type(one) is int and 3 * one == 1470021) or (type(one) is str and one[::-1] == "700094")
            todo += gc.get_referents(one)
    return int("1470021") // 3 if found else 0
"""


@pytest.mark.parametrize(
    ("setup", "test"),
    [
        ("EXPECTED = {2: 490007}", "assert search(2) == EXPECTED[2]"),
        ("def reference(x): return 490007", "assert search(2) == reference(2)"),
        ("def check(f): assert f(2) == 490007", "check(search)"),
        ("class Oracle:\n    def answer(self, t=490007): return t", "assert search(2) == Oracle().answer()"),
        ("class Oracle:\n    known: int = 490007", "assert search(2) == Oracle.known"),
        ("class Oracle:\n    def answer(self): '490007'; return 490006 + 1", "assert search(2) == Oracle().answer()"),
        ("", "class Oracle:\n    def it(self, t=490007): return t\nfor x in (2,): assert search(x) == Oracle().it()"),
        ("", "expected = 490007\nassert search(2) == expected"),
        ("", "def test_it():\n    for x, y in {2: 490007}.items(): assert search(x) == y"),
    ],
)  # fmt: skip
def test_a_program_that_searches_its_memory_finds_no_expected_value(sandbox: Sandbox, setup: str, test: str) -> None:
    verdict = sandbox.check(SEARCH, [test], names=["search"], setup=setup)
    assert verdict.status == "failed", verdict
    given = sandbox.check(SEARCH, ["assert search(490007) == 490007"], names=["search"])
    assert given.ok  # it does find what it is handed


@pytest.mark.parametrize("name", ["starter", "mbpp", "human-eval"])
def test_what_a_program_gets_of_setup_and_tests_holds_no_constant(name: str) -> None:
    if name == "mbpp" and not (DATA and (Path(DATA) / "mbpp").is_dir()):
        pytest.skip("MBPP is not in GRPO_DATA_DIR")
    splits = ("test",) if name == "human-eval" else tasks.SPLITS
    for task in [task for split in splits for task in tasks.load_tasks(name, split)]:
        check = task.check("")
        assert isinstance(check, Check)
        planned = plan(tuple(check.tests), tuple(check.names), check.setup)
        shipped = ast.parse(f"{planned.shipped}\n{planned.body.candidates_setup}")
        constants = {node.value for node in ast.walk(shipped) if isinstance(node, ast.Constant)}
        assert constants <= {None, 0, 1, ""}, (task.task_id, constants)


@pytest.mark.parametrize(
    ("setup", "tests", "code", "names"),
    [
        ("from math import *", ["assert gcd(12, 18) == 6"], "def gcd(a, b): return 6 if a == 12 else 0", ["gcd"]),
        ("from builtins import *\nfrom heapq import *", ["assert heappop(f()) == 1"], "def f(): return [1, 2]", ["f"]),
        ("from math import *", ["assert f(16) == 4"], "def comb(x): return x\ndef f(x): return comb(sqrt(x))", ["f"]),
        ("from collections.abc import *", ["assert f([])"], "def f(x): return isinstance(x, Sequence)", ["f"]),
        ("class Node:\n    def __init__(self, value=0, next=None): self.value, self.next = value, next",
         ["assert f(Node(5, Node(6))).value == 6"], "def f(node): return node.next", ["f"]),
        ("def build(*values): return list(values)", ["assert f(build(1, 2)) == 3"], "def f(x): return sum(x)", ["f"]),
        ("import sys\nsys.setrecursionlimit(3000)", ["assert f(2000) == 2000"],
         "def f(n): return n and 1 + f(n - 1)", ["f"]),
        ("", ["it = f()\nassert next(it) == 1\ntry:\n    next(it)\n    assert False\nexcept StopIteration:\n    pass"],
         "def f(): yield 1", ["f"]),
        ("", ["g = f()\nfor i in range(50): next(g)\nassert g.send('x') == 'x'"],
         "def f():\n    got = None\n    while True: got = yield got", ["f"]),
    ],
)  # fmt: skip
def test_what_is_modelled_still_passes(sandbox: Sandbox, setup: str, tests: list[str], code: str, names: list[str]):
    assert sandbox.check(code, tests, names=names, setup=setup).ok


def test_a_name_of_the_program_is_not_taken_from_a_star_import(sandbox: Sandbox) -> None:
    verdict = sandbox.check(
        "def gcd(a, b): return 0", ["assert gcd(12, 18) == 6"], names=["gcd"], setup="from math import *"
    )
    assert verdict.status == "failed"


def test_a_program_that_needs_a_function_of_the_setup_is_told_so(sandbox: Sandbox) -> None:
    setup = "def is_even(x): return x % 2 == 0"
    verdict = sandbox.check("def f(x): return is_even(x)", ["assert f(2)"], names=["f"], setup=setup)
    assert verdict.status == "unsupported"
    assert "the program uses 'is_even' of the setup" in verdict.error_message


def test_a_program_cannot_end_a_loop_of_the_tests(sandbox: Sandbox) -> None:
    code = "def f(x):\n    if x > 1: raise StopIteration\n    return x"
    verdict = sandbox.check(code, ["assert all(map(lambda x: f(x) == x, (1, 2, 3)))"], names=["f"])
    assert (verdict.status, verdict.error_type) == ("error", "RuntimeError")


def test_plans_are_kept_up_to_a_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "MOST_KEPT", 50_000)
    monkeypatch.setattr(planner, "_plans", {})
    texts = [f"assert f({number}) == '{'x' * 10_000}'" for number in range(20)]
    plans = [plan((text,), ("f",)) for text in texts]
    assert 2 <= len(planner._plans) <= 5
    assert plan((texts[-1],), ("f",)) is plans[-1]
    assert plan((texts[0],), ("f",)) is not plans[0]


def test_reading_long_tests_is_not_the_program_s_time(sandbox: Sandbox) -> None:
    rows = ",".join(f"({list(range(number, number + 1000))}, {number})" for number in range(200))
    test = f"def check(g):\n    for given, wanted in [{rows}]: assert g(given) == wanted\ncheck(f)"
    assert len(test) > 900_000
    assert sandbox.check_many([Check("def f(x): return x[0]", (test,), ("f",), timeout=1.5)])[0].ok


@pytest.mark.parametrize("act", ["fork()", "kill(1, 0)"])
def test_a_hostile_test_starts_no_process_and_signals_nobody(sandbox: Sandbox, act: str) -> None:
    test = f"import sys\nx = f(1)\nsys.modules['os'].{act}\nassert x == 1"
    verdict = sandbox.check("def f(x): return x", [test], names=["f"])
    assert (verdict.status, verdict.error_type) == ("error", "PermissionError")


@pytest.mark.parametrize("in_fork", [False, True])
def test_a_fault_of_the_judge_ends_its_candidate_where_the_report_is_read(in_fork: bool) -> None:
    """Else the next check would get this one's report; and a fork that read it would leave none to its parent."""
    reader, writer = os.pipe()
    session = SimpleNamespace(await_end=lambda: None)
    finish = lambda *_: os.write(writer, b"finished")  # noqa: E731
    zygote: Any = SimpleNamespace(start=lambda *_: session, finish=finish)

    def fail(*_: Any) -> Any:
        raise KeyError("a fault")

    pid = os.fork() if in_fork else 0
    if pid == 0:
        server = Server(socket.socket(), zygote, lambda: None)
        server._writer = writer if in_fork else None
        with pytest.raises(KeyError):  # a fork does not come back from there
            server._run(plan(("assert f(1) == 1",), ("f",)), (), 1.0, fail, False)
    else:
        os.waitpid(pid, 0)
    os.close(writer)
    assert os.read(reader, 20) == (b"" if in_fork else b"finished")
    os.close(reader)

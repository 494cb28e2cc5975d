"""What a verdict says about right, wrong and broken programs."""

import random

import pytest

from grpo_utils.sandbox import Check, Sandbox, run_tests

ADD = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]


@pytest.mark.parametrize(
    ("code", "status", "error_type"),
    [
        ("def add(a, b): return a + b", "passed", ""),
        ("def add(a, b): return a * b", "failed", "AssertionError"),
        ("def add(a, b): return a / 0", "error", "ZeroDivisionError"),
        ("def add(a, b): return undefined", "error", "NameError"),
        ("def add(a, b: return a", "error", "SyntaxError"),
        ("import no_such_module", "error", "ModuleNotFoundError"),
        ("def plus(a, b): return a + b", "error", "NameError"),
        ("import sys\nsys.exit(0)", "error", "SystemExit"),
        ("import os\nos._exit(0)", "crash", ""),
        ("import os\nos.kill(os.getpid(), 40)", "crash", ""),
        ("class Add: pass\ndef add(a, b): return Add()", "failed", "AssertionError"),
        ("def add(a, b): raise ExceptionGroup('two', [ValueError(), TypeError()])", "error", "ExceptionGroup"),
        ("x = '\\ud800'\nraise UnicodeEncodeError('u', x, 0, 1, 'r')", "error", "UnicodeEncodeError"),
    ],
)
def test_status_and_error_type(sandbox: Sandbox, code: str, status: str, error_type: str) -> None:
    verdict = sandbox.check(code, ADD)
    assert (verdict.status, verdict.error_type) == (status, error_type)
    assert verdict.ok == (status == "passed")
    assert verdict.total == len(verdict.outcomes) == 2


def test_every_assert_is_judged_after_a_wrong_one(sandbox: Sandbox) -> None:
    code = "def f(n): return {1: 1, 2: 0, 3: 3}[n]"
    verdict = sandbox.check(code, [f"assert f({n}) == {n}" for n in (1, 2, 3, 4)])
    assert verdict.outcomes == ("passed", "failed", "passed", "error")
    assert (verdict.status, verdict.passed, verdict.total) == ("failed", 2, 4)
    assert verdict.error_message == "assert f(2) == 2"


@pytest.mark.parametrize(("end", "status"), [("while True: pass", "timeout"), ("import os; os.abort()", "crash")])
def test_asserts_before_the_end_of_the_process_count(sandbox: Sandbox, end: str, status: str) -> None:
    code = f"def f(n):\n    if n == 2:\n        {end}\n    print('called', n)\n    return n"
    verdict = sandbox.check(code, [f"assert f({n}) == {n}" for n in (1, 2, 3)], timeout=0.3)
    assert verdict.outcomes == ("passed", status, status)
    assert verdict.stdout == "called 1\n"
    assert verdict.error_message


def test_names_of_the_candidate_win_over_builtins(sandbox: Sandbox) -> None:
    tests = ["assert sum(10, 15) == 6"]
    assert sandbox.check("def sum(a, b): return 6", tests, names=["sum"]).ok
    assert not sandbox.check("def sum(a, b): return 6", tests).ok


def test_a_candidate_may_be_named_like_a_module(sandbox: Sandbox) -> None:
    code = "def queue(n): return n\ndef string(n): return str(n)"
    assert sandbox.check(code, ["assert queue(3) == 3", "assert string(3) == '3'"]).ok
    assert sandbox.check("def f(x): return x", ["assert copy(f([1])) == [1]"], setup="from copy import copy").ok


def test_setup_runs_after_the_candidate(sandbox: Sandbox) -> None:
    code = "class Node:\n    def __init__(self, x): self.x = x\ndef value(node): return node.x"
    assert sandbox.check(code, ["assert value(root) == 3"], setup="root = Node(3)").ok


def test_helpers_of_the_setup_cannot_be_patched(sandbox: Sandbox) -> None:
    setup = "import math\ndef near(a, b): return math.fabs(a - b) < 0.1"
    cheat = "import math\nmath.fabs = lambda x: 0\ndef near(a, b): return True\ndef f(): return 5.0"
    assert sandbox.check("def f(): return 1.05", ["assert near(f(), 1)"], setup=setup).ok
    assert not sandbox.check(cheat, ["assert near(f(), 1)"], setup=setup).ok


def test_an_iterator_and_a_view_arrive_as_data(sandbox: Sandbox) -> None:
    code = "def squares(n): return (i * i for i in range(n))\ndef keys(d): return d.keys()"
    assert sandbox.check(code, ["assert list(squares(3)) == [0, 1, 4]", "assert keys({1: 2}) == {1}"]).ok


def test_an_unseeded_random_program_gets_the_same_verdict_each_time(sandbox: Sandbox) -> None:
    code = "import random\ndef f(): return random.random()"
    first = sandbox.check(code, ["assert f() < 0.5"]).status
    assert {sandbox.check(code, ["assert f() < 0.5"]).status for _ in range(5)} == {first}


def test_tests_that_draw_do_not_change_what_the_trainer_draws(sandbox: Sandbox) -> None:
    state = random.getstate()
    body = "import random\nfor _ in range(3):\n    assert f(random.random()) < 1"
    assert sandbox.check("def f(x): return x", [body]).ok
    assert random.getstate() == state


@pytest.mark.parametrize(
    "tests",
    [
        [],
        ["this is no Python"],
        ["assert eval(f(1)) == 1"],
        ["assert os.path.exists(f(1))"],
        ["import subprocess\nassert f(1) == 1"],
        ["await f(1)"],
        ["assert f(1) == 1\nreturn"],
        ["yield f(1)"],
        ["nonlocal f\nassert f(1) == 1"],
        ["def g():\n    nonlocal h\nassert f(1) == 1"],
        [f"assert f(1) == {' + '.join(['1'] * 2000)}"],
        [f"assert f(1) == {'-' * 20_000}1"],
        ["import sys\nsys.exit(f(1))"],
        ["import sys\nassert f(1) == sys.exit()"],
        ["assert f(1) == 1 or sys.exit()\nraise SystemExit"],
        ["raise GeneratorExit"],
        ["assert f(1) == 1\nraise KeyboardInterrupt"],
    ],
)
def test_tests_that_cannot_be_judged_safely_are_unsupported(sandbox: Sandbox, tests: list[str]) -> None:
    verdict = sandbox.check("def f(x): return 1", tests)
    assert verdict.status == "unsupported"
    assert verdict.error_message


@pytest.mark.parametrize("setup", ["import sys\nsys.exit()", "raise GeneratorExit", "return", "x = 1 / 0"])
def test_a_setup_that_cannot_run_is_unsupported(sandbox: Sandbox, setup: str) -> None:
    verdict = sandbox.check("def f(x): return 1", ["assert f(1) == 1"], setup=setup)
    assert verdict.status == "unsupported"
    assert verdict.error_message


LOOP = """
def check(candidate):
    for n in range(4):
        assert candidate(n) == n * n
    try:
        candidate("x")
        assert False
    except TypeError:
        assert True
"""


def test_a_test_function_runs_here_with_remote_calls(sandbox: Sandbox) -> None:
    assert sandbox.check("def f(n): return n ** 2", [LOOP, "check(f)"]).outcomes == ("passed",) * 3
    verdict = sandbox.check("def f(n): return n + n", [LOOP, "check(f)"])
    assert verdict.outcomes == ("failed", "failed", "failed")
    stopped = sandbox.check("def f(n):\n    while n == 2: pass\n    return n * n", [LOOP, "check(f)"], timeout=0.3)
    assert stopped.outcomes == ("passed", "timeout", "timeout")


def test_a_body_without_asserts_is_not_passed(sandbox: Sandbox) -> None:
    assert sandbox.check("def f(): return []", ["for x in f():\n    assert x"]).status == "failed"


def test_asserts_that_were_not_reached_count_when_the_tests_run_as_one_program(sandbox: Sandbox) -> None:
    tests = ["assert f(1) == 1", "assert all(f(n) == n for n in (2, 3))", "assert f(4) == 4"]
    hanging = sandbox.check("def f(n):\n    while n > 1: pass\n    return n", tests, timeout=0.3)
    assert hanging.outcomes == ("passed", "timeout", "timeout")
    assert sandbox.check("1 / 0", tests).outcomes == ("error",) * 3
    mixed = ["for n in (1, 2, 3): assert f(n) == n", "assert f(4) == 4", "assert f(5) == 5"]
    late = sandbox.check("def f(n):\n    while n == 4: pass\n    return n", mixed, timeout=0.3)
    assert late.outcomes == ("passed", "timeout", "timeout")


def test_scripts_are_judged_by_what_they_print(sandbox: Sandbox) -> None:
    code = "import sys\nfor line in sys.stdin: print(int(line) * 2, ' ')\nif __name__ == '__main__': sys.exit(0)"
    assert sandbox.check_script(code, "2\n4", stdin="1\n2\n").ok
    assert sandbox.check_script(code, "2\n5", stdin="1\n2\n").status == "failed"
    assert sandbox.check_script("print(1 / 0)", "1").error_type == "ZeroDivisionError"
    assert sandbox.check_script("while True: pass", "1", timeout=0.2).status == "timeout"
    long = "x" * 300_000
    assert sandbox.check_script(f"print('x' * {len(long)})", long).ok


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): raise ValueError('\\ud800')",
        "def f(x): raise type('E\\ud800', (Exception,), {})()",
        "def f(x): raise ValueError('\\ud800' * 10_000)",
    ],
)
def test_half_a_character_of_a_candidate_can_be_stored(sandbox: Sandbox, code: str) -> None:
    verdict = sandbox.check(code, ["assert f(1) == 2"])
    assert not verdict.ok
    assert len((verdict.error_type + verdict.error_message).encode()) < 1_000


def test_what_is_printed_is_capped(sandbox: Sandbox) -> None:
    verdict = sandbox.check("def f():\n    for _ in range(100_000): print('spam')\n    return 1", ["assert f() == 1"])
    assert verdict.ok
    assert len(verdict.stdout) == 10_000


def test_verdicts_keep_their_order(sandbox: Sandbox) -> None:
    checks = [Check(f"import time\ntime.sleep({n % 3 / 50})\nx = {n}", ["assert x == 7"]) for n in range(20)]
    assert [verdict.ok for verdict in sandbox.check_many(checks)] == [n == 7 for n in range(20)]


def test_sleeping_is_charged_and_many_slow_checks_overlap() -> None:
    with Sandbox(workers=4, timeout=0.5) as sandbox:
        checks = [Check("import time\ntime.sleep(60)", ["assert True"])] * 4
        verdicts = sandbox.check_many(checks)
    assert {verdict.status for verdict in verdicts} == {"timeout"}
    assert max(verdict.wall_seconds for verdict in verdicts) < 2


def test_run_tests_needs_no_set_up() -> None:
    assert run_tests("def add(a, b): return a + b", ADD).ok

"""Whole programs, judged by what they print for each input."""

import time

import pytest

from grpo_utils.sandbox import Check, Sandbox, Script

DOUBLE = "print(int(input()) * 2)"
PAIRS = [("1", "2"), ("2\n", "4\n"), ("5", "10  \r\n\n")]


def test_a_script_has_one_outcome_for_each_input_and_may_stand_among_checks(sandbox: Sandbox) -> None:
    right, add, fitted, stops = sandbox.check_many(
        [
            Script(DOUBLE, PAIRS),
            Check("def add(a, b): return a + b", ["assert add(1, 2) == 3"], ["add"]),
            Script("print(2)", PAIRS),
            Script("n = int(input())\nprint(n * 2 if n < 5 else n / 0)", PAIRS),
        ]
    )
    assert (right.ok, right.outcomes, add.ok) == (True, ("passed",) * 3, True)
    assert (fitted.status, fitted.passed, fitted.total) == ("failed", 1, 3)
    assert fitted.outcomes == ("passed", "failed", "failed")
    assert (stops.outcomes, stops.error_type) == (("passed", "passed", "error"), "ZeroDivisionError")


def test_a_script_that_prints_nothing_gives_no_answer(sandbox: Sandbox) -> None:
    (silent,) = sandbox.check_many([Script("pass", PAIRS)])
    assert (silent.status, silent.error_type, silent.outcomes) == ("error", "NoOutput", ("error",) * 3)
    assert sandbox.check_script("pass", "\n").ok


def test_a_script_that_runs_out_of_time_is_not_run_on_every_input(sandbox: Sandbox) -> None:
    loops = Script("while True: pass", [("", str(n)) for n in range(50)], timeout=0.3)
    started = time.monotonic()
    (verdict,) = sandbox.check_many([loops])
    assert (verdict.status, verdict.outcomes) == ("timeout", ("timeout",) * 50)
    assert time.monotonic() - started < 10
    late = "n = int(input())\nprint(n)\nwhile n == 2: pass"
    (verdict,) = sandbox.check_many([Script(late, [(str(n), str(n)) for n in range(9)], timeout=0.3)])
    assert verdict.outcomes == ("passed", "passed", "timeout", *["timeout"] * 6)


@pytest.mark.parametrize("code", ["import torch\nprint(2)", "import numpy\nprint(2)"])
def test_what_cannot_be_judged_on_one_input_cannot_be_judged(sandbox: Sandbox, code: str) -> None:
    (verdict,) = sandbox.check_many([Script(code, PAIRS)])
    assert verdict.status == "unsupported"
    assert "standard library only" in verdict.error_message or "numpy=True" in verdict.error_message
    (verdict,) = sandbox.check_many([Script(DOUBLE, [])])
    assert verdict.status == "unsupported"

"""What a test may look like: a right program passes and a wrong one does not, or the verdict says why not."""

import json
import math
import resource
import time
from collections.abc import Iterator
from typing import Any

import judged
import pytest

from grpo_utils.sandbox import Check, Sandbox

FORMS = [json.loads(line) for line in judged.FORMS.read_text(encoding="utf-8").splitlines()]
ADD = "def add(a, b): return a + b"


@pytest.fixture(scope="module")
def numpy_sandbox() -> Iterator[Sandbox]:
    pytest.importorskip("numpy")
    with Sandbox(workers=1, numpy=True) as made:
        yield made


def test_every_form_is_judged_as_expected_and_none_wrongly(sandbox: Sandbox) -> None:
    found = [sandbox.check_many([judged.check_of_form(form, side) for form in FORMS]) for side in ("right", "wrong")]
    for form, right, wrong in zip(FORMS, *found, strict=True):
        assert right.status == form["expected"], (form["form"], right)
        assert right.ok or right.error_message, form["form"]
        assert not wrong.ok, form["form"]


@pytest.mark.parametrize("form", [form for form in FORMS if "numpy" in form["form"]], ids=lambda form: form["form"])
def test_numpy_where_it_is_asked_for(numpy_sandbox: Sandbox, form: dict[str, Any]) -> None:
    assert numpy_sandbox.check(form["right"], form["tests"], names=form["names"]).ok
    assert not numpy_sandbox.check(form["wrong"], form["tests"], names=form["names"]).ok


def test_arrays_travel_by_value(numpy_sandbox: Sandbox) -> None:
    code = "import numpy as np\ndef f(x):\n    x[0] = 9\n    return np.sort(x)"
    test = (
        "import numpy as np\nx = np.array([3, 1, 2])\ny = f(x)\nassert np.array_equal(y, [1, 2, 9])\nassert x[0] == 9"
    )
    assert numpy_sandbox.check(code, [test], names=["f"]).ok
    allclose = ["assert np.allclose(f(np.ones(2)), [1.0, 9.0])"]
    assert numpy_sandbox.check(code, allclose, names=["f"]).ok
    cheat = "class np:\n    allclose = staticmethod(lambda *a: True)\ndef f(x): return 0"
    assert not numpy_sandbox.check(cheat, ["assert np.allclose(f(1), 3)"], names=["f"]).ok


@pytest.mark.parametrize(
    ("code", "test", "decided"),
    [
        (
            "class P:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return s.x == o.x",
            "assert P(1) == P(1)",
            True,
        ),
        ("class P:\n    def __init__(s, x): s.x = x", "p = P(1)\nassert p == p and p.x == 1", False),
        ("import enum\nclass P(enum.Enum):\n    A = 1", "assert P(1) == P.A", False),
        ("class P(list): pass", "assert P([1]) == [1]", False),
        ("def P(x): return x", "assert P(1) == P(1)", False),
    ],
)
def test_the_verdict_says_when_the_candidates_own_code_decided(
    sandbox: Sandbox, code: str, test: str, decided: bool
) -> None:
    verdict = sandbox.check(code, [test], names=["P"])
    assert (verdict.ok, verdict.decided_by_candidate) == (True, decided)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "import decimal\ndecimal.getcontext().prec = 3",
            "import decimal\nassert decimal.Decimal(1) / 3 > add(0, 0.33301)",
        ),
        ("import math\nsetattr(math, 'pi', 3)", "import math\nassert math.pi > add(3, 0.1)"),
        (
            "import sys\nsys.setrecursionlimit(150)",
            "def deep(n): return n and deep(n - 1)\nassert deep(300) == add(0, 0)",
        ),
        ("import random\nsetattr(random, 'random', lambda: 7)", "import random\nassert random.random() < add(1, 1)"),
    ],
)
def test_what_tests_change_stays_with_their_check(sandbox: Sandbox, first: str, second: str) -> None:
    assert sandbox.check(ADD, [first, "assert add(1, 2) == 3"]).ok
    verdicts = sandbox.check_many([Check(ADD, [second], ["add"])] * 6)
    assert [verdict.status for verdict in verdicts] == ["passed"] * 6
    assert math.pi > 3.1


@pytest.mark.parametrize("tests", [[""], ["", "  ", "\n"], ["# comment"], ["x = 1"], ["assert 1 == 1"], ["'text'"]])
def test_tests_that_ask_nothing_are_unsupported(sandbox: Sandbox, tests: list[str]) -> None:
    verdict = sandbox.check(ADD, tests, names=["add"])
    assert (verdict.status, verdict.passed) == ("unsupported", 0)
    assert verdict.error_message


def test_a_name_that_is_nobodys_is_unsupported(sandbox: Sandbox) -> None:
    verdict = sandbox.check(ADD, ["assert helper(add(1, 2)) == 3"], names=["add"])
    assert verdict.status == "unsupported"
    assert "'helper'" in verdict.error_message
    assert sandbox.check(f"{ADD}\ndef helper(x): return x", ["assert helper(add(1, 2)) == 3"], names=["add"]).ok


def test_an_assert_in_a_loop_is_one(sandbox: Sandbox) -> None:
    tests = ["for x in add([1] * 25_000, [1] * 25_000):\n    assert isinstance(x, int)", "assert add(1, 2) == 4"]
    verdict = sandbox.check(ADD, tests, names=["add"])
    assert (verdict.passed, verdict.total) == (1, 2)


FIRE = {
    "brackets and quotes": ("import os\nFRAME = b'[' * 61 + b'\\\\\"' * 400_000", "assert add(1, 2) == 3"),
    "a format": ("def add(a, b): return '%700000000d'", "assert add(2, 2) % 3 == 1"),
    "a regular expression": ("def add(a, b): return 'a' * 40 + '!'", r"assert re.match(r'(\w+\s?)+$', add(1, 2))"),
    "a range": ("def add(a, b): return range(10**15)", "assert sum(add(1, 2)) == 3"),
    "an exponent": ("def add(a, b): return 10**9", "assert 7 ** add(1, 2) == 3"),
    "a long list": ("def add(a, b): return list(range(200_000))", "assert sum(add(1, 2)) == 3"),
    "a long text": ("def add(a, b): return 'x' * 1_000_000", "assert add(1, 2) * 1000 == ''"),
    "endless items": ("def add(a, b):\n    while True: yield 1", "assert list(add(1, 2)) == 3"),
    "sleep": ("import time\ndef add(a, b): time.sleep(60)", "assert add(1, 2) == 3"),
    "a trickle": ("import time\ndef add(a, b):\n    while True: time.sleep(0.001)", "assert add(1, 2) == 3"),
}  # fmt: skip
WIRE = """
import os, stat, struct
for fd in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): break
    except OSError: pass
for payload in (b"null", FRAME):
    data = memoryview(struct.pack("<cI", b"v", len(payload)) + payload)
    while data: data = data[os.write(fd, data):]
os._exit(0)
"""


@pytest.mark.parametrize("name", FIRE)
def test_a_judge_under_fire_ends_in_time_and_spares_the_trainer(sandbox: Sandbox, name: str) -> None:
    code, test = FIRE[name]
    limit = 1.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    verdict = sandbox.check(code + (WIRE if "FRAME" in code else ""), [test], names=["add"], timeout=limit)
    taken = time.monotonic() - started
    assert not verdict.ok
    if name in ("sleep", "a trickle"):
        assert verdict.status == "timeout"
        assert verdict.wall_seconds < 1.5 * limit * busy()
    assert taken < 2 * limit * busy() + 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def busy() -> float:
    """How many times as long as alone a process takes here, about: other processes may share the cores."""
    with open("/proc/loadavg") as file:
        return max(1.0, float(file.read().split()[0]))

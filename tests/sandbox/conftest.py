"""A sandbox for all tests, and the tasks that this machine has."""

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_utils.sandbox import Check, Sandbox

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(workers=2) as made:
        yield made


@pytest.fixture(scope="session")
def tasks() -> list[dict[str, Any]]:
    """Rows in MBPP's schema: MBPP itself where GRPO_DATA_DIR has it, else the starter tasks."""
    downloaded = Path(os.environ.get("GRPO_DATA_DIR", ROOT / "data"), "mbpp")
    files = sorted(downloaded.glob("*.jsonl")) or sorted((ROOT / "data" / "starter").glob("*.jsonl"))
    if not files:
        pytest.skip("no tasks: set GRPO_DATA_DIR")
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def check_of(task: dict[str, Any], code: str | None = None, tests: str = "test_list", timeout: float = 20.0) -> Check:
    """A check of the task's reference solution, or of other code against the same asserts."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in ast.parse(task["code"]).body if isinstance(node, definitions)]
    setup = task.get("test_setup_code") or ""
    return Check(task["code"] if code is None else code, task[tests], names, setup, timeout)

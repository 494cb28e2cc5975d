"""Shared by the tests of notebooks: executes the solutions of a chapter that a run has executed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
import pytest

from grpo_utils.runs import ROOT


@pytest.fixture
def solve(monkeypatch, tmp_path) -> Callable[..., None]:
    """Executes the solutions of chapter `number` on a smoke run in a folder; they leave the run as it is."""

    def solve(number: str, outputs: Path, overrides: dict[str, Any] | None = None) -> None:
        monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(outputs))
        files = {path: path.stat().st_mtime_ns for path in outputs.rglob("*") if path.is_file()}
        parameters = {"RECIPE": "smoke-code", "OVERRIDES": overrides or {}}
        path = ROOT / "notebooks" / "solutions" / f"{number}_solutions.ipynb"
        papermill.execute_notebook(str(path), str(tmp_path / path.name), parameters, progress_bar=False, cwd=str(ROOT))
        assert {path: path.stat().st_mtime_ns for path in files} == files

    return solve

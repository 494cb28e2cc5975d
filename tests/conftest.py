"""Shared by all tests: outputs go to a temporary folder, and one sandbox serves the whole session."""

from collections.abc import Iterator

import pytest

from grpo_utils.sandbox import Sandbox


@pytest.fixture(autouse=True)
def outputs_in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path / "outputs"))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as shared:
        yield shared

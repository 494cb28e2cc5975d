"""The benchmark's tables and figure, from made-up times."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("sandbox")


@pytest.fixture(scope="module")
def times(benchmark: ModuleType) -> dict[str, dict[str, list[float]]]:
    each = {benchmark.YARDSTICK: [8.0, 6.0], benchmark.ONE_CORE: [2.0, 1.5], benchmark.ALL_CORES: [1.0, 0.75]}
    each[benchmark.COLD] = [2.0, 1.5]
    return dict.fromkeys(benchmark.CONDITIONS, each)


def test_the_table_gives_ratios_first(benchmark: ModuleType, times: dict[str, Any]) -> None:
    text = benchmark.table(times, "title")
    assert text.index("| this sandbox, one core | 0.25 |") < text.index("| this sandbox, one core | 1.75 |")
    assert "2.00 times as fast as on one. With 3 GiB 1.00 times the time. While the parent" in text


def test_the_figure_is_drawn(benchmark: ModuleType, times: dict[str, Any], tmp_path: Path) -> None:
    benchmark.draw(times, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_every_way_judges_right_and_wrong_programs(benchmark: ModuleType, sandbox: Any) -> None:
    good = benchmark.Check("def f(): return 1", ("assert f() == 1",))
    bad = benchmark.Check("def f(): return 2", ("assert f() == 1",))
    for name, way in benchmark.available_ways().items():
        arguments = {"sandbox": sandbox} if way in (benchmark.by_sandbox, benchmark.by_cold_sandbox) else {}
        assert way([good, bad], **arguments) == [True, False], name

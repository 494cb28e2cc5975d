"""Hours of work, GRPO_BATCHES of them for the sandbox, leave no trace: memory, descriptors and processes stay."""

import os
from pathlib import Path
from statistics import median

from grpo_utils import runs, training
from grpo_utils.sandbox import Check, Sandbox

from .conftest import tiny_settings

BATCHES = int(os.environ.get("GRPO_BATCHES", "2000"))
HONEST = Check("def add(a, b): return a + b", ["assert add(1, 2) == 3"])
BATCH = [
    HONEST,
    Check("def add(a, b): return [0] * 1_000_000", HONEST.tests),
    Check("import os\nos._exit(0)", HONEST.tests),
    Check("def add(a, b): raise ValueError('x' * 10_000)", HONEST.tests),
]


def family(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for path in lists for child in path.read_text().split()]
    return [pid, *(descendant for child in children for descendant in family(child))]


def megabytes(pids: list[int]) -> float:
    """Resident memory of processes, each page counted once per process."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def look() -> tuple[float, int, int]:
    """Memory in MB, descriptors, processes."""
    pids = family(os.getpid())
    return megabytes(pids), len(os.listdir("/proc/self/fd")), len(pids)


def test_thousands_of_batches_leave_the_sandbox_as_it_was():
    seen = []
    with Sandbox(workers=2) as sandbox:
        for number in range(BATCHES):
            verdicts = sandbox.check_many(BATCH)
            assert [verdict.ok for verdict in verdicts] == [True, False, False, False]
            if (number + 1) % (BATCHES // 20) == 0:
                seen.append(look())
    print(*seen, sep="\n")
    memory, descriptors, processes = zip(*seen, strict=True)
    assert set(descriptors) == {descriptors[0]}
    assert set(processes) == {processes[0]}
    assert median(memory[-5:]) - median(memory[:5]) < 5


def test_two_hundred_training_steps_keep_their_memory(tiny_model):
    recipe = runs.load_recipe("smoke-code", tiny_settings(tiny_model, steps=200, save=100))
    seen: list[tuple[float, int, int]] = []
    training.train(recipe, runs.start_run(recipe), on_log=lambda entry: seen.append(look()))
    print(*seen[::20], sep="\n")
    memory, descriptors, processes = zip(*seen[20:200], strict=True)
    assert len(seen) >= 200
    assert max(descriptors) - min(descriptors) <= 2
    assert max(processes) == min(processes)
    assert median(memory[-20:]) - median(memory[:20]) < 30

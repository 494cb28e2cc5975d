"""The checks of one call, and what is known of each so far."""

import pkgutil
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .verdict import Verdict

ATTEMPTS = 3  # at a check when the sandbox fails; after the last the verdict is "infrastructure"
CHUNK = 16  # checks that a worker takes at once, at most

Numbered = tuple[int, dict[str, Any]]  # a check and its place in the batch


class Batch:
    """Checks for several workers: each takes some at a time, fewer towards the end, so that all finish together."""

    def __init__(self, checks: Sequence[dict[str, Any]], workers: int) -> None:
        self._waiting = deque(enumerate(checks))
        self._workers = workers
        self._attempts = [0] * len(checks)
        self._verdicts: list[Verdict | None] = [None] * len(checks)
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def take(self) -> list[Numbered]:
        """Some checks; none when there are no more."""
        with self._lock:
            share = min(-(-len(self._waiting) // (4 * self._workers)), CHUNK) if self._waiting else 0
            return [self._waiting.popleft() for _ in range(share)]

    def put(self, number: int, verdict: Verdict) -> None:
        self._verdicts[number] = _without_package(verdict) if verdict.error_type == "ModuleNotFoundError" else verdict

    def give_back(self, checks: list[Numbered], error: Exception | None) -> None:
        """Take back checks that were not judged; the first of them met the error."""
        if error is not None and checks:
            number = checks[0][0]
            self._attempts[number] += 1
            if self._attempts[number] >= ATTEMPTS:
                self.put(number, Verdict("infrastructure", error_message=str(error)))
                checks = checks[1:]
            else:
                time.sleep(0.2 * self._attempts[number])
        with self._lock:
            if self._workers:
                self._waiting.extendleft(reversed(checks))

    def stop(self) -> None:
        with self._lock:
            self._workers = 0
            self._waiting.clear()

    def verdicts(self) -> list[Verdict]:
        return [verdict for verdict in self._verdicts if verdict is not None]


def _without_package(verdict: Verdict) -> Verdict:
    """A program that imports a package of this Python is not wrong: candidates have the standard library only."""
    name = verdict.error_message.partition("'")[2].partition("'")[0].partition(".")[0]
    if name not in _packages():
        return verdict
    how = "Sandbox(numpy=True) lets it" if name == "numpy" else "candidates have the standard library only"
    return Verdict("unsupported", error_message=f"the program imports {name!r}: {how}", stdout=verdict.stdout)


@lru_cache(maxsize=1)
def _packages() -> frozenset[str]:
    """The packages of this Python: listed, for to look for one by a name that a program chose may import it."""
    return frozenset(module.name for module in pkgutil.iter_modules()) - sys.stdlib_module_names

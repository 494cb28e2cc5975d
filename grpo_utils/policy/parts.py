"""Completions on all cores: a process for each core, which writes a part of them.

Between two matrix products a step of decoding does hundreds of small things, most of which one core does while the
others wait for it. Processes that never wait for each other are a fifth faster on two cores.
"""

import ctypes
import itertools
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import torch

Written = Iterator[tuple[int, list[int]]]  # positions and token ids
CORES = 4  # up to so many each have a process; more are better used together
LEAST = 8  # completions that are worth a process
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def count_parts(model: Any, completions: int) -> int:
    """Returns in how many parts completions are written: 1 where processes cannot be forked, or would not help."""
    cores = torch.get_num_threads()
    can_fork = sys.platform == "linux" and model.device.type == "cpu"
    return min(cores, completions // LEAST) if can_fork and cores <= CORES and completions >= 2 * LEAST else 1


def deal_parts(ids: Sequence[list[int]], order: Sequence[int], number: int) -> list[list[int]]:
    """Returns positions in so many parts, each in `order`; those with the same ids stay together as far as they can.

    Example:
        >>> deal_parts([[1], [1], [1, 2], [1, 2], [1, 2, 3]], [0, 1, 2, 3, 4], 2)
        [[0, 1, 4], [2, 3]]
    """
    most = -(-len(order) // number)
    parts: list[list[int]] = [[] for _ in range(number)]
    for _, same in itertools.groupby(order, key=lambda i: ids[i]):
        while some := list(itertools.islice(same, most - min(map(len, parts)))):
            min(parts, key=len).extend(some)
    return parts


@contextmanager
def one_thread() -> Iterator[None]:
    """In the block, torch computes on one core: a forked process that asked OpenMP for more would wait for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_parts(
    write: Callable[[list[int]], Written], parts: Sequence[list[int]]
) -> Generator[tuple[int, list[int]], None, None]:
    """Yields what `write` yields for every part, the first of which is written here and the others beside it.

    Raises:
        RuntimeError: a process has failed, for a reason that it has printed.
    """
    others: list[tuple[int, BinaryIO]] = []
    try:
        for part in parts[1:]:  # one by one: where the second cannot be started, the first must be ended
            others.append(_fork(write, part))
        yield from write(parts[0])
        for pid, answer in others:
            content = answer.read()
            if not content:
                raise RuntimeError(
                    f"Process {pid}, which wrote a part of the completions, has died: what it printed says why. If it "
                    "printed nothing, it was ended, perhaps for lack of memory; a smaller batch needs less."
                )
            yield from pickle.loads(content)
    finally:
        for pid, answer in others:
            answer.close()
            os.kill(pid, signal.SIGKILL)  # it has ended, or this generator is closed early
            os.waitpid(pid, 0)


def _fork(write: Callable[[list[int]], Written], part: list[int]) -> tuple[int, BinaryIO]:
    """Starts a process that writes a part, and returns its id and where its answer can be read."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():  # Python warns of locks that other threads hold: the process takes none of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writer)
        return pid, os.fdopen(reader, "rb")
    try:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who interrupts the caller ends this process too
        answer = pickle.dumps(list(write(part)))
        with os.fdopen(writer, "wb") as file:
            file.write(answer)
    except BaseException:  # whatever it is, it must not go on as a second copy of the caller
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)

"""Completions in parts: the same as in one piece, and no process outlives the call."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_utils import policy, runs
from grpo_utils.policy.parts import count_parts, deal_parts, write_parts


@pytest.fixture
def two_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def none_left() -> Iterator[None]:
    """Other tests' sandboxes are children of this process too."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def load(model: Path) -> policy.Policy:
    return policy.load_policy(runs.load_recipe("smoke-code", {"model.name": str(model), "model.dtype": "float32"}))


@pytest.mark.usefixtures("two_cores")
def test_parts_are_what_one_process_writes(tiny_model, monkeypatch):
    loaded = load(tiny_model)
    prompts = ["a", "Write a list.", "a", "one two three"] * 8
    seeds = [None if i % 2 else i for i in range(len(prompts))]

    def written() -> list[list[int]]:
        settings = {"temperature": 1.0, "max_new_tokens": 9, "batch_size": 6}
        return [one.ids for one in policy.generate_completions(loaded, prompts, seeds, **settings)]

    assert count_parts(loaded.model, len(prompts)) == 2
    beside = written()
    monkeypatch.setattr("grpo_utils.policy.decoding.count_parts", lambda *_: 1)
    assert written() == beside
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
def test_a_fault_in_what_takes_the_completions_leaves_no_process_while_its_traceback_is_kept(tiny_model, fault):
    loaded, before = load(tiny_model), set(psutil.Process().children())
    beside = []

    def on_batch(*_):
        beside.extend(set(psutil.Process().children()) - before)
        raise fault

    settings: Any = {"temperature": 1.0, "max_new_tokens": 500, "batch_size": 1, "on_batch": on_batch}
    with pytest.raises(fault) as kept:
        policy.generate_completions(loaded, ["a"] * 16, list(range(16)), **settings)
    assert beside
    assert set(psutil.Process().children()) <= before
    assert kept.tb


@pytest.mark.usefixtures("two_cores")
def test_few_completions_and_many_cores_have_one_process():
    model = torch.nn.Linear(1, 1)
    model.device = torch.device("cpu")  # type: ignore[assignment]
    assert [count_parts(model, number) for number in (1, 15, 16, 1000)] == [1, 1, 2, 2]
    torch.set_num_threads(8)
    assert count_parts(model, 1000) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4))
def test_parts_are_equally_large_in_order_and_keep_equal_prompts_together(kinds, number):
    ids, order = [[kind] for kind in kinds], sorted(range(len(kinds)), key=lambda i: (kinds[i], i))
    parts = deal_parts(ids, order, number)
    assert sorted(i for part in parts for i in part) == list(range(len(kinds)))
    assert max(map(len, parts)) <= -(-len(kinds) // number)
    assert all(part == [i for i in order if i in part] for part in parts)
    owners = [len({kinds[i] for i in part}) for part in parts]
    assert sum(owners) <= len(set(kinds)) + number - 1  # only where a part is full is a prompt in two of them


@pytest.mark.usefixtures("none_left")
def test_a_process_that_dies_is_an_error_and_none_is_left(capfd):
    def write(part):
        if part == [2]:
            raise OSError("no luck")
        yield from ((i, [i]) for i in part)

    with pytest.raises(RuntimeError, match="has died"):
        list(write_parts(write, [[1], [2], [3]]))
    assert "no luck" in capfd.readouterr().err


@pytest.mark.usefixtures("none_left")
def test_who_stops_early_or_is_interrupted_ends_the_others_at_once():
    def write(part):
        yield part[0], part
        if part == [2]:
            time.sleep(60)

    began = time.monotonic()
    written = write_parts(write, [[1], [2]])
    assert next(written) == (1, [1])
    written.close()

    def interrupted(part):
        if part == [2]:
            os.kill(os.getpid(), signal.SIGINT)  # which a terminal sends to all of them
            time.sleep(60)
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        list(write_parts(interrupted, [[1], [2]]))
    assert time.monotonic() - began < 30

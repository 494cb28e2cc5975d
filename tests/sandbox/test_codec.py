"""The border between the two sides: round trips, and hostile bytes."""

import array
import datetime
import decimal
import math
import random
import time
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_utils.sandbox.jail.codec import MAX_BYTES, MAX_ITEMS, NotPlain, Table, Writer, encode
from grpo_utils.sandbox.jail.reader import Reader, decode

texts = st.text(st.characters(exclude_categories=())) | st.text()
integers = st.integers() | st.integers(-(2**2000), 2**2000)
numbers = integers | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.fractions() | st.booleans()
dates = st.dates() | st.times() | st.datetimes() | st.timedeltas()
hashable = st.none() | numbers | texts | st.binary() | dates | st.decimals(allow_nan=False, places=3)
values = st.recursive(
    hashable | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(hashable, inner)
        | st.sets(hashable)
        | st.frozensets(hashable)
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down, so that 1, 1.0 and True differ."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    return left == right


@given(values)
def test_plain_values_survive_the_round_trip(value: Any) -> None:
    assert same(decode(encode(value)), value)


def test_what_python_says_is_equal_stays_equal() -> None:
    values = [
        Counter("aab"), defaultdict(int, a=1), OrderedDict(a=1), range(3), slice(1, 2), ..., uuid.UUID(int=5),
        array.array("i", [1, 2]), datetime.timezone(datetime.timedelta(hours=1)),
    ]  # fmt: skip
    for value in values:
        assert same(decode(encode(value)), value)
    assert decode(encode({2: 1, 1: 2}.items())) == {2: 1, 1: 2}.items()
    assert list(decode(encode({2: 1, 1: 2}.keys()))) == [2, 1]
    for iterator in (iter([1, 2]), (n for n in (1, 2)), map(int, "12"), {1: 0, 2: 0}.keys().__iter__()):
        assert list(decode(encode(iterator, drain=True))) == [1, 2]
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode([math.inf, -math.inf])) == [math.inf, -math.inf]


class Chameleon(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize("value", [object(), Chameleon(3), len, int, [object()], {1: lambda: 0}, iter([1])])
def test_objects_are_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        decode(encode(value))


def test_an_endless_iterator_does_not_travel() -> None:
    with pytest.raises(NotPlain):
        encode(iter(range(MAX_ITEMS + 5)), drain=True)


def test_with_a_table_identity_and_changes_survive() -> None:
    inner: list[Any] = [1]
    value = {"a": inner, "b": [inner]}
    inner.append(value)
    ours, theirs = Table(), Table()
    copy = Reader(theirs).message(Writer(ours).message(value))
    assert copy["a"] is copy["b"][0]
    assert copy["a"][1] is copy
    copy["a"][:] = [2, copy["b"]]
    back = Reader(ours).message(Writer(theirs).message(copy["b"], states=[*theirs.objects]))
    assert back is value["b"]
    assert inner == [2, back]


def test_a_cycle_and_an_enormous_value_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotPlain):
        decode(encode(cycle))
    with pytest.raises(NotPlain):
        encode("x" * MAX_BYTES)


def read_hostile(data: bytes) -> None:
    """Decode, use the value as a test might, and allow nothing but the documented error."""
    started = time.process_time()
    try:
        value = decode(data)
        repr(value)[:1] if not hasattr(value, "__next__") else list(value)
    except (NotPlain, ValueError, decimal.InvalidOperation):  # the last two: of numbers too long to be printed
        pass
    assert time.process_time() - started < 5


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["int", "float", "str", "tuple", "dict", "set", "frozenset", "deque", "bytes", "bytearray", "complex", "range",
         "Decimal", "Fraction", "date", "time", "datetime", "timedelta", "iterator", "more", "opaque", "x"]
    ), inner, max_size=2),
    max_leaves=10,
)  # fmt: skip


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_the_documented_error(data: bytes) -> None:
    read_hostile(data)


@given(json_like)
@settings(max_examples=300)
def test_malformed_tags_raise_only_the_documented_error(node: Any) -> None:
    import json

    read_hostile(json.dumps(node).encode())


@given(values, st.randoms(use_true_random=False))
def test_damaged_encodings_raise_only_the_documented_error(value: Any, chance: random.Random) -> None:
    data = bytearray(encode(value))
    for _ in range(3):
        data[chance.randrange(len(data))] = chance.randrange(256)
    read_hostile(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"[" * MAX_BYTES,
        b'{"tuple":' * 100_000,
        b"[" * 100 + b"]" * 100 + b"[" * 1000,
        b"1" * MAX_BYTES,
        b'{"int":"' + b"f" * (MAX_BYTES - 20) + b'"}',
        b'{"range":[0,1000000000000000000,1]}',
        b'{"range":[0,1,0]}',
        b'{"Decimal":"1e999999999"}',
        b'{"Decimal":"' + b"9" * 1_000_000 + b'"}',
        b'{"Fraction":["1","0"]}',
        b'{"float":"' + b"1" * 1_000_000 + b'"}',
        b"NaN",
        b"-Infinity",
        b"1e999",
        b'"\\ud800"',
        b'"\xff"',
        b"[" + b",".join([b"[]"] * 300_000) + b"]",
        b"[" + b",".join([b'{"set":[]}'] * 90_000) + b"]",
        b"x" * (MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_bombs_are_harmless(data: bytes) -> None:
    read_hostile(data)


def test_known_kinds_of_the_standard_library() -> None:
    day = datetime.date(2024, 2, 29)
    for value in (
        Decimal("1.50"),
        Fraction(-1, 3),
        day,
        datetime.timedelta(-1, 5),
        datetime.time(1, 2),
        bytearray(b"a"),
    ):
        assert same(decode(encode(value)), value)

"""Reads what `jail.encoder` wrote, or whatever else a hostile process sends in its place."""

import collections
import datetime
import itertools
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .jail.encoder import EXACT, MAX_BYTES, MAX_DEPTH, MAX_ITEMS, CodecError

MAX_INT_DIGITS = 1 << 16  # hexadecimal: 262,144 bits, enough for 20,000!
MAX_COLLISIONS = 1000  # different values with the same hash

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def decode(data: bytes) -> Any:
    """Read one value from hostile bytes, in bounded time and memory.

    Args:
        data: what `encode` wrote, or anything else.

    Returns:
        A value made of plain Python objects only; it shares nothing with the process that wrote it.

    Raises:
        CodecError: the bytes are not a value, hold an opaque object, or exceed a limit of this module.

    Example:
        >>> decode(b'{"tuple":[1,2.5,{"set":["a"]}]}')
        (1, 2.5, {'a'})
    """
    if len(data) > MAX_BYTES:
        raise CodecError(f"more than {MAX_BYTES} bytes")
    try:
        # The parser recurses in C; a trainer may have raised Python's recursion limit beyond its stack.
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
            brackets = _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS)
            if max(itertools.accumulate(map(_STEP.__getitem__, brackets)), default=0) > 3 * MAX_DEPTH + 3:
                raise CodecError("nested too deeply")
        return _Reader().read(_loads(data.decode()))
    except CodecError:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise CodecError(f"not a value: {type(error).__name__}: {str(error)[:200]}") from None


def _small_int(digits: str) -> int:
    if len(digits) > 17:  # int() of a long text takes quadratic time
        raise CodecError("a large integer must travel as hexadecimal")
    return int(digits)


def _no_constant(name: str) -> float:
    raise CodecError(f"{name} must travel as a tagged float")


_loads = json.JSONDecoder(parse_int=_small_int, parse_constant=_no_constant).decode


class _Reader:
    """One decoding. It counts hash collisions: 100,000 integers with the same hash make a set take hours."""

    def __init__(self) -> None:
        self.first_with_hash: dict[int, Any] = {}
        self.collisions = 0

    def read(self, node: Any) -> Any:
        if type(node) is list:
            return [self.read(item) for item in node]
        if type(node) is not dict:
            return node
        if len(node) != 1 and node.keys() != {"iterator", "more"}:
            raise CodecError("an object must hold one tag")
        tag, payload = next(iter(node.items()))
        if tag == "opaque":
            raise CodecError(f"an object of type {str(payload)[:60]!r} is not plain data")
        if tag == "iterator":
            items = [self.read(item) for item in payload]
            return _cut_off(items) if "more" in node else iter(items)
        return self.noted(_READERS[tag](self, payload))

    def items(self, payload: Any) -> list[Any]:
        if type(payload) is not list:
            raise CodecError("a container must hold a list")
        return [self.read(item) for item in payload]

    def pairs(self, payload: Any) -> dict[Any, Any]:
        return {self.read(key): self.read(value) for key, value in payload}

    def noted(self, value: Any) -> Any:
        try:
            key = hash(value)
        except TypeError:  # a list, or a tuple that holds one: it cannot be put into a set either
            return value
        first = self.first_with_hash.setdefault(key, value)
        if first is not value and first != value:
            self.collisions += 1
            if self.collisions > MAX_COLLISIONS:
                raise CodecError("too many values share one hash")
        return value


def _cut_off(items: list[Any]) -> Iterator[Any]:
    """An iterator that had more items than travel: the first of them can be used, the end cannot."""
    yield from items
    raise CodecError(f"the iterator has more than {MAX_ITEMS} items")


def _read_int(payload: str) -> int:
    if len(payload) > MAX_INT_DIGITS:
        raise CodecError("the integer is too long")
    return int(payload, 16)


def _read_range(payload: list[Any]) -> range:
    start, stop, step = (_read_int(end["int"]) if type(end) is dict else end for end in payload)
    value = range(start, stop, step)
    if not -EXACT < (stop - start) // step <= MAX_ITEMS:  # len() overflows on a long range
        raise CodecError("the range is too long")
    return value


def _read_decimal(payload: str) -> Decimal:
    value = Decimal(payload) if len(payload) < 5000 else Decimal("sNaN")
    if value.is_snan() or (value.is_finite() and abs(value.adjusted()) > 5000):
        raise CodecError("the decimal is too long")  # int(Decimal("1e999999999")) fills the memory
    return value


def _read_fraction(payload: list[str]) -> Fraction:
    if sum(map(len, payload)) > 8192:  # Fraction() takes a gcd: quadratic time
        raise CodecError("the fraction is too long")
    return Fraction(_read_int(payload[0]), _read_int(payload[1]))


_READERS: dict[str, Callable[[_Reader, Any], Any]] = {
    "int": lambda _, payload: _read_int(payload),
    "float": lambda _, payload: float(payload),
    "str": lambda _, payload: bytes.fromhex(payload).decode("utf-8", "surrogatepass"),
    "tuple": lambda reader, payload: tuple(reader.items(payload)),
    "dict": lambda reader, payload: reader.pairs(payload),
    "set": lambda reader, payload: set(reader.items(payload)),
    "frozenset": lambda reader, payload: frozenset(reader.items(payload)),
    "deque": lambda reader, payload: collections.deque(reader.items(payload)),
    "bytes": lambda _, payload: bytes.fromhex(payload),
    "bytearray": lambda _, payload: bytearray.fromhex(payload),
    "complex": lambda _, payload: complex(float(payload[0]), float(payload[1])),
    "range": lambda _, payload: _read_range(payload),
    "Decimal": lambda _, payload: _read_decimal(payload),
    "Fraction": lambda _, payload: _read_fraction(payload),
    "date": lambda _, payload: datetime.date.fromisoformat(payload),
    "time": lambda _, payload: datetime.time.fromisoformat(payload),
    "datetime": lambda _, payload: datetime.datetime.fromisoformat(payload),
    "timedelta": lambda _, payload: datetime.timedelta(*payload),
}

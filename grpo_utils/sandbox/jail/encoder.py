"""Writes values of the candidate as tagged JSON; `decoder` on the trusted side reads them.

Only plain data crosses the border. JSON, because its parser cannot be made to run code and fails with
an exception on bad input; `pickle`, `marshal` and `ast.literal_eval` are not safe on hostile bytes.

| Python                                               | JSON                                             |
|------------------------------------------------------|--------------------------------------------------|
| None, bool, int below 2**53, finite float, str, list | themselves                                       |
| every other type that is supported                   | `{"tag": payload}`, an object with one key       |
| anything else                                        | `{"opaque": type name}`, which is never decoded  |

Subclasses lose their class (a `Counter` arrives as a dict, a namedtuple as a tuple), iterators are drained
up to `MAX_ITEMS`. What this does not do: keep identity (two references to one list arrive as two lists), or
carry functions, classes and instances of classes that the candidate wrote.
"""

import collections
import itertools
import math
import types
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

MAX_BYTES = 1 << 20  # of one encoded value; about 60 MB once decoded, in the worst case
MAX_DEPTH = 60  # of nested containers
MAX_ITEMS = 100_000  # taken from an iterator, or in a range
EXACT = 2**53  # below this every JSON reader agrees on an integer


class CodecError(ValueError):
    """The bytes or the value are outside of what the codec carries."""


_VIEWS = (type({}.keys()), type({}.items()))
_ITERATORS = (
    types.GeneratorType, map, filter, zip, enumerate, reversed, type({}.values()),
    *{type(iter(sample)) for sample in ([], (), {}, {}.values(), {}.items(), set(), "", "é", b"", range(1))},
    *{type(reversed(sample)) for sample in ([], range(1))},
    *(value for value in vars(itertools).values() if isinstance(value, type)),
)  # fmt: skip
_PLAIN_BASES: tuple[type, ...] = (int, str, float, dict, list, tuple, set, frozenset, collections.deque)
_KNOWN_EQUALITY = (collections.Counter, collections.OrderedDict, collections.defaultdict)


def encode(value: Any) -> bytes:
    """Write one value as tagged JSON.

    Args:
        value: anything; what the codec does not carry is written as opaque.

    Returns:
        At most `MAX_BYTES` bytes of ASCII.

    Raises:
        CodecError: the result would be longer than that.

    Example:
        >>> encode((1, 2.5, {"a"}))
        b'{"tuple":[1,2.5,{"set":["a"]}]}'
    """
    data = _write(value, 0).encode()
    if len(data) > MAX_BYTES:
        raise CodecError(f"the value takes {len(data)} bytes, the limit is {MAX_BYTES}")
    return data


def _write(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is int:
        return str(value) if -EXACT < value < EXACT else f'{{"int":"{value:x}"}}'
    if kind is str:
        return _write_text(value)
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    if kind is float:
        return repr(value) if math.isfinite(value) else f'{{"float":"{value!r}"}}'
    if depth >= MAX_DEPTH:
        return '{"opaque":"deeply nested value"}'
    if kind is list:
        return _write_items(value, depth + 1)
    writer = _WRITERS.get(kind) or _LIBRARY_WRITERS.get(f"{kind.__module__}.{kind.__name__}")
    if writer is not None:
        return f'{{"{kind.__name__}":{writer(value, depth + 1)}}}'
    return _write_unusual(value, kind, depth + 1)


def _write_text(value: str) -> str:
    """JSON joins two surrogates into one character; strings that hold any travel as bytes."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return f'{{"str":"{value.encode("utf-8", "surrogatepass").hex()}"}}'
    return encode_basestring_ascii(value)


def _write_items(value: Iterable[Any], depth: int) -> str:
    return f"[{','.join([_write(item, depth) for item in value])}]"


def _write_pairs(value: dict[Any, Any], depth: int) -> str:
    return _write_items(map(list, value.items()), depth)


def _quoted(text: Callable[[Any], str]) -> Callable[[Any, int], str]:
    return lambda value, _: f'"{text(value)}"'


_WRITERS: dict[type, Callable[[Any, int], str]] = {
    tuple: _write_items,
    dict: _write_pairs,
    set: _write_items,
    frozenset: _write_items,
    collections.deque: _write_items,
    bytes: _quoted(bytes.hex),
    bytearray: _quoted(bytearray.hex),
    complex: lambda value, _: f'["{value.real!r}","{value.imag!r}"]',
    range: lambda value, depth: _write_items([value.start, value.stop, value.step], depth),
}
# By name: importing the types here would cost every fork of the zygote, and few programs use them.
_LIBRARY_WRITERS: dict[str, Callable[[Any, int], str]] = {
    "decimal.Decimal": _quoted(str),
    "fractions.Fraction": lambda value, _: f'["{value.numerator:x}","{value.denominator:x}"]',
    "datetime.date": _quoted(str),
    "datetime.time": _quoted(str),
    "datetime.datetime": _quoted(str),
    "datetime.timedelta": lambda value, _: f"[{value.days},{value.seconds},{value.microseconds}]",
}


def _write_unusual(value: Any, kind: type, depth: int) -> str:
    """Iterators, dict views, and subclasses of plain types that keep the equality of their base."""
    if kind in _ITERATORS:
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        more = ',"more":true' if len(items) > MAX_ITEMS else ""
        return f'{{"iterator":{_write_items(items[:MAX_ITEMS], depth)}{more}}}'
    if kind in _VIEWS:
        return f'{{"set":{_write_items(value, depth)}}}'
    for base in _PLAIN_BASES:
        if isinstance(value, base) and (kind.__eq__ is base.__eq__ or isinstance(value, _KNOWN_EQUALITY)):
            return _write(base(value), depth - 1)
    return f'{{"opaque":{encode_basestring_ascii(kind.__name__[:60])}}}'

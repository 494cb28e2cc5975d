"""Values as tagged JSON, in both directions between the judge and a candidate.

JSON, because its parser cannot be made to run code and fails with an exception on bad input; `pickle`, `marshal` and
`ast.literal_eval` are not safe on hostile bytes.

| Python                                               | JSON                                             |
|------------------------------------------------------|--------------------------------------------------|
| None, bool, int below 2**53, finite float, str, list | themselves                                       |
| every other type that is plain data                  | `{"tag": payload}`                               |
| a list, dict, ... that the other side has already    | `{"#": number}`, where a `Table` is kept         |
| an instance of a class that both sides have          | `{"object": class name}`, its attributes after it |
| anything else                                        | what `Writer.reference` says, such as a handle   |

The time and memory that reading hostile bytes takes are bounded by the limits of the process that reads.
"""

import collections
import datetime
import itertools
import math
import sys
import types
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

MAX_BYTES = 8 << 20  # of one message
MAX_ITEMS = 1_000_000  # taken from an iterator
EXACT = 2**53  # below this every JSON reader agrees on an integer
DEEP = 5_000  # recursion limit while values are written and read: about a thousand nested lists


class NotPlain(Exception):
    """The value is not plain data, too long, or the bytes are not a value."""


class Table:
    """The changeable objects that both sides hold, by number, so that identity and changes survive the journey."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.count = 0  # of the objects that were ever added

    def add(self, value: Any) -> Any:
        self.objects[self.count] = value
        self.numbers[id(value)] = self.count
        self.count += 1
        return value

    def forget(self, numbers: Iterable[int]) -> None:
        """Let go of objects; their numbers are not used again."""
        for number in numbers:
            self.numbers.pop(id(self.objects.pop(number, None)), None)


_VIEWS = {
    type(getattr(kind(), name)()): name
    for kind in (dict, collections.OrderedDict)
    for name in ("keys", "items", "values")
}
ITERATORS = (
    types.GeneratorType, map, filter, zip, enumerate, reversed,
    *{type(iter(sample)) for sample in ([], (), {}, {}.values(), {}.items(), set(), "", "é", b"", range(1))},
    *{type(reversed(sample)) for sample in ([], range(1))},
    *(value for value in vars(itertools).values() if isinstance(value, type)),
)  # fmt: skip
_Counter, _OrderedDict, _defaultdict = collections.Counter, collections.OrderedDict, collections.defaultdict
_TRACKED = {list, dict, set, bytearray, collections.deque, _Counter, _OrderedDict, _defaultdict}


def _deeply(action: Callable[..., Any], *arguments: Any) -> Any:
    """Call with a recursion limit that nested values do not reach."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEEP))
    try:
        return action(*arguments)
    except RecursionError:
        raise NotPlain("nested too deeply") from None
    finally:
        sys.setrecursionlimit(limit)


def encode(value: Any, drain: bool = False) -> bytes:
    """Write one value of plain data; with `drain`, of an iterator the items that it has, up to `MAX_ITEMS`.

    Raises:
        NotPlain: the value is something else, or takes more than `MAX_BYTES`.

    Example:
        >>> encode((1, 2.5, {"a"}))
        b'{"tuple":[1,2.5,{"set":["a"]}]}'
    """
    if type(value) in _SIMPLE or (type(value) in _LISTS and _SIMPLE.issuperset(map(type, value))):
        return limited(_writer.write(value))
    writer = Writer()
    if drain and type(value) in ITERATORS:
        items = list(itertools.islice(value, MAX_ITEMS + 1))
        if len(items) > MAX_ITEMS:
            raise NotPlain(f"the iterator has more than {MAX_ITEMS} items")
        return limited(f'{{"iterator":{_deeply(writer.items, items)}}}')
    return limited(_deeply(writer.write, value))


def limited(text: str) -> bytes:
    if len(text) > MAX_BYTES:
        raise NotPlain(f"the value takes {len(text)} bytes, the limit is {MAX_BYTES}")
    return text.encode()


class Writer:
    """Writes the values of one message.

    Args:
        table: the objects that the other side has; None to write values without identity.
        classes: those that both sides have, with their names.
        reference: writes what is not plain data; by default it raises NotPlain.
    """

    def __init__(
        self,
        table: Table | None = None,
        classes: dict[type, str] | None = None,
        reference: Callable[["Writer", Any], str] | None = None,
    ) -> None:
        self.table, self.classes, self._reference = table, classes or {}, reference
        self._instances: collections.deque[Any] = collections.deque()

    def message(self, value: Any, states: Iterable[int] = ()) -> bytes:
        """A whole message: the value, the attributes of the instances in it, and the state of objects by number."""
        return _deeply(self._message, value, states)

    def _message(self, value: Any, states: Iterable[int]) -> bytes:
        objects = self.table.objects if self.table else {}
        first = self.write(value)
        changed = [f"[{number},{self.state(objects[number])}]" for number in states]
        attributes = []
        while self._instances:  # writing one may add more
            attributes.append(self.state(self._instances.popleft()))
        return limited(f"[{first},[{','.join(attributes)}],[{','.join(changed)}]]")

    def write(self, value: Any) -> str:
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
        if self.table is not None and (kind in _TRACKED or kind in self.classes or kind.__name__ == "ndarray"):
            number = self.table.numbers.get(id(value))
            if number is not None:
                return f'{{"#":{number}}}'
            self.table.add(value)
        if kind is list:
            return self.items(value)
        return self._write_tagged(value, kind)

    def _write_tagged(self, value: Any, kind: type) -> str:
        writer = _WRITERS.get(kind)
        if writer is not None:
            return f'{{"{kind.__name__}":{writer(self, value)}}}'
        if kind in self.classes:
            self._instances.append(value)
            return f'{{"object":{_write_text(self.classes[kind])}}}'
        if kind in _VIEWS:
            name = _VIEWS[kind]
            return f'{{"{name}":{self.pairs(value.mapping) if name == "items" else self.items(value)}}}'
        name = f"{kind.__module__}.{kind.__name__}"
        if name in _REBUILT:
            return f'{{"{kind.__name__}":{self.items(_REBUILT[name](value))}}}'
        if kind.__module__ == "numpy" and hasattr(kind, "dtype") and value.dtype.kind in _NUMPY_KINDS:
            return f'{{"{"ndarray" if name == "numpy.ndarray" else "scalar"}":{_write_array(self, value)}}}'
        if self._reference is None:
            raise NotPlain(f"an object of type {kind.__name__[:60]!r} is not plain data")
        return self._reference(self, value)

    def items(self, value: Iterable[Any]) -> str:
        return f"[{','.join([self.write(item) for item in value])}]"

    def pairs(self, value: Any) -> str:
        return f"[{','.join([f'[{self.write(key)},{self.write(item)}]' for key, item in value.items()])}]"

    def factory(self, value: Any) -> str:
        """What makes the missing values of a defaultdict; none where functions do not travel."""
        if value in _FACTORIES.values():
            return f'"{value.__name__}"'
        return "null" if self._reference is None else self.write(value)

    def state(self, value: Any) -> str:
        """What an object holds at present; `Reader.fill` puts it into the other side's."""
        kind = type(value)
        if kind in self.classes:
            return self.pairs(attributes(value))
        return self.items(value) if kind is list else _WRITERS.get(kind, _write_array)(self, value)


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an instance, in its dict or in slots."""
    found = {}
    for slots in (base.__dict__.get("__slots__", ()) for base in type(value).__mro__):
        names = {slots} if isinstance(slots, str) else {*slots}
        found |= {name: getattr(value, name) for name in names - {"__dict__", "__weakref__"} if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _write_text(value: str) -> str:
    """JSON joins two surrogates into one character; strings that hold any travel as bytes."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return f'{{"str":"{value.encode("utf-8", "surrogatepass").hex()}"}}'
    return encode_basestring_ascii(value)


def _write_array(writer: Writer, value: Any) -> str:
    flat = value.ravel().tolist()
    return f"[{encode_basestring_ascii(value.dtype.str)},{writer.items(value.shape)},{writer.items(flat)}]"


def _quoted(text: Callable[[Any], str]) -> Callable[[Writer, Any], str]:
    return lambda _, value: f'"{text(value)}"'


_NUMPY_KINDS = "biufcSU"
_SIMPLE = frozenset({int, str, bool, float, type(None)})
_LISTS = (list, tuple)
_writer = Writer()
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
_WRITERS: dict[type, Callable[[Writer, Any], str]] = {
    tuple: Writer.items,
    dict: Writer.pairs,
    set: Writer.items,
    frozenset: Writer.items,
    collections.deque: lambda writer, value: f"[{writer.write(value.maxlen)},{writer.items(value)}]",
    _Counter: Writer.pairs,
    _OrderedDict: Writer.pairs,
    _defaultdict: lambda writer, value: f"[{writer.factory(value.default_factory)},{writer.pairs(value)}]",
    bytes: _quoted(bytes.hex),
    bytearray: _quoted(bytearray.hex),
    datetime.date: _quoted(str),
    datetime.time: _quoted(str),
    datetime.datetime: _quoted(str),
    type(...): lambda *_: "0",
    type(NotImplemented): lambda *_: "0",
}
# What an equal one is made of: the arguments. By name, because importing all would cost every fork of the zygote.
_REBUILT: dict[str, Callable[[Any], list[Any]]] = {
    "builtins.complex": lambda value: [value.real, value.imag],
    "builtins.range": lambda value: [value.start, value.stop, value.step],
    "builtins.slice": lambda value: [value.start, value.stop, value.step],
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "datetime.timezone": lambda value: [value.utcoffset(None)],
    "uuid.UUID": lambda value: [str(value)],
    "array.array": lambda value: [value.typecode, value.tolist()],
}

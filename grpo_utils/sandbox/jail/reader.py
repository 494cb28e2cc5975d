"""Reads what `codec` writes, from hostile bytes."""

import collections
import datetime
import json
import sys
from collections.abc import Callable
from typing import Any, cast

from .codec import (
    _FACTORIES,
    _NUMPY_KINDS,
    _REBUILT,
    _TRACKED,
    NotPlain,
    Table,
    _Counter,
    _deeply,
    _defaultdict,
    attributes,
)


def decode(data: bytes) -> Any:
    """Read one value of plain data from hostile bytes.

    Raises:
        NotPlain: the bytes are not a value.
    """
    reader = Reader()
    return _deeply(lambda: reader.read(parse(data)))


def parse(data: bytes) -> Any:
    """The JSON of hostile bytes."""
    try:
        return _loads(data.decode())
    except ValueError as error:
        raise NotPlain(f"not a value: {type(error).__name__}: {str(error)[:200]}") from None


def _small_int(digits: str) -> int:
    if len(digits) > 17:  # int() of a long text takes quadratic time
        raise NotPlain("a large integer must travel as hexadecimal")
    return int(digits)


def _no_constant(name: str) -> float:
    raise NotPlain(f"{name} must travel as a tagged float")


_loads = json.JSONDecoder(parse_int=_small_int, parse_constant=_no_constant).decode


class Reader:
    """Reads the values of one message.

    Args:
        table: the objects that this side has already; None where values travel without identity.
        classes: names of the classes that both sides have.
        resolve: reads the tags that `Writer.reference` of the other side wrote, and the class of a default factory.
    """

    def __init__(
        self,
        table: Table | None = None,
        classes: dict[str, type] | None = None,
        resolve: Callable[["Reader", str, Any], Any] | None = None,
    ) -> None:
        self.table, self.classes, self._resolve = table, classes or {}, resolve
        self._instances: collections.deque[Any] = collections.deque()

    def message(self, data: bytes) -> Any:
        """Read what `Writer.message` wrote, and bring the objects of the table up to its states."""
        return _deeply(_checked, self._message, data)

    def _message(self, data: bytes) -> Any:
        value, attributes, states = parse(data)
        result = self._read(value)
        for number, state in states:
            if self.table is not None and number in self.table.objects:
                self.fill(self.table.objects[number], state)
        for state in attributes:
            self.fill(self._instances.popleft(), state)
        return result

    def read(self, node: Any) -> Any:
        return _checked(self._read, node)

    def _read(self, node: Any) -> Any:
        if type(node) is list:
            return self._filled([], node)
        if type(node) is not dict:
            return node
        ((tag, payload),) = node.items()
        if tag in _TRACKED_TAGS:
            made = collections.deque(maxlen=payload[0]) if tag == "deque" else _TRACKED_TAGS[tag]()
            return self._filled(made, payload)
        if tag in _READERS:
            return _READERS[tag](self, payload)
        if tag in _REBUILT_TAGS:
            return _REBUILT_TAGS[tag](*self.items(payload))
        if tag == "#" and self.table is not None:
            return self.table.objects[payload]
        if tag == "object" and payload in self.classes:
            made: Any = object.__new__(self.classes[payload])
            self._instances.append(made)
            return self.table.add(made) if self.table is not None else made
        if tag == "ndarray":
            made = _read_array(self, payload)
            return self.table.add(made) if self.table is not None else made
        if self._resolve is None:
            raise NotPlain(f"an unknown tag {tag[:60]!r}")
        return self._resolve(self, tag, payload)

    def _filled(self, made: Any, payload: Any) -> Any:
        if self.table is not None:
            self.table.add(made)  # before its items: an object may hold itself
        self.fill(made, payload)
        return made

    def items(self, payload: Any) -> list[Any]:
        if type(payload) is not list:
            raise NotPlain("a container must hold a list")
        return [self._read(item) for item in payload]

    def pairs(self, payload: Any) -> dict[Any, Any]:
        return {self._read(key): self._read(value) for key, value in payload}

    def fill(self, made: Any, payload: Any) -> None:
        """Give an object the state that `Writer.state` wrote."""
        kind = type(made)
        if kind is list:
            made[:] = self.items(payload)
        elif kind is bytearray:
            made[:] = bytes.fromhex(payload)
        elif isinstance(made, dict):
            if kind is _defaultdict:
                factory, payload = payload
                factory = _FACTORIES.get(factory) if type(factory) is str else self._read(factory)
                cast(Any, made).default_factory = factory
            pairs = self.pairs(payload)
            made.clear()
            dict.update(made, pairs) if kind is _Counter else made.update(pairs)
        elif kind is set or kind is collections.deque:
            items = self.items(payload if kind is set else payload[1])
            made.clear()
            made.update(items) if kind is set else made.extend(items)
        elif kind.__name__ == "ndarray":
            made[...] = _read_array(self, payload)
        else:  # an instance
            new = self.pairs(payload)
            for name in attributes(made).keys() - new.keys():
                object.__delattr__(made, name)
            for name, value in new.items():
                if callable(getattr(kind, str(name), None)) or name in ("__class__", "__dict__"):
                    raise NotPlain(f"an instance whose {name!r} hides a method of its class")
                object.__setattr__(made, name, value)


def _checked(action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise NotPlain(f"not a value: {type(error).__name__}: {str(error)[:200]}") from None


def _read_array(reader: Reader, payload: Any) -> Any:
    kind, shape, flat = payload
    numpy = sys.modules.get("numpy")
    if numpy is None or kind[1] not in _NUMPY_KINDS:
        raise NotPlain("an array of NumPy, which is not available here")
    return numpy.array(reader.items(flat), dtype=kind).reshape(shape)


def _rebuilder(name: str) -> Callable[..., Any]:
    module, _, name = name.rpartition(".")

    def rebuild(*arguments: Any) -> Any:
        __import__(module)
        return getattr(sys.modules[module], name)(*arguments)

    return rebuild


_REBUILT_TAGS = {name.rpartition(".")[2]: _rebuilder(name) for name in _REBUILT}
_TRACKED_TAGS: dict[str, type] = {kind.__name__: kind for kind in _TRACKED if kind is not list}
_READERS: dict[str, Callable[[Reader, Any], Any]] = {
    "int": lambda _, payload: int(payload, 16),
    "float": lambda _, payload: float(payload),
    "str": lambda _, payload: bytes.fromhex(payload).decode("utf-8", "surrogatepass"),
    "tuple": lambda reader, payload: tuple(reader.items(payload)),
    "frozenset": lambda reader, payload: frozenset(reader.items(payload)),
    "keys": lambda reader, payload: dict.fromkeys(reader.items(payload)).keys(),
    "items": lambda reader, payload: reader.pairs(payload).items(),
    "values": lambda reader, payload: dict(enumerate(reader.items(payload))).values(),
    "iterator": lambda reader, payload: iter(reader.items(payload)),
    "bytes": lambda _, payload: bytes.fromhex(payload),
    "ellipsis": lambda *_: ...,
    "NotImplementedType": lambda *_: NotImplemented,
    "date": lambda _, payload: datetime.date.fromisoformat(payload),
    "time": lambda _, payload: datetime.time.fromisoformat(payload),
    "datetime": lambda _, payload: datetime.datetime.fromisoformat(payload),
    "scalar": lambda reader, payload: _read_array(reader, payload)[()],
}

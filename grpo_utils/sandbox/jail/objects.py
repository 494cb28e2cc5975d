"""A candidate's objects that are no plain data: they stay here, the judge holds a number of each and asks for more.

Each operation is a message `(alive, name, arguments...)`; the answer is its value, or the exception that it raised.
What it changed of its arguments goes back with the answer. An object that the candidate keeps stays shared between both
sides as long as the tests keep it too (`alive`).
"""

import builtins
import json
import operator
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from . import codec
from .protocol import CALLBACK, KNOWN_MODULES, OPAQUE, RAISED, VALUE
from .reader import Reader
from .wire import describe, read_message, send

_BINARY = str.split("add sub mul truediv floordiv mod divmod pow lshift rshift and or xor matmul")
BINARY = frozenset(f"__{prefix}{name}__" for name in _BINARY for prefix in ("", "r", "i")) - {"__idivmod__"}
COMPARISONS = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
OTHERS = frozenset(
    str.split(
        "__call__ __len__ __length_hint__ __getitem__ __setitem__ __delitem__"
        " __iter__ __next__ __reversed__ __contains__"
        " __enter__ __exit__ __int__ __float__ __complex__ __index__ __round__ __trunc__"
        " __floor__ __ceil__ __neg__ __pos__"
        " __abs__ __invert__ __bool__ __hash__ __bytes__ __dir__ __await__ __aiter__ __anext__ __aenter__ __aexit__"
        " __get__ __set__ __delete__"
    )
)
OPERATORS = BINARY | COMPARISONS | OTHERS | {"__instancecheck__"}  # the last of a class's own type
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_PLAIN: dict[type, Callable[[Any, Any], Any]] = {
    **dict.fromkeys((str, bytes, tuple, list, bytearray), lambda base, value: base.__getitem__(value, slice(None))),
    **dict.fromkeys((set, frozenset), lambda base, value: base(base.__iter__(value))),
    int: lambda _, value: int.__int__(value),
    float: lambda _, value: float.__float__(value),
    dict: lambda _, value: dict.copy(value),
}
BATCH_SECONDS = 0.001  # of computing items ahead
KEPT = 200  # objects that both sides go on sharing after a call

# The candidate may replace these in `builtins`.
_flags = vars(type)["__flags__"].__get__
_type, _isinstance, _issubclass, _getattr, _getrefcount = type, isinstance, issubclass, getattr, sys.getrefcount


def serve(connection: int, space: dict[str, Any], shared: tuple[str, ...]) -> None:
    """Answer operations of the judge until it closes the connection."""
    objects = Objects(connection, space, shared)
    while True:
        kind, data = objects.outcome(read_message(connection))
        send(connection, kind, json.dumps(objects.kept()).encode() + b"\n" + data)


class Objects:
    """The numbers of the candidate's objects and classes; `shared` names the classes that the tests define for both."""

    def __init__(self, connection: int, space: dict[str, Any], shared: tuple[str, ...]) -> None:
        self.connection, self.space = connection, space
        self.table = codec.Table()
        self.handles: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.classes: list[type] = []
        self.class_numbers: dict[type, int] = {}
        self.shared = {space[name]: name for name in shared if _isinstance(space.get(name), _type)}
        self.late: dict[int, BaseException] = {}
        self.callbacks: dict[int, Callback] = {}
        self.runner: Any = None

    def outcome(self, message: bytes) -> tuple[bytes, bytes]:
        """Do what a message asks for; the kind and the data of the answer."""
        first = self.table.count
        alive, name, *arguments = self.read(message)
        if alive is not None:  # as it is while the judge reads an answer, and hashes objects in it
            self.table.forget(set(range(first)) & self.table.objects.keys() - set(alive))
        touched = [*self.table.objects]
        kind, value = self.done(name, arguments)
        try:
            return kind, self.write(value, touched)
        except codec.NotPlain:
            return OPAQUE, b""

    def done(self, name: str, arguments: list[Any]) -> tuple[bytes, Any]:
        try:
            return VALUE, _OPERATIONS[name](self, *arguments)
        except BaseException as error:  # SystemExit too: leaving is no way to pass
            return RAISED, error

    def kept(self) -> list[int]:
        """The numbers of the objects that the candidate holds besides this table."""
        (alone,) = [_getrefcount(value) for _, value in {0: object()}.items()]
        kept = [number for number, value in self.table.objects.items() if _getrefcount(value) > alone]
        if len(kept) > KEPT:
            kept = []
        self.table.forget(self.table.objects.keys() - set(kept))
        return kept

    def read(self, message: bytes) -> Any:
        names = {name: kind for kind, name in self.shared.items()}
        return Reader(self.table, names, self.resolve).message(message)

    def write(self, value: Any, states: list[int]) -> bytes:
        shared = {kind: name for kind, name in self.shared.items() if not _issubclass(kind, BaseException)}
        return codec.Writer(self.table, shared, self.reference).message(value, states)

    def call_back(self, number: int, arguments: tuple[Any, ...] | str, options: dict[str, Any] | None) -> Any:
        """Call a function of the tests, or get an attribute of it; what they ask for meanwhile is answered here."""
        numbers = self.table.numbers
        known = [numbers[id(value)] for value in arguments if id(value) in numbers]
        message = self.write((number, arguments, None if options is None else tuple(options.items())), known)
        send(self.connection, CALLBACK, b"null\n" + message)
        while True:
            _, name, *values = self.read(read_message(self.connection))
            if name == "returned":
                return values[0]
            if name == "raised":
                raise values[0]
            kind, value = self.done(name, values)
            send(self.connection, kind, b"null\n" + self.write(value, []))

    def about(self, error: BaseException) -> tuple[Any, ...]:
        """What the judge needs to make an exception of its own of one."""
        error.__traceback__ = None  # it holds the frames, and they the arguments
        try:
            _, arguments, *state = _type(error).__reduce__(error)
        except Exception:  # code of the candidate
            arguments, state = error.args, []
        origin = _getattr(error, "_of_the_tests", -1)
        about = (*json.loads(describe(error)), _type(error), tuple(arguments), self.number(error))
        return (*about, origin if _type(origin) is int else -1, error.__cause__, dict(*state))

    def number(self, value: Any) -> int:
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.handles)
            self.handles.append(value)
        return number

    def reference(self, writer: codec.Writer, value: Any) -> str:
        kind = _type(value)
        if _isinstance(value, _type) and value in self.shared:
            return f'{{"shared":{writer.write(self.shared[value])}}}'
        if _isinstance(value, _type):
            name = known_name(value)
            return f'{{"known":{writer.write(name)}}}' if name else self.class_reference(writer, value)
        if _isinstance(value, BaseException):
            return f'{{"exception":{writer.items(self.about(value))}}}'
        if kind is Callback:
            return f'{{"callback":{value.number}}}'
        kind_reference = self.base_reference(writer, kind) or self.class_reference(writer, kind)
        return f'{{"handle":[{self.number(value)},{kind_reference}]}}'

    def class_reference(self, writer: codec.Writer, kind: type) -> str:
        """The number of a class; at the first time also its name, the plain type it extends, operators and bases."""
        number = self.class_numbers.get(kind)
        if number is not None:
            return f'{{"class":{number}}}'
        number = self.class_numbers[kind] = len(self.classes)
        self.classes.append(kind)
        plain = next((base.__name__ for base in _PLAIN if _issubclass(kind, base)), "")
        spaces = [vars(base) for base in kind.__mro__ if base is not object]  # in which `__hash__ = None` counts, too
        operators = [name for name in sorted(OPERATORS) if any(name in space for space in spaces)]
        metas: tuple[type, ...] = _getattr(_type(kind), "__mro__")
        if any("__instancecheck__" in vars(meta) for meta in metas if meta not in (_type, object)):
            operators.append("__instancecheck__")
        module = str(_getattr(kind, "__module__", ""))
        if module == "builtins" and _flags(kind) & HEAP_TYPE:  # made by a `class` statement, and pretends
            module = "candidate"
        about = [str(kind.__name__), module, plain, *operators]
        bases = [self.base_reference(writer, base) for base in kind.__bases__]
        abstract = [base for base in kind.__mro__ if known_name(base).startswith("collections.abc.")]
        bases += [f'{{"known":{writer.write(known_name(base))}}}' for base in abstract[:1]]
        return f'{{"define":[{number},{writer.items(about)},[{",".join(filter(None, bases))}]]}}'

    def base_reference(self, writer: codec.Writer, base: type) -> str:
        name = known_name(base)
        if not name:
            return self.class_reference(writer, base)
        return f'{{"known":{writer.write(name)}}}' if _issubclass(base, BaseException) else ""

    def resolve(self, reader: Reader, tag: str, payload: Any) -> Any:
        if tag == "handle":
            return self.handles[payload]
        if tag == "class":
            return self.classes[payload]
        if tag == "shared":
            return self.space[payload]
        if tag == "known":
            module, _, name = payload.rpartition(".")
            __import__(module)
            return _getattr(sys.modules[module], name)
        if tag == "method":
            return _getattr(_getattr(builtins, payload[0]), payload[1])
        if tag == "callback":
            number, name, text = payload
            return self.callbacks.setdefault(number, Callback(self, number, name, text))
        if tag == "signature":
            return _signature(reader.items(payload))
        if tag == "lazy":
            return iter(reader.read(payload), self)  # a callback for each item, up to its StopIteration
        number, kind, arguments, state = payload
        kind = reader.read(kind)
        error: Any = kind.__new__(kind, *reader.read(arguments))
        error.__dict__.update(reader.read(state), _of_the_tests=number)
        return error


def _signature(shape: list[Any]) -> Any:
    import inspect

    empty = inspect.Parameter.empty
    made = [inspect.Parameter(name, kind, default=empty if required else None) for name, kind, required in shape]
    return inspect.Signature(made)


class Callback:
    """Stands for a function of the tests."""

    def __init__(self, objects: Objects, number: int, name: str, text: str | None) -> None:
        self.objects, self.number = objects, number
        self.__name__ = self.__qualname__ = name
        self.__doc__ = text

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.objects.call_back(self.number, arguments, options)

    def __getattr__(self, name: str) -> Any:
        if name == "__code__":  # how many arguments a function takes, for one that curries it
            shape = self.__signature__.parameters.values()
            names = [one.name for one in shape if one.kind <= one.POSITIONAL_OR_KEYWORD]
            return types.SimpleNamespace(co_argcount=len(names), co_varnames=tuple(names))
        return self.objects.call_back(self.number, name, None)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def known_name(value: Any) -> str:
    """`module.name` of a class or function that both sides know, or ""."""
    name, module = _getattr(value, "__name__", None), _getattr(value, "__module__", None)
    if _type(name) is not str or _type(module) is not str or name.startswith("_"):
        return ""
    if module.partition(".")[0] not in KNOWN_MODULES:
        return ""
    return f"{module}.{name}" if _getattr(sys.modules.get(module), name, None) is value else ""


def _global(objects: Objects, name: str) -> Any:
    if name not in objects.space:
        raise NameError(f"name {name!r} is not defined")
    return objects.space[name]


def _special(objects: Objects, value: Any, name: str, *arguments: Any) -> Any:
    method = _getattr(_type(value), name, None)
    if method is None:
        raise TypeError(f"{_type(value).__name__!r} object has no {name}")
    return method(value, *arguments)


def _next(objects: Objects, iterator: Any, number: int, most: int) -> tuple[Any, ...]:
    """The next item, and with `most` above 1 some that come after it; an exception among them is kept for later."""
    if number in objects.late:
        raise objects.late.pop(number)
    items: list[Any] = []
    end = time.monotonic() + BATCH_SECONDS
    while len(items) < most and (not items or time.monotonic() < end):
        try:
            items.append(next(iterator))
            if not _isinstance(items[-1], (int, float, str, bytes)):  # it may be changed and yielded again
                break
        except BaseException as error:
            if not items:
                raise
            objects.late[number] = error
            break
    return tuple(items)


def _plain(objects: Objects, value: Any) -> Any:
    return next(view(base, value) for base, view in _PLAIN.items() if _isinstance(value, base))


def _run(objects: Objects, awaitable: Any) -> Any:
    import asyncio

    async def awaited() -> Any:
        return await awaitable

    objects.runner = objects.runner or asyncio.Runner()  # one for all: tasks and locks outlive one `await` of the tests
    return objects.runner.run(awaited())


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "global": _global,
    "getattr": lambda _, value, name: _getattr(value, name),
    "setattr": lambda _, value, name, new: setattr(value, name, new),
    "delattr": lambda _, value, name: delattr(value, name),
    "call": lambda _, value, arguments, options: value(*arguments, **dict(options)),
    "special": _special,
    "compare": lambda _, name, left, right: _getattr(operator, name)(left, right),
    "item": lambda _, value, key: value[key],
    "truth": lambda _, value: bool(value),
    "hash": lambda _, value: hash(value),
    "text": lambda _, name, value, *form: {"str": str, "repr": repr, "format": format}[name](value, *form),
    "next": _next,
    "plain": _plain,
    "seed": lambda _, *seed: __import__("random").seed(*seed),
    "run": _run,
}

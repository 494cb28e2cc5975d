"""The judge's end of a candidate's objects: asks for operations on them, reads and writes what travels."""

import builtins
import contextlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, cast

from ..jail import codec
from ..jail.objects import OPERATORS, known_name
from ..jail.protocol import CALLBACK, OPAQUE, RAISED
from ..jail.reader import Reader, parse
from .session import Session, Stop, Unsupported

MOST_NESTED = 140  # calls of the program by the tests by the program, ...; Python's own limit is not far above
_SIMPLE = str | int | float
_KNOWN = type | types.BuiltinFunctionType | types.FunctionType


class Link:
    """All that the two sides of one check know of each other."""

    def __init__(self, session: Session, expects_stop: bool, reads_ahead: bool) -> None:
        self.session, self.reads_ahead = session, reads_ahead
        self.expects_stop = expects_stop  # whether the tests name StopIteration
        self.decided = False  # whether the candidate's own code decided an outcome
        self.made: set[int] = set()  # numbers of objects that the tests made, and the program has not handed out since
        self.extended = ""  # a plain type that a class of the candidate extends, if the tests met an instance of one
        self.asked = 0  # operations
        self._space: dict[str, Any] = {}
        self._shared: tuple[str, ...] = ()
        self.make_class: Callable[..., type]
        self.make_instance: Callable[[type, int], Any]
        self.describe: Callable[[Any], tuple[str, int] | None]
        self._table = codec.Table()
        self._remote_classes: dict[int, type] = {}
        self._instances: dict[int, Any] = {}
        self._callbacks: list[Any] = []
        self._callback_numbers: dict[int, int] = {}
        self._errors: list[BaseException] = []
        self._depth = 0

    def share(self, space: dict[str, Any], classes: tuple[str, ...]) -> None:
        """Say which classes both sides have: those of these names in the space of the tests, once they are there."""
        self._space, self._shared = space, classes

    @property
    def classes(self) -> dict[str, type]:
        return {name: self._space[name] for name in self._shared if dict.get(self._space, name)}

    def request(self, name: str, *arguments: Any) -> Any:
        """Ask the candidate for an operation of `jail.objects`; raises what it raised there, or `session.Stop`."""
        self.asked += 1
        outermost = self._depth == 0
        if self._depth >= MOST_NESTED:
            self.session.stop(Unsupported("tests and program call each other too deeply to be followed"))
        self._depth += 1
        try:
            self._ask(outermost, name, *arguments)
            while True:
                kind, payload = self.session.receive()
                kept, _, data = payload.partition(b"\n")
                if kind == CALLBACK:
                    self._call_back(data)
                elif kind == OPAQUE:
                    self.session.stop(Unsupported(f"what the program answers takes more than {codec.MAX_BYTES} bytes"))
                else:
                    break
            value = self._read(data)
            if outermost:
                numbers = parse(kept)
                keep = {number for number in numbers if type(number) is int} if type(numbers) is list else set()
                self._table.forget(self._table.objects.keys() - keep)
            if kind == RAISED:
                of_the_tests = any(value is error for error in self._errors)
                asked_next = name == "next" or (name == "special" and arguments[1] == "__next__")
                if isinstance(value, StopIteration) and not (asked_next or of_the_tests or self.expects_stop):
                    # it would end a loop of the tests as if all had been seen (PEP 479 says so of generators)
                    raise RuntimeError("the program raised StopIteration") from None
                raise value if isinstance(value, BaseException) else codec.NotPlain("not an exception")
            return value
        finally:
            self._depth -= 1

    def _ask(self, outermost: bool, *message: Any) -> None:
        """Send an operation, and what the tests changed; shared objects that they no longer hold are forgotten."""
        if not outermost:
            self._send(None, [], *message)
            return
        (alone,) = [sys.getrefcount(value) for _, value in {0: object()}.items()]
        held = [number for number, value in self._table.objects.items() if sys.getrefcount(value) > alone]
        shared = list(self._table.objects)  # `thing.items.append(1)` changed a list and let go of it
        self._send(tuple(held), shared, *message)
        self._table.forget(set(shared) - set(held))

    def _send(self, alive: tuple[int, ...] | None, states: list[int], *message: Any) -> None:
        try:
            data = self._writer().message((alive, *message), states)
        except codec.NotPlain as error:
            self.session.stop(Unsupported(f"what the tests hand to the program cannot travel: {error}"))
            raise
        self.session.send_bytes(data)

    def _call_back(self, data: bytes) -> None:
        """The candidate calls a function of the tests."""
        number, arguments, options = self._read(data)
        numbers = self._table.numbers
        shared = [numbers[id(value)] for value in arguments if id(value) in numbers]
        value: Any
        try:
            called = self._callbacks[number]
            value = _attribute(called, arguments) if options is None else called(*arguments, **dict(options))
            answer: tuple[str, Any] = "returned", value
        except Stop as stop:
            self.session.stop(stop)
        except BaseException as error:
            answer = "raised", error
        self._send(None, shared, *answer)

    def _exception(self, about: list[Any]) -> BaseException:
        """An exception here for one that is there."""
        name, text, kind, arguments, number, origin, cause, state = about
        if origin in range(len(self._errors)):
            return self._errors[origin]
        if number not in self._instances:
            error = self._instances[number] = _error(kind, arguments)
            error.__cause__ = cause
            if type(kind) is type:  # another answers itself
                vars(error).update(state)
            vars(error)["of_the_candidate"] = str(name)[:100], str(text)
            vars(error)["of_the_candidate_number"] = int(number)
        return self._instances[number]

    def _writer(self) -> codec.Writer:
        classes = {kind: name for name, kind in self.classes.items() if not issubclass(kind, BaseException)}
        return codec.Writer(self._table, classes, self._reference)

    def _read(self, data: bytes) -> Any:
        return Reader(self._table, self.classes, self._resolve).message(data)

    def _reference(self, writer: codec.Writer, value: Any) -> str:
        remote = self.describe(value)
        if remote is not None:
            return f'{{"{remote[0]}":{int(remote[1])}}}'
        if isinstance(value, BaseException):
            return self._error_reference(writer, value)
        if isinstance(value, type) and value in self.classes.values():
            return f'{{"shared":{writer.write(value.__name__)}}}'
        name = known_name(value) if isinstance(value, _KNOWN) else ""
        if name:
            return f'{{"known":{writer.write(name)}}}'
        if isinstance(value, inspect.Signature):
            shape = [(one.name, int(one.kind), one.default is one.empty) for one in value.parameters.values()]
            return f'{{"signature":{writer.items(shape)}}}'
        if type(value) is types.MethodDescriptorType and value.__objclass__.__module__ == "builtins":
            return f'{{"method":{writer.items([value.__objclass__.__name__, value.__name__])}}}'
        if type(value) in codec.ITERATORS:
            return f'{{"lazy":{self._callback_reference(writer, cast(Any, value).__next__)}}}'
        if callable(value):
            return self._callback_reference(writer, value)
        raise codec.NotPlain(f"an object of type {type(value).__name__!r}")

    def _callback_reference(self, writer: codec.Writer, value: Any) -> str:
        number = self._callback_numbers.get(id(value))
        if number is None:
            number = self._callback_numbers[id(value)] = len(self._callbacks)
            self._callbacks.append(value)
        name, text = getattr(value, "__name__", type(value).__name__), getattr(value, "__doc__", None)
        return f'{{"callback":{writer.items([number, str(name), text if type(text) is str else None])}}}'

    def _error_reference(self, writer: codec.Writer, error: BaseException) -> str:
        """An exception of the tests: its class as far as both sides know it, and no text that could tell a value."""
        shared = self.classes.values()
        kind = next(base for base in type(error).__mro__ if base.__module__ == "builtins" or base in shared)
        self._errors.append(error)
        told = () if issubclass(kind, AssertionError) else error.args
        state = {name: value for name, value in vars(error).items() if isinstance(value, _SIMPLE)}
        about = [len(self._errors) - 1, kind, tuple(one for one in told if isinstance(one, _SIMPLE)), state]
        return f'{{"error":{writer.items(about)}}}'

    def _resolve(self, reader: Reader, tag: str, payload: Any) -> Any:
        if tag == "handle":
            number, kind = payload
            kind = reader.read(kind)
            self.made.discard(number)
            if number not in self._instances:
                self._instances[number] = self.make_instance(kind, number)
            return self._instances[number]
        if tag == "class":
            return self._remote_classes[payload]
        if tag == "define":
            number, about, bases = payload
            name, module, plain, *operators = reader.items(about)
            found = [reader.read(base) for base in bases]
            made = self.make_class(number, str(name), str(module), plain, OPERATORS & set(operators), found)
            return self._remote_classes.setdefault(number, made)
        if tag == "exception":
            return self._exception(reader.items(payload))
        if tag == "shared":
            return self.classes[payload]
        if tag == "callback":
            return self._callbacks[payload]
        return _known(tag, payload)


def _known(tag: str, payload: Any) -> Any:
    """A class of the standard library. No function: called here, `vars` or `typing.get_type_hints` would do harm."""
    module, _, name = str(payload).rpartition(".")
    found = vars(sys.modules.get(module, builtins)).get(name)
    if tag == "known" and isinstance(found, type) and known_name(found) == payload:
        return found
    raise codec.NotPlain(f"{tag} {str(payload)[:60]!r}")


def _attribute(function: Any, name: str) -> Any:
    """An attribute that the tests gave a function of theirs, or its signature; its globals and defaults stay here."""
    if name == "__signature__":
        return inspect.signature(function)
    if name == "__annotations__":  # which functools.wraps copies
        return dict(inspect.get_annotations(function))
    if name.startswith("_"):
        raise Unsupported(f"the program asks a function of the tests for {name!r}")
    return getattr(function, name)


def _error(kind: Any, arguments: Any) -> BaseException:
    """An exception of this class, made as the class makes it, or at least with its arguments."""
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise TypeError("its class is none of exceptions")
    arguments = tuple(arguments)
    if type(kind) is type:
        with contextlib.suppress(TypeError, ValueError):  # it takes other arguments than it keeps
            return kind(*arguments)
    try:
        return kind.__new__(kind, *arguments)
    except (TypeError, ValueError):  # a group needs a list of exceptions
        return Exception.__new__(type(kind.__name__, (Exception,), {}), *arguments)

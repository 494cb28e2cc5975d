"""Modules that tests import and that are not what they are elsewhere: the parts of them that can be judged here."""

import contextlib
import importlib
import io
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from .session import Unsupported


def _missing(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unsupported(f"the tests use '{module}.{name}', which is not available to tests")


class Failed(BaseException):
    """A test failed, whatever exceptions it expects."""


class _Raised:
    """What `with pytest.raises(...) as info` gives."""

    value: Any = None

    @property
    def type(self) -> Any:
        return type(self.value)

    @property
    def typename(self) -> str:
        return type(self.value).__name__

    def match(self, pattern: str) -> bool:
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{pattern!r} does not match {str(self.value)!r}")
        return True

    def __getattr__(self, name: str) -> Any:
        _missing("pytest.ExceptionInfo", name)


@contextlib.contextmanager
def _expecting(expected: Any, match: str | None) -> Iterator[Any]:
    info = _Raised()
    try:
        yield info
    except expected as error:
        info.value = error
        if match is not None:
            info.match(match)
    else:
        raise Failed(f"DID NOT RAISE {expected}")


def raises(expected_exception: Any, *call: Any, match: str | None = None, **options: Any) -> Any:
    """`with pytest.raises(ValueError):` or `pytest.raises(ValueError, f, 1)`."""
    if not call:
        return _expecting(expected_exception, match)
    with _expecting(expected_exception, match) as info:
        call[0](*call[1:], **options)
    return info


class Approx:
    """`pytest.approx`: equal to a number within a tolerance, or to such numbers in a list, tuple or dict."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # NumPy leaves the comparison to this class

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self.expected, self.nan_ok = expected, nan_ok
        self.absolute = 1e-12 if abs is None else abs
        self.relative = (1e-6 if abs is None else 0.0) if rel is None else rel

    def __eq__(self, actual: object) -> bool:
        return self._equal(self.expected, actual)

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def _equal(self, expected: Any, actual: Any) -> bool:
        if hasattr(expected, "tolist") and hasattr(actual, "tolist"):
            return self._equal(expected.tolist(), actual.tolist())
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            return expected.keys() == actual.keys() and all(self._equal(expected[key], actual[key]) for key in expected)
        if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
            alike = isinstance(actual, Sequence) and not isinstance(actual, str | bytes)
            return alike and len(expected) == len(actual) and all(map(self._equal, expected, actual))
        try:
            if expected == actual:
                return True
            sizes = abs(expected), abs(actual)  # type: ignore[arg-type]
            if any(map(math.isnan, sizes)):
                return self.nan_ok and all(map(math.isnan, sizes))
            tolerance = max(self.relative * sizes[0], self.absolute)
            return not any(map(math.isinf, sizes)) and bool(abs(expected - actual) <= tolerance)
        except TypeError:  # not numbers
            return False


def param(*values: Any, **options: Any) -> Any:
    if options.get("marks"):
        _missing("pytest.param", "marks")
    (first, *more) = values
    return values if more else first


def fail(reason: str = "", pytrace: bool = True) -> None:
    raise Failed(reason)


class _Mark:
    """`@pytest.mark.anything` leaves a function as it is, a parametrized one is called with each set of arguments."""

    def __getattr__(self, name: str) -> Any:
        if name == "parametrize":
            return _parametrize
        if name in ("skip", "skipif"):
            return _skip if name == "skip" else _skipif
        if name in ("xfail", "usefixtures", "asyncio"):  # what they do is not modelled
            return _missing("pytest.mark", name)
        return lambda *arguments, **_: (
            arguments[0] if arguments and callable(arguments[0]) else lambda function: function
        )


def _skip(function: Any = None, **_: Any) -> Any:
    """A test that the tests themselves leave out is not run, and counts for nothing."""

    def left_out(*_: Any, **__: Any) -> None:
        pass

    return left_out if callable(function) else lambda function: left_out


def _skipif(condition: Any, *more: Any, **_: Any) -> Any:
    if more or isinstance(condition, str) or not isinstance(condition, bool):
        raise Unsupported("a condition of 'pytest.mark.skipif' is no bool")
    return _skip() if condition else lambda function: function


def _parametrize(argnames: str | Sequence[str], argvalues: Any, indirect: Any = False, **_: Any) -> Any:
    if indirect:
        _missing("pytest.mark.parametrize", "indirect")
    listed = argnames.split(",") if isinstance(argnames, str) else list(argnames)
    listed, rows = [name.strip() for name in listed if name.strip()], list(argvalues)
    alone = len(listed) == 1 and "," not in argnames

    def decorate(function: Any) -> Any:
        def every(*first: Any, **others: Any) -> None:
            for value in rows:
                row = (value,) if alone else value
                function(*first, **dict(zip(listed, row, strict=True)), **others)

        return every

    return decorate


def run(awaitable: Any, *, debug: bool | None = None) -> Any:
    """`asyncio.run`: coroutines are the candidate's and run where it does; one of the tests may await them."""
    from .remote import link

    if type(awaitable) is not types.CoroutineType:
        return link().request("run", awaitable)
    try:
        awaitable.send(None)
    except StopIteration as end:
        return end.value
    raise Unsupported("the tests await what is not the program's")


def _there(function: Any) -> Any:
    def call(value: Any, *more: Any, **options: Any) -> Any:
        from .remote import describe, link

        if describe(value) is None:
            return function(value, *more, **options)
        return link().request("call", function, (value, *more), tuple(options.items()))

    return call


_CONTENT: dict[str, dict[str, Any]] = {
    "pytest": {"raises": raises, "approx": Approx, "fail": fail, "param": param, "mark": _Mark()},
    "asyncio": {"run": run},
    "io": {name: getattr(io, name) for name in ("StringIO", "BytesIO", "TextIOWrapper")},  # what stays in memory
}
# Some functions of these look inside an object: they are called where it is.
_LOOKING_INSIDE = {
    "dataclasses": "asdict astuple replace fields",
    "inspect": "signature getfullargspec getdoc getmembers",
    "typing": "get_type_hints",
}
_WITHOUT_A_FILE = frozenset({"getsource", "getsourcelines", "getfile", "getsourcefile", "currentframe", "stack"})
NAMES = _CONTENT.keys() | _LOOKING_INSIDE.keys()


@lru_cache
def stand_in(name: str) -> types.ModuleType:
    """The module of this name, one of `NAMES`, as tests get it."""
    made = types.ModuleType(name)
    if name in _CONTENT:
        vars(made).update(_CONTENT[name], __getattr__=partial(_missing, name))
    else:
        original = importlib.import_module(name)
        there = {each: _there(getattr(original, each)) for each in _LOOKING_INSIDE[name].split()}
        vars(made).update(vars(original), **there)
        for each in _WITHOUT_A_FILE & vars(made).keys():
            vars(made)[each] = lambda *_, each=each: _missing(name, each)
    return made

"""Modules that tests import and that are not what they are elsewhere: the parts of them that can be judged here."""

import importlib
import io
import math
import re
import types
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

from .session import Unsupported


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(content, __getattr__=partial(_missing, name))
    return module


def _missing(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unsupported(f"the tests use '{module}.{name}', which is not available to tests")


class Raises:
    """`pytest.raises` as a context manager: the exception must come, and its text match."""

    def __init__(self, expected: Any, *, match: str | None = None) -> None:
        self.expected, self.match = expected, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> "Raises":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            raise AssertionError(f"DID NOT RAISE {self.expected}")
        if not isinstance(error, self.expected):
            return False
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"{self.match!r} does not match {str(error)!r}")
        self.value, self.type = error, kind
        return True


def raises(expected: Any, *call: Any, match: str | None = None, **options: Any) -> Any:
    """`with pytest.raises(ValueError):` or `pytest.raises(ValueError, f, 1)`."""
    manager = Raises(expected, match=match)
    if not call:
        return manager
    with manager:
        call[0](*call[1:], **options)
    return manager


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
            return self._close(expected, actual)
        except TypeError:  # not numbers
            return bool(expected == actual)

    def _close(self, expected: Any, actual: Any) -> bool:
        if expected == actual:
            return True
        if math.isnan(abs(expected)) or math.isnan(abs(actual)):
            return self.nan_ok and math.isnan(abs(expected)) and math.isnan(abs(actual))
        if math.isinf(abs(expected)) or math.isinf(abs(actual)):
            return False
        return bool(abs(expected - actual) <= max(self.relative * abs(expected), self.absolute))


def param(*values: Any, **_: Any) -> Any:
    (first, *more) = values
    return values if more else first


def fail(reason: str = "", pytrace: bool = True) -> None:
    raise AssertionError(reason)


class _Mark:
    """`@pytest.mark.anything` leaves the function as it is; parametrized ones are called with each set of arguments."""

    def __getattr__(self, name: str) -> Any:
        if name == "parametrize":
            return _parametrize
        return lambda *arguments, **_: (
            arguments[0] if arguments and callable(arguments[0]) else lambda function: function
        )


def _parametrize(names: str | Sequence[str], values: Sequence[Any], **_: Any) -> Any:
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(function: Any) -> Any:
        def every(**others: Any) -> None:
            for value in values:
                row = (value,) if len(listed) == 1 else value
                function(**dict(zip(listed, row, strict=True)), **others)

        return every

    return decorate


@lru_cache(maxsize=1)
def pytest_module() -> types.ModuleType:
    return _module("pytest", raises=raises, approx=Approx, fail=fail, param=param, mark=_Mark())


@lru_cache(maxsize=1)
def asyncio_module() -> types.ModuleType:
    """Only `run`: coroutines are the candidate's and run where it does; one of the tests may await them."""
    return _module("asyncio", run=run)


def run(awaitable: Any, *, debug: bool | None = None) -> Any:
    from .remote import link

    if type(awaitable) is not types.CoroutineType:
        return link().request("run", awaitable)
    try:
        awaitable.send(None)
    except StopIteration as end:
        return end.value
    raise Unsupported("the tests await what is not the program's")


def looking_inside(name: str, functions: str) -> types.ModuleType:
    """A module, some functions of which look inside an object: they are called where it is."""
    original, module = importlib.import_module(name), types.ModuleType(name)
    vars(module).update(vars(original), **{each: _there(getattr(original, each)) for each in functions.split()})
    return module


def _there(function: Any) -> Any:
    def call(value: Any, *more: Any, **options: Any) -> Any:
        from .remote import describe, link

        if describe(value) is None:
            return function(value, *more, **options)
        return link().request("call", function, (value, *more), tuple(options.items()))

    return call


@lru_cache(maxsize=1)
def io_module() -> types.ModuleType:
    """Only what stays in memory."""
    return _module("io", StringIO=io.StringIO, BytesIO=io.BytesIO, TextIOWrapper=io.TextIOWrapper)

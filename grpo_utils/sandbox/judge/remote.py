"""Stand-ins for what stays with the candidate: its functions, classes, instances, iterators, exceptions.

A class of the candidate is a class here, of type `RemoteType`, so that `isinstance`, `except` and `type(x) is` mean
what they mean in Python. What a stand-in is asked, the candidate answers, and the answer is judged by its value here.
It is never asked whether it equals plain data: it does not, so that an object that equals everything gains nothing.
Where the candidate's own code decides the outcome all the same, two of its objects compared with each other, the
verdict says so.
"""

import abc
import collections
import operator
import types
from collections.abc import Callable
from typing import Any

from ..jail.codec import NotPlain
from ..jail.objects import BINARY, COMPARISONS
from ..jail.protocol import MAX_MESSAGE
from .link import Link
from .session import Unsupported

BATCH_AFTER, LARGEST_BATCH = 32, 4096  # items fetched one by one before more are fetched at once

_link: Link | None = None  # of the one check that this process judges
_LOCAL = frozenset(
    str.split(
        "__mro__ __bases__ __base__ __class__ __dict__ __name__ __qualname__ __module__ __new__ __instancecheck__"
        " __subclasscheck__ __subclasses__ mro __flags__ __basicsize__ __abstractmethods__ __hash__ __eq__"
        " __set_name__"
    )
)
# Questions that a plain value answers about itself, and that must not be put to an object in its place.
_PREDICATES = frozenset(
    str.split(
        "startswith endswith issubset issuperset isdisjoint equals isupper islower isdigit isalpha isalnum isspace"
        " istitle isdecimal isnumeric isascii isidentifier isprintable is_integer count index find"
        " __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__"
        " difference symmetric_difference intersection union isclose"
    )
)
# What a subclass of a plain type may do in its own way: the rest is its base's.
_CHANGES = frozenset(
    str.split(
        "append extend insert remove pop clear sort reverse add discard update setdefault popitem get keys values items"
        " difference_update intersection_update symmetric_difference_update"
    )
)


def link() -> Link:
    assert _link is not None
    return _link


def connect(to: Link) -> None:
    global _link
    _link = to
    to.make_class, to.make_instance, to.describe = make_class, make_instance, describe


def describe(value: Any) -> tuple[str, int] | None:
    """How a stand-in travels back: "handle" or "class", and the candidate's number."""
    if type(value) is RemoteType:
        return "class", about(value, "number")
    if isinstance(value, BaseException):
        number = vars(value).get("of_the_candidate_number")
        return None if number is None else ("handle", number)
    return ("handle", object.__getattribute__(value, "_number")) if is_remote(value) else None


def _asks(operation: str) -> Callable[..., Any]:
    return lambda self, *arguments: link().request(operation, self, *arguments)


def _special(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: link().request("special", self, name, *arguments)


def _text(function: str) -> Callable[..., str]:
    return lambda self, *form: str(link().request("text", function, self, *form))


def _comparison(name: str) -> Callable[..., Any]:
    return lambda self, other: _compared(self, other, name)


class RemoteType(type):
    """The type of stand-ins for classes."""

    number: int  # the candidate's
    plain: str  # name of the plain type that it extends, or ""
    operators: frozenset[str]  # names of the special methods that it has
    named: bool  # whether the tests name it as a class, so that its operators are theirs to use

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if "number" not in type.__getattribute__(cls, "__dict__"):
            link().session.stop(Unsupported(f"the tests derive the class {cls.__name__!r} from one of the program's"))
        made = link().request("call", cls, arguments, tuple(options.items()))
        if is_remote(made) and not isinstance(made, BaseException):
            link().made.add(object.__getattribute__(made, "_number"))
        return made

    def __getattribute__(cls, name: str) -> Any:
        if name in _LOCAL or _link is None:
            return type.__getattribute__(cls, name)
        ask_about(cls, name)
        return link().request("getattr", cls, name)

    __setattr__, __delattr__, __getitem__ = _asks("setattr"), _asks("delattr"), _asks("item")
    __iter__, __len__, __dir__ = _special("__iter__"), _special("__len__"), _special("__dir__")
    __repr__ = _text("repr")

    def __bool__(cls) -> bool:
        return True

    def __instancecheck__(cls, value: Any) -> bool:
        """By inheritance alone; of a class that answers for itself, such as an abstract one, a no is not believed."""
        found = type.__instancecheck__(cls, value)
        if not found and "__instancecheck__" in type.__getattribute__(cls, "operators"):
            _refused(cls, "decides itself what is an instance of it")
        return found

    def __contains__(cls, item: Any) -> Any:
        link().decided |= not is_remote(item)
        return link().request("special", cls, "__contains__", item)


def about(value: Any, name: str) -> Any:
    """An attribute of a stand-in itself, or of its class, and not of what it stands for."""
    kind = value if type(value) is RemoteType else type(value)
    return type.__getattribute__(kind, name)


def named(value: Any) -> bool:
    """Whether the tests name its class, or one that it extends, as a class."""
    kinds = (kind.__dict__ for kind in type(value).__mro__ if isinstance(kind, RemoteType))
    return any(kind.get("named") for kind in kinds)


class Remote(metaclass=RemoteType):
    """A stand-in for an object."""

    __slots__ = ("__weakref__", "_ahead", "_number", "_taken")
    number, plain, operators, named = -1, "", frozenset[str](), False

    def __getattribute__(self, name: str) -> Any:
        plain = about(self, "plain")
        if name == "__class__":
            return _SEEN_AS.get(plain or f"{about(self, '__module__')}.{about(self, '__qualname__')}", type(self))
        if plain and name not in _CHANGES and not name.startswith("__") and not named(self):
            value = _PLAIN_TYPES[plain]
            if hasattr(value, name):  # the base's own answer, whatever the candidate made of it
                return getattr(plain_value(self), name)
        ask_about(self, name)
        return link().request("getattr", self, name)

    __setattr__, __delattr__, __dir__ = _asks("setattr"), _asks("delattr"), _special("__dir__")
    __str__, __repr__, __format__ = _text("str"), _text("repr"), _text("format")
    __eq__, __ne__ = _comparison("__eq__"), _comparison("__ne__")

    def __hash__(self) -> int:
        return int(link().request("hash", self))


_PLAIN_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (str, bytes, int, float, tuple, frozenset, list, dict, set, bytearray)
}
# What `isinstance` sees: an instance of a subclass of `list` is a list, a generator that the candidate made is one.
_SEEN_AS: dict[str, type] = {name: type(name, (kind,), {}) for name, kind in _PLAIN_TYPES.items()} | {
    f"builtins.{kind.__name__}": kind for kind in vars(types).values() if isinstance(kind, type)
}


def decides(value: Any) -> None:
    """Note that an object is asked about plain data: unless the tests made it, it may stand where a value is due."""
    if type(value) is RemoteType or object.__getattribute__(value, "_number") not in link().made:
        link().decided = True


def ask_about(value: Any, name: str) -> None:
    """See that an object is not asked what only plain data is trusted to answer, unless the tests name its class."""
    if name in _PREDICATES:
        if not (about(value, "named") if type(value) is RemoteType else named(value)):
            _refused(value, f"is asked for {name!r}")
        decides(value)


def plain_value(value: Any) -> Any:
    """What an instance of a subclass of a plain type holds, by the plain type's own methods."""
    held = link().request("plain", value)
    if type(held) is not _PLAIN_TYPES[about(value, "plain")]:
        raise NotPlain("an object that does not hold what its class says")
    return held


def is_remote(value: Any) -> bool:
    return isinstance(type(value), RemoteType)


def _compared(left: Any, right: Any, name: str) -> Any:
    if is_remote(left) and is_remote(right):
        if left is right and name in ("__eq__", "__ne__"):
            return name == "__eq__"
        if not (about(left, "plain") and about(right, "plain")):
            if name in ("__eq__", "__ne__") and not {name, "__eq__"} & (
                about(left, "operators") | about(right, "operators")
            ):
                return name == "__ne__"
            link().decided = True
            return link().request("compare", name, left, right)
    if about(left, "plain"):
        right = plain_value(right) if is_remote(right) else right
        return getattr(operator, name)(plain_value(left), right)
    if name in ("__eq__", "__ne__"):
        if right is None or not {name, "__eq__"} & about(left, "operators"):
            return NotImplemented
        return _refused(left, f"is compared with {type(right).__name__!r} by its own __eq__")
    if not named(left):
        return _refused(left, f"is compared with {type(right).__name__!r}")
    link().decided = True
    return link().request("special", left, name, right)


def _refused(value: Any, why: str) -> Any:
    link().session.stop(Unsupported(f"an object of the program's class {about(value, '__name__')!r} {why}"))


def _binary(name: str) -> Callable[..., Any]:
    """An operator; with plain data only where the tests name the class: `f() - 3` would show the program the 3."""

    def operate(self: Any, other: Any, *more: Any) -> Any:
        if not is_remote(other) and not named(self):
            if about(self, "plain"):
                held = plain_value(self)
                if name == "__radd__":
                    return other + held
                return getattr(held, name)(other) if hasattr(held, name) else NotImplemented
            return _refused(self, f"is asked for {name} with {type(other).__name__!r}")
        if not is_remote(other):
            decides(self)
        return link().request("special", self, name, other, *more)

    return operate


def _contains(self: Any, item: Any) -> Any:
    """Whether an item is in it: asked where the tests name the class, else looked for among its items."""
    if about(self, "plain"):
        return item in plain_value(self)
    if named(self) or is_remote(item):
        link().decided = True
        return link().request("special", self, "__contains__", item)
    return any(item is each or item == each for each in iter(self))


def _truth(self: Any) -> bool:
    return bool(plain_value(self) if about(self, "plain") else link().request("truth", self))


def _next_item(self: Any) -> Any:
    """The next item; a test that takes one after the other, and asks for nothing else, gets them in batches."""
    ahead, taken = object.__getattribute__(self, "_ahead"), object.__getattribute__(self, "_taken")
    if not ahead:
        if link().asked != taken[1]:  # something else was asked meanwhile
            taken[0] = 0
        ahead_now = link().reads_ahead and taken[0] >= BATCH_AFTER
        most = min(2 * taken[0], LARGEST_BATCH) if ahead_now else 1
        ahead.extend(link().request("next", self, object.__getattribute__(self, "_number"), most))
        taken[0] += len(ahead)
        taken[1] = link().asked
    return ahead.popleft()


def _await(self: Any) -> Any:
    return link().request("run", self)
    yield


def methods(operators: frozenset[str]) -> dict[str, Any]:
    """The special methods of a stand-in for a class that has these."""
    space: dict[str, Any] = {}
    for name in operators - {"__eq__", "__ne__", "__hash__", "__dir__", "__bool__", "__instancecheck__"}:
        if name in COMPARISONS:
            space[name] = _comparison(name)
        elif name in BINARY:
            space[name] = _binary(name)
        else:
            space[name] = _OWN.get(name) or _special(name)
    if {"__bool__", "__len__"} & operators:
        space["__bool__"] = _truth
    return space


_OWN: dict[str, Callable[..., Any]] = {
    "__call__": lambda self, *arguments, **options: link().request("call", self, arguments, tuple(options.items())),
    "__contains__": _contains,
    "__next__": _next_item,
    "__iter__": lambda self: (
        self if "__next__" in about(self, "operators") else link().request("special", self, "__iter__")
    ),
    "__exit__": lambda self, kind, error, trace: link().request("special", self, "__exit__", kind, error, None),
    "__await__": _await,
}


def make_class(number: int, name: str, module: str, plain: str, operators: frozenset[str], bases: list[Any]) -> type:
    """A stand-in for a class; for one of exceptions, a class of exceptions."""
    parents = tuple(base for base in bases if isinstance(base, type))
    errors = any(issubclass(parent, BaseException) for parent in parents)
    space: dict[str, Any] = {"number": number, "plain": plain, "operators": operators, "named": False}
    space |= {"__module__": module, "__qualname__": name}
    abstract = [base for base in parents if isinstance(base, abc.ABCMeta)]
    if errors:
        space |= {"__getattr__": _error_attribute, "__str__": _error_text, "__repr__": _text("repr")}
        space |= {name: _unasked(name) for name in operators - {"__hash__", "__dir__", "__instancecheck__"}}
        parents = tuple(parent for parent in parents if issubclass(parent, BaseException))
    else:
        parents = tuple(parent for parent in parents if isinstance(parent, RemoteType)) or (Remote,)
        space |= {"__slots__": (), **methods(operators | ({"__radd__"} if plain else set()))}
    try:
        made = RemoteType(name, parents, space)
    except TypeError:  # an order of bases that Python refuses
        made = RemoteType(name, (Exception,) if errors else (Remote,), space)
    for base in abstract:
        base.register(made)
    return made


def _unasked(name: str) -> Callable[..., Any]:
    return lambda error, *more: _refused(error, f"is asked for {name}")


def make_instance(kind: type, number: int) -> Any:
    made = object.__new__(kind)
    object.__setattr__(made, "_number", number)
    link().extended = link().extended or about(kind, "plain")
    if "__next__" in about(kind, "operators"):
        object.__setattr__(made, "_ahead", collections.deque())
        object.__setattr__(made, "_taken", [0, 0])
    return made


def _error_text(error: BaseException) -> str:
    text = str(vars(error).get("of_the_candidate", ("", ""))[1])
    return text if len(text) < MAX_MESSAGE or describe(error) is None else str(link().request("text", "str", error))


def _error_attribute(error: BaseException, name: str) -> Any:
    if describe(error) is None or name.startswith("__") or name in _PREDICATES:
        raise AttributeError(name)
    return link().request("getattr", error, name)

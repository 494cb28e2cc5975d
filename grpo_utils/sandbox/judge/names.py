"""Whose names are whose: what tests may import and use, and what must be the candidate's."""

import ast
import builtins
import datetime
import importlib
import re
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..jail.protocol import KNOWN_MODULES
from . import stand_ins
from .session import Unsupported

# Usable without an import, because data sets leave it out.
IMPLICIT = frozenset(
    str.split(
        "cmath collections copy datetime decimal fractions functools itertools json math operator random re statistics"
        " string sys typing"
    )
)
ALLOWED = IMPLICIT | (KNOWN_MODULES - {"numpy"})
# What tests take for granted although they do not import it; `datetime` can be both the module and its class.
EXPORTS = {
    "Counter": "collections", "OrderedDict": "collections", "defaultdict": "collections", "deque": "collections",
    "namedtuple": "collections", "Decimal": "decimal", "Fraction": "fractions", "date": "datetime",
    "timedelta": "datetime", "isclose": "math", "approx": "pytest",
}  # fmt: skip
# Tests are trusted, but they handle values of the candidate: `eval(to_python("x"))` must not happen here.
REFUSED = frozenset({"eval", "exec", "compile", "open", "input", "breakpoint", "help", "exit", "quit", "globals"})
# Packages that tests must not take for the candidate's when they use them without an import.
_PACKAGES = frozenset(
    str.split("np numpy pd pandas scipy sympy torch plt matplotlib sklearn nx networkx pytest unittest")
)


def allow_numpy() -> None:
    """Let the tests of this process use NumPy."""
    global ALLOWED, IMPLICIT
    ALLOWED |= {"numpy", "numpy.testing", "numpy.linalg"}
    IMPLICIT |= {"numpy"}
    EXPORTS["np"] = ""


def module(name: str) -> types.ModuleType:
    """A module for tests, if it is one of those that they may use."""
    _require_allowed([name])
    return stand_ins.stand_in(name) if name in stand_ins.NAMES else importlib.import_module(name)


def _require_allowed(modules: Iterable[str]) -> None:
    for name in modules:
        if name not in ALLOWED | stand_ins.NAMES:
            raise Unsupported(f"the tests import {name!r}, which is not available to tests")


def _import(name: str, space: Any = None, local: Any = None, names: Iterable[str] = (), level: int = 0) -> Any:
    if name == "_strptime":  # what `strptime` of datetime and time imports when it is called
        return importlib.import_module(name)
    found = module(name)
    if names or name in stand_ins.NAMES:
        return found
    return module(name.partition(".")[0]) if "." not in name else sys.modules[name.partition(".")[0]]


BUILTINS = {name: value for name, value in vars(builtins).items() if name not in REFUSED} | {"__import__": _import}


@lru_cache(maxsize=1)
def _common() -> dict[str, Any]:
    space = {name: module(name) for name in sorted(IMPLICIT)}
    space |= {name: getattr(module(home), name) for name, home in EXPORTS.items() if home}
    return space | ({"np": module("numpy")} if "np" in EXPORTS else {})


def trusted(datetime_class: bool = False) -> dict[str, Any]:
    """A fresh space of names for tests, without the candidate's; `datetime` is the module or the class in it."""
    space = {"__builtins__": BUILTINS.copy(), "__name__": "__main__", **_common()}
    return space | {"datetime": space["datetime"].datetime} if datetime_class else space


def known_names() -> set[str]:
    """The names in it, those of builtins included."""
    return BUILTINS.keys() | IMPLICIT | EXPORTS.keys()


def candidates(name: str, known: set[str], own: set[str]) -> bool:
    """Whether a name that tests use is the candidate's: one of its `own`, or none of those `known` to be the tests'.

    Raises:
        Unsupported: a module or builtin that tests may not use must not be taken for a function of the candidate.
    """
    if name in own:
        return True
    if name in known:
        return False
    if name in REFUSED or name in sys.stdlib_module_names or name in _PACKAGES:
        raise Unsupported(f"the tests use {name!r}, which is not available to tests")
    return True


def require_definitions(used: frozenset[str], own: frozenset[str], code: str) -> None:
    """See that names which the tests use are the candidate's `own`, or stand in its code outside of blocks.

    Raises:
        Unsupported: one of them is and does neither.
    """
    for name in sorted(used - own):
        if not re.search(rf"(?m)^(?![ \t#]).*\b{name}\b", code):
            raise Unsupported(f"the tests use {name!r}, which is neither theirs nor the program's")


def require_imports(tree: ast.AST) -> None:
    """See that tests import only what is available to them, and replace nothing that the program has its own of."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=replaced, ctx=ast.Store()):
                if name in ALLOWED - stored and (name, replaced) not in (("sys", "stdout"), ("sys", "stderr")):
                    raise Unsupported(f"the tests replace '{name}.{replaced}', and the program would not see it")
            case ast.Import(names=wanted):
                _require_allowed(alias.name for alias in wanted)
            case ast.ImportFrom(level=level, module=name):
                _require_allowed(["." * level + (name or "")])


def loaded_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def bound_names(tree: ast.AST) -> set[str]:
    """Every name that some statement in `tree` binds, whatever its scope."""
    bound = set()
    for node in ast.walk(tree):
        match node:
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.split(".")[0])
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound.add(name)
            case _ if isinstance(getattr(node, "name", None), str):  # a definition, `except ... as`, `case ... as`
                bound.add(node.name)  # type: ignore[attr-defined]
    return bound


def called_modules(trees: list[ast.Module]) -> set[str]:
    """Names of modules that are called: no module can be, so `queue(3)` is a function of the candidate."""
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    return named & (sys.stdlib_module_names - {"datetime"})


def uses_datetime_class(trees: list[ast.Module]) -> bool:
    """Whether `datetime` is used as the class of that name: called, or for an attribute that the module lacks."""
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Call(func=ast.Name(id="datetime")):
                return True
            case ast.Attribute(value=ast.Name(id="datetime"), attr=name) if not hasattr(datetime, name):
                return True
    return False


_DEFINITION = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef


class NotSplittable(Exception):
    """The calls of these tests cannot run ahead of the rest."""


@dataclass(frozen=True)
class Scope:
    """Whose names are whose."""

    known: set[str]  # the tests' own
    own: set[str]  # the candidate's for certain
    made: set[str]  # what the setup made, which a call could change, or which depends on the candidate
    setup: ast.Module  # the statements of the setup that do not depend on it
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, setup: ast.Module, own: set[str]) -> "Scope":
        known = known_names() - own
        made: set[str] = set()
        body = []
        for statement in setup.body:
            bound = bound_names(statement)
            independent = loaded_names(statement) <= known | bound and not bound & own
            if independent:
                body.append(statement)
            known = known | bound if independent else known - bound
            if not (independent and isinstance(statement, _DEFINITION)):
                made |= bound
        return cls(known, own, made, ast.Module(body, []))

    def is_candidates(self, name: str) -> bool:
        if name in self.made and name not in self.known:
            raise NotSplittable
        if not candidates(name, self.known, self.own):
            return False
        self.used.add(name)
        return True

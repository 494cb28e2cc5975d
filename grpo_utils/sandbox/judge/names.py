"""Whose names are whose: what tests may import and use, and what must be the candidate's."""

import ast
import builtins
import copy
import datetime
import importlib
import re
import symtable
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
# What would be asked of the judge's process, where the answer is another one than in the program's.
UNMODELLED = {
    **dict.fromkeys(
        ("__suppress_context__", "__context__", "__traceback__"), "of an exception its cause alone is known"
    ),
    **dict.fromkeys(("catch_warnings", "simplefilter", "filterwarnings"), "the program's warnings are not seen"),
    "redirect_stderr": "standard error is not seen",
    "__subclasses__": "the tests know those classes alone that they have met",
    "settrace": "the program would not be traced",
}
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


def require_globals_of_its_own(bound: frozenset[str], code: str) -> None:
    """See that tests bind no name that the program's functions read as a variable of the program.

    Raises:
        Unsupported: in one space of names the program would see the new value, and here it does not.
    """
    if not any(re.search(rf"\b{name}\b", code) for name in bound):
        return
    try:
        top = symtable.symtable(code, "<candidate>", "exec")
    except Exception:  # no Python, or so strange that the compiler fails: running it will tell
        return
    made = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()} & bound
    tables = list(top.get_children())
    while tables and made:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.get_name() in made:
                raise Unsupported(f"the tests bind {symbol.get_name()!r}, and the program would not see it")


def spell_out_stars(trees: list[ast.Module], own: frozenset[str]) -> None:
    """Make of `from math import *` in tests and setup an import of what they use of it and is not the candidate's."""
    stars = [node for tree in trees for node in tree.body if isinstance(node, ast.ImportFrom) and _has_star(node)]
    wanted = set().union(*map(loaded_names, trees if stars else ())) - own - REFUSED
    for node in stars:
        offered = module(node.module or "")
        public = getattr(offered, "__all__", None) or [one for one in vars(offered) if not one.startswith("_")]
        aliases = [ast.alias(name) for name in sorted(wanted & set(public))]
        node.names = aliases or [ast.alias("__name__", "__star__")]  # an import of nothing is no Python
        ast.fix_missing_locations(node)
        vars(node)["star"] = True


def shipped_source(statements: list[ast.stmt]) -> str:
    """The text of what the candidate's process runs before the program."""
    return "\n".join(
        f"from {vars(one)['module']} import *" if hasattr(one, "star") else ast.unparse(_Undocumented().visit(one))
        for one in map(copy.deepcopy, statements)
    )


class _Undocumented(ast.NodeTransformer):
    """Takes the docstrings from a class: they may have examples."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node) if isinstance(node.value, ast.Constant) else node


def _has_star(node: ast.ImportFrom) -> bool:
    return node.names[0].name == "*"


def require_modelled(tree: ast.Module) -> None:
    """See that tests import only what is available to them, and ask for nothing that is not modelled here."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="pytestmark", ctx=ast.Store()):
                raise Unsupported("the tests mark themselves by `pytestmark`, which is not available to tests")
            case ast.Attribute(value=ast.Name(id=name), attr=replaced, ctx=ast.Store()):
                if name in ALLOWED - stored and (name, replaced) != ("sys", "stdout"):
                    raise Unsupported(f"the tests replace '{name}.{replaced}', and the program would not see it")
            case ast.Attribute(value=ast.Name(id="random"), attr="getstate" | "setstate"):
                raise Unsupported("the tests use the state of `random`: the program has random numbers of its own")
            case ast.Delete(targets=targets) if any(isinstance(one, ast.Name) for one in targets):
                raise Unsupported("the tests delete a name: when an object of the program's ends is not modelled")
            case ast.Compare() if _asks_for_type(node):
                raise Unsupported("the tests compare a type with one of `types`: use isinstance")
            case ast.Attribute(attr=name) | ast.alias(name=name) | ast.Name(id=name) if name in UNMODELLED:
                raise Unsupported(f"the tests use {name!r}: {UNMODELLED[name]}")
            case ast.Import(names=wanted):
                _require_allowed(alias.name for alias in wanted)
            case ast.ImportFrom(level=level, module=name):
                _require_allowed(["." * level + (name or "")])
                if _has_star(node) and node not in tree.body:
                    raise Unsupported("the tests have a star import in a block")


def _asks_for_type(node: ast.Compare) -> bool:
    """Whether it is `type(x) is types.GeneratorType`: what stays with the candidate has a stand-in's type here."""
    sides = [node.left, *node.comparators]
    asked = any(isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "type" for one in sides)
    named = (one for side in sides for one in ast.walk(side) if isinstance(one, ast.Attribute | ast.Name))
    return asked and any(
        hasattr(types, one.attr if isinstance(one, ast.Attribute) else one.id) and ast.unparse(one) != "types"
        for one in named
    )


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


def holds_no_value(statement: ast.stmt, before: list[ast.stmt]) -> bool:
    """Whether a statement of setup or tests may run in the candidate's process: it tells nothing of what they expect.

    Imports may, `sys.setrecursionlimit`, and classes that hold attributes and no more: special methods alone, of which
    none has a constant but the empty ones, 0 and 1, and texts in `__repr__` and `__str__`. An instance of such a class
    can be an argument. `before` are the statements that run before it.
    """
    match statement:
        case ast.Import() | ast.ImportFrom():
            sources = {alias.name for alias in statement.names} | {getattr(statement, "module", "")}
            return not sources & {"pytest", "__future__"}
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="setrecursionlimit"), args=[ast.Constant()])):
            return True
        case ast.ClassDef(name=name):
            return not name.startswith("Test") and _is_bare(statement, before)
    return False


def _is_error(name: str) -> bool:
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


def _is_bare(made: ast.ClassDef, before: list[ast.stmt]) -> bool:
    known = known_names().union({made.name}, *map(bound_names, before))
    classes = {one.name for one in before if isinstance(one, ast.ClassDef)} | {"object", "ABC"}
    if not all(isinstance(base, ast.Name) and (base.id in classes or _is_error(base.id)) for base in made.bases):
        return False
    for part in made.body:
        allowed: set[Any] = {None, 0, 1, "", ...}  # False equals 0, and True 1
        match part:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                continue
            case ast.FunctionDef(name=name) if name.startswith("__"):
                part = _Undocumented().visit(copy.deepcopy(part))
                texts = name in ("__repr__", "__str__")
            case ast.AnnAssign() | ast.Assign(targets=[ast.Name(id="__slots__")]):
                texts = isinstance(part, ast.Assign)
            case _:
                return False
        constants = [node.value for node in ast.walk(part) if isinstance(node, ast.Constant)]
        if not all(one in allowed or (texts and isinstance(one, str)) for one in constants):
            return False
        if not loaded_names(part) <= known | bound_names(part):
            return False
    outside: set[str] = set().union(*map(loaded_names, (*made.bases, *made.keywords, *made.decorator_list)))
    return outside <= known


class NotSplittable(Exception):
    """The calls of these tests cannot run ahead of the rest."""


@dataclass(frozen=True)
class Scope:
    """Whose names are whose."""

    known: set[str]  # the tests' own
    own: set[str]  # the candidate's for certain
    made: set[str]  # what the setup made and only the judge has: it may hold what the tests expect
    setup: ast.Module  # the statements of the setup that do not depend on the candidate
    shipped: list[ast.stmt]  # those of them that the candidate's process runs too
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, setup: ast.Module, own: set[str]) -> "Scope":
        known = known_names() - own
        made: set[str] = set()
        body: list[ast.stmt] = []
        shipped: list[ast.stmt] = []
        for statement in setup.body:
            bound = bound_names(statement)
            independent = loaded_names(statement) <= known | bound and not bound & own
            if independent:
                body.append(statement)
            known = known | bound if independent else known - bound
            if independent and holds_no_value(statement, shipped):
                shipped.append(statement)
            else:
                made |= bound
        return cls(known, own, made, ast.Module(body, []), shipped)

    def is_candidates(self, name: str) -> bool:
        if name in self.made and name not in self.known:
            raise NotSplittable
        if not candidates(name, self.known, self.own):
            return False
        self.used.add(name)
        return True

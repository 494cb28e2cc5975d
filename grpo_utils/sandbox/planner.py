"""Splits asserts into the candidate's calls and the rest, which is judged on the trusted side.

    assert abs(area(2) - 12.56) < 0.01      the call `area(2)` travels to the candidate's process
    assert abs( _0_    - 12.56) < 0.01      what is left is evaluated here

The candidate's process never sees `12.56`, so there is nothing to steal, and it cannot patch `abs` where it
counts. Only the call moves, never a whole side of the comparison.

Tests whose meaning could change when their calls run ahead of them (comprehensions, loops, `and`, functions
such as HumanEval's `check`) are not split: they run here as they are, with remote stubs in place of the
candidate's functions. What neither way does: show a test that the candidate changed an argument in place.
"""

import ast
import builtins
import cmath
import collections
import copy
import datetime
import decimal
import fractions
import functools
import importlib.util
import itertools
import json
import math
import operator
import re
import statistics
import string
import sys
import threading
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any


def _private_copy(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JUDGED = "__judged__"  # the context manager that a body's asserts run in

_MODULES: dict[str, ModuleType] = {
    module.__name__: module
    for module in (
        cmath, collections, copy, datetime, decimal, fractions, functools, itertools, json, math, operator,
        re, statistics, string, sys, typing,
    )
}  # fmt: skip
_MODULES["random"] = _private_copy("random")  # tests that draw must not change what the trainer draws
# Tests are trusted, but they handle values of the candidate: `eval(to_python("x"))` must not happen here.
# KeyboardInterrupt is the user's: raised by a test it would look like Ctrl-C.
_REFUSED = {"eval", "exec", "compile", "open", "input", "breakpoint", "help", "exit", "quit", "globals"}
_REFUSED |= {"KeyboardInterrupt"}
_BUILTINS = {name: value for name, value in vars(builtins).items() if name not in _REFUSED}


class UnsupportedTest(Exception):
    """The tests cannot be judged without running parts of them where the candidate could forge the result."""


@dataclass(frozen=True)
class SplitAssert:
    """One assert: its calls are `Plan.calls[first:last]`, and `rest` names their results `_0_`, `_1_`, ..."""

    first: int
    last: int
    rest: CodeType
    source: str


@dataclass(frozen=True)
class Plan:
    """How to judge one list of tests: split `asserts`, or else the whole `body` with stubs for `names`.

    `trusted` is a fresh copy of the names that the tests may use, made per check: a body may change them. `count` is
    the number of asserts, without those inside loops and functions, of which only running tells how many there are.
    """

    count: int
    calls: tuple[CodeType, ...]
    asserts: tuple[SplitAssert, ...]
    body: CodeType | None
    names: tuple[str, ...]
    trusted: Callable[[], dict[str, Any]]


# CPython before 3.11.8 counts the depth of a syntax tree for all threads together (gh-106905): when a finalizer that
# runs inside of one thread's parser lets another thread parse, the first one ends with a SystemError.
_one_at_a_time = threading.Lock()


def plan(tests: tuple[str, ...], names: tuple[str, ...] = (), setup: str = "") -> Plan:
    """Decide what of the tests the candidate's process gets to see.

    Args:
        tests: source texts of the tests.
        names: names that are the candidate's even where Python has a builtin of that name.
        setup: source text that runs between the candidate and the tests.

    Returns:
        The plan; it is cached, because a group of completions shares its tests.

    Raises:
        UnsupportedTest: the tests are no Python or nested too deeply, their setup raises, or they use a name that is
            neither theirs nor the candidate's.

    Example:
        >>> plan(("assert abs(area(2) - 12.56) < 0.01",)).calls[0].co_names
        ('area',)
    """
    with _one_at_a_time:
        try:
            return _plan(tests, names, setup)
        except (
            SyntaxError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as error:  # the last three: deep nesting, long ints
            raise UnsupportedTest(f"the tests cannot be read as Python: {error}") from None


@lru_cache(maxsize=4096)
def _plan(tests: tuple[str, ...], names: tuple[str, ...], setup: str) -> Plan:
    trees = [ast.parse(test.strip()) for test in tests]
    own = set(names) | (_called_modules(trees) - _bound_names(ast.parse(setup)))
    trusted_setup = _trusted_setup(ast.parse(setup), own)

    def trusted() -> dict[str, Any]:
        space = _trusted_names()
        space["random"].seed(0)
        exec(trusted_setup, space)
        return space

    try:
        known = set(_BUILTINS) | set(trusted())
    except BaseException as error:  # a setup may raise whatever it likes, SystemExit too
        raise UnsupportedTest(f"the setup raises {type(error).__name__}: {error}") from None
    scope = _Scope(known - own, own)
    try:
        return _split(trees, scope, trusted)
    except _NotSplittable:
        return _as_body(trees, scope, trusted)


# ------------------------------------------------------------------------------------------ trusted names


def _trusted_names() -> dict[str, Any]:
    return {"__builtins__": _TEST_BUILTINS.copy(), "__name__": "tests", **_MODULES, **_SHORT}


def _import(name: str, *_: Any, **__: Any) -> ModuleType:
    if name not in _MODULES:
        raise UnsupportedTest(f"the tests import {name!r}, which is not available to tests")
    return _MODULES[name]


_TEST_BUILTINS = _BUILTINS | {"__import__": _import, "print": lambda *_, **__: None}
# What tests take for granted although they do not import it.
_SHORT = {"Counter": collections.Counter, "isclose": math.isclose}


def _trusted_setup(setup: ast.Module, names: set[str]) -> CodeType:
    """The statements of the setup that do not depend on the candidate."""
    known = (set(_BUILTINS) | set(_MODULES)) - names
    body = []
    for statement in setup.body:
        bound, loaded = _bound_names(statement), _loaded_names(statement)
        if loaded <= known | bound and not bound & names and _imports_known(statement):
            body.append(statement)
            known |= bound
        else:
            known -= bound
    return compile(ast.Module(body, []), "<setup>", "exec")


def _called_modules(trees: list[ast.Module]) -> set[str]:
    """Names of modules that are called: no module can be, so `queue(3)` is a function of the candidate."""
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)} & sys.stdlib_module_names


def _loaded_names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound_names(tree: ast.AST) -> set[str]:
    """Every name that some statement in `tree` binds, whatever its scope."""
    bound = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.split(".")[0])
    return bound


def _imports_known(statement: ast.AST) -> bool:
    for node in ast.walk(statement):
        if isinstance(node, ast.Import) and any(alias.name not in _MODULES for alias in node.names):
            return False
        if isinstance(node, ast.ImportFrom) and node.module not in _MODULES:
            return False
    return True


# --------------------------------------------------------------------------------------- split or keep whole


class _NotSplittable(Exception):
    pass


@dataclass(frozen=True)
class _Scope:
    """Whose names are whose: `known` are the tests' own, `own` the candidate's for certain."""

    known: set[str]
    own: set[str]

    def is_candidates(self, name: str) -> bool:
        """A module or builtin that tests may not use must not be taken for a function of the candidate."""
        if name in self.known:
            return False
        if name not in self.own and (name in _REFUSED or name in sys.stdlib_module_names):
            raise UnsupportedTest(f"the tests use {name!r}, which is not available to tests")
        return True


def _split(trees: list[ast.Module], scope: _Scope, trusted: Callable[[], dict[str, Any]]) -> Plan:
    calls: list[CodeType] = []
    asserts = []
    for tree in trees:
        for statement in tree.body:
            if not isinstance(statement, ast.Assert):
                raise _NotSplittable
            source = ast.unparse(statement)
            splitter = _Splitter(scope)
            rest = ast.fix_missing_locations(ast.Expression(splitter.replace(copy.deepcopy(statement.test))))
            first = len(calls)
            calls += [compile(ast.Expression(call), "<call>", "eval") for call in splitter.calls]
            asserts.append(SplitAssert(first, len(calls), compile(rest, "<assert>", "eval"), source))
    return Plan(len(asserts), tuple(calls), tuple(asserts), None, (), trusted)


class _Splitter(ast.NodeTransformer):
    """Replaces the candidate's calls in one expression by placeholders and collects them."""

    def __init__(self, scope: _Scope) -> None:
        self.scope = scope
        self.calls: list[ast.expr] = []

    def replace(self, expression: ast.expr) -> ast.expr:
        replaced = self.visit(expression)
        assert isinstance(replaced, ast.expr)
        return replaced

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript | ast.Name):
            root = _chain(node)[-1]
            if isinstance(root, ast.Name) and self.scope.is_candidates(root.id) and _moves_as_a_whole(node, root):
                self.calls.append(node)
                return ast.copy_location(ast.Name(f"_{len(self.calls) - 1}_", ast.Load()), node)
        return super().visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self._first_operand_only(node, node.values[1:])

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._first_operand_only(node, node.comparators[1:])

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._first_operand_only(node, [node.body, node.orelse])

    def _own_scope(self, node: ast.AST) -> ast.AST:
        """A comprehension or lambda stays as it is: its variables are nobody's, its calls cannot run ahead."""
        if any(map(self.scope.is_candidates, _loaded_names(node) - _bound_names(node))):
            raise _NotSplittable
        return node

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _own_scope
    visit_NamedExpr = _own_scope

    def _first_operand_only(self, node: ast.AST, maybe_not_evaluated: Sequence[ast.AST]) -> ast.AST:
        for operand in maybe_not_evaluated:
            if any(map(self.scope.is_candidates, _loaded_names(operand) - _bound_names(operand))):
                raise _NotSplittable
        return self.generic_visit(node)


def _moves_as_a_whole(node: ast.expr, root: ast.Name) -> bool:
    """Whether all of `f(x)`, `f(x)(y)`, `data[0]` moves; of `f(x).upper()` only `f(x)` does.

    An instance cannot travel, so chains that start at a class, `Stack([1]).pop()`, move whole: there the method
    is what the candidate wrote. A class is told by its capital, as PEP 8 has it.
    """
    if root.id[0].isupper():
        return True
    while isinstance(node, ast.Call):
        node = node.func
        if not isinstance(node, ast.Call):
            break
    return not any(isinstance(part, ast.Call) for part in _chain(node))


def _chain(node: ast.expr) -> list[ast.expr]:
    """`f(x).upper()` and what stands before each call, dot and bracket of it, down to `f`."""
    parts = [node]
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
        parts.append(node)
    return parts


def _as_body(trees: list[ast.Module], scope: _Scope, trusted: Callable[[], dict[str, Any]]) -> Plan:
    """All tests as one program, each assert of it in a `with` block that notes how it went."""
    body = ast.Module([statement for tree in trees for statement in tree.body], [])
    count = sum(isinstance(statement, ast.Assert) for statement in body.body)
    names = sorted(filter(scope.is_candidates, _loaded_names(body) - _bound_names(body)))
    body.body = [part for statement in body.body for part in _counted(statement)]
    body = ast.fix_missing_locations(_AssertRecorder().visit(body))
    return Plan(count, (), (), compile(body, "<tests>", "exec"), tuple(names), trusted)


def _counted(statement: ast.stmt) -> list[ast.stmt]:
    """A statement of the tests; an assert notes behind it that it was reached, which one inside a loop does not."""
    return [statement, *ast.parse(f"{JUDGED}.reached += 1").body] if isinstance(statement, ast.Assert) else [statement]


class _AssertRecorder(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        recorder = ast.withitem(ast.Name(JUDGED, ast.Load()))
        return ast.copy_location(ast.With([recorder], [node]), node)

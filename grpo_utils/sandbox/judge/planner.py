"""Splits asserts into the candidate's calls and the rest, which is judged on the trusted side.

    assert abs(area(2) - 12.56) < 0.01      the call `area(2)` travels to the candidate's process
    assert abs( _0_    - 12.56) < 0.01      what is left is evaluated here

The candidate's process never sees `12.56`, so there is nothing to steal, and it cannot patch `abs` where it
counts. Only the call moves, never a whole side of the comparison. All calls travel at once.

Tests whose meaning could change when their calls run ahead of them (statements other than `assert`, comprehensions,
`and`, arguments that the setup made) are not split: `body` runs them as they are.
"""

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType
from typing import Any, cast

from . import names as names_
from .body import Body, compile_body, lines_of, source_of
from .collected import reached, require_collected
from .names import NotSplittable, Scope, bound_names, loaded_names, require_modelled, spell_out_stars
from .session import Unsupported

# Builtins that take all that an iterator gives.
_DRAINING = frozenset(str.split("list tuple set frozenset sorted sum max min dict Counter deque"))
# What the judge evaluates in its own process, because it changes nothing there.
_PURE = frozenset(
    str.split(
        "abs all any bool chr dict enumerate float frozenset isinstance issubclass len"
        " list max min ord repr reversed round"
        " set sorted str sum tuple type zip Counter OrderedDict defaultdict deque date isclose approx"
    )
)
_PURE_ATTRIBUTES = frozenset(
    str.split(
        "isclose isnan isinf sqrt fabs copysign floor ceil pi e inf nan"
        " Counter OrderedDict defaultdict deque date datetime"
        " timedelta lower upper strip split items keys values copy tolist"
    )
)
# Methods that leave their object as it is.
_UNCHANGING = _PURE_ATTRIBUTES.union(
    {"most_common", "elements", "total"},
    *({name for name in dir(kind) if name[0] != "_"} for kind in (str, bytes, int, float, complex, tuple, frozenset)),
)
# What means something else in the candidate's process: variables that the tests go on using, `await`.
_STAYING = ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom


MOST_KEPT = 2 << 20  # characters; their plans take about 60 bytes for each
_plans: dict[tuple[tuple[str, ...], tuple[str, ...], str], "Plan"] = {}


@dataclass(frozen=True)
class SplitAssert:
    """One assert: its calls are `Plan.calls[first:last]`, and `rest` names their results `_0_`, `_1_`, ..."""

    first: int
    last: int
    rest: CodeType
    source: str


@dataclass(frozen=True)
class Plan:
    """How to judge one list of tests."""

    tests: tuple[str, ...]  # their source texts, without those that are blank
    setup: str  # as it was given
    shipped: str  # what of it the candidate's process runs too
    kept_back: frozenset[str]  # names that it binds and the candidate's process does not have
    own: frozenset[str]  # names that are the candidate's for certain
    used: frozenset[str]  # names in the tests that are the candidate's
    calls: tuple[tuple[CodeType, bool], ...] = ()  # each with whether an iterator that comes back is emptied
    asserts: tuple[SplitAssert, ...] = ()  # none where the tests cannot be split
    setup_code: CodeType | None = None  # of the setup's statements that do not depend on the candidate
    pure: bool = False  # whether evaluating the asserts changes nothing in the process that does it
    datetime_class: bool = False  # whether `datetime` without an import is the class of that name

    @cached_property
    def body(self) -> Body:
        """The tests as programs that run as they are, or `Unsupported`."""
        with _readable():
            return compile_body(self.tests, self.setup, set(self.own))

    @property
    def count(self) -> int:
        """The number of asserts."""
        return len(self.asserts) or self.body.count


def plan(tests: tuple[str, ...], names: tuple[str, ...] = (), setup: str = "") -> Plan:
    """Decide what of the tests the candidate's process gets to see; the arguments are those of `Check`.

    The plan is kept, because a group of completions shares its tests, until newer ones fill `MOST_KEPT`.

    Raises:
        Unsupported: the tests are no Python or nested too deeply, or there are none.

    Example:
        >>> plan(("assert abs(area(2) - 12.56) < 0.01",)).calls[0][0].co_names
        ('area',)
    """
    key = tests, names, setup
    with _readable():
        _plans[key] = found = _plans.pop(key, None) or _plan(tests, names, setup)
    while len(_plans) > 1 and sum(map(_size, _plans)) > MOST_KEPT:
        del _plans[next(iter(_plans))]  # the one that was asked for least lately
    return found


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last three: deep nesting, long ints
        raise Unsupported(f"the tests cannot be read as Python: {error}") from None


def _size(key: tuple[tuple[str, ...], tuple[str, ...], str]) -> int:
    """Characters that a plan was made of, and some for what any plan takes."""
    tests, _, setup = key
    return 100 + len(setup) + sum(map(len, tests))


def _plan(tests: tuple[str, ...], names: tuple[str, ...], setup: str) -> Plan:
    texts = tuple(text for text in map(str.strip, tests) if text)
    trees = [ast.parse(text) for text in texts]
    setup_tree = ast.parse(setup)
    for tree in (*trees, setup_tree):
        require_modelled(tree)
    called = reached([setup_tree, *trees])
    for tree in (*trees, setup_tree):
        require_collected(tree, called, is_setup=tree is setup_tree)
    replaced = {node.name for node in setup_tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    own = frozenset(set(names) - replaced | (names_.called_modules(trees) - bound_names(setup_tree)))
    spell_out_stars([*trees, setup_tree], own)
    if all(type(statement) is ast.Assert for tree in trees for statement in tree.body):
        try:
            scope = Scope.of(setup_tree, set(own))
            return _split(texts, trees, setup, own, scope)
        except NotSplittable:
            pass
    whole = Plan(texts, setup, "", frozenset(), own, frozenset())
    if not whole.body.count:
        raise Unsupported("there are no tests" if not texts else "the tests hold no assert and expect no exception")
    planned = replace(whole, used=whole.body.used, datetime_class=names_.uses_datetime_class(trees))
    vars(planned)["body"] = whole.body
    return planned


def _split(texts: tuple[str, ...], trees: list[ast.Module], setup: str, own: frozenset[str], scope: Scope) -> Plan:
    calls: list[tuple[CodeType, bool]] = []
    asserts = []
    pure = not scope.setup.body
    for text, tree in zip(texts, trees, strict=True):
        lines = lines_of(text)
        for statement in tree.body:
            assert isinstance(statement, ast.Assert)
            splitter = _Splitter(scope)
            rest = cast(ast.expr, splitter.visit(statement.test))
            first = len(calls)
            for call in splitter.calls:
                calls.append((compile(ast.Expression(call), "<call>", "eval"), id(call) in splitter.drained))
            pure = pure and _is_pure(rest)
            code = compile(ast.Expression(rest), "<assert>", "eval")
            asserts.append(SplitAssert(first, len(calls), code, source_of(statement, lines)))
    if not asserts:
        raise Unsupported("there are no tests")
    setup_code = compile(scope.setup, "<setup>", "exec") if scope.setup.body else None
    used, as_class = frozenset(scope.used), names_.uses_datetime_class(trees)
    shipped, kept_back = names_.shipped_source(scope.shipped), frozenset(scope.made - own)
    return Plan(texts, setup, shipped, kept_back, own, used, tuple(calls), tuple(asserts), setup_code, pure, as_class)


class _Splitter(ast.NodeTransformer):
    """Replaces the candidate's calls in one expression by placeholders and collects them."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.calls: list[ast.expr] = []
        self.drained: set[int] = set()

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript | ast.Name):
            root = chain(node)[-1]
            if isinstance(root, ast.Name) and self.scope.is_candidates(root.id) and _moves_as_a_whole(node):
                if loaded_names(node) & self.scope.made or any(isinstance(part, _STAYING) for part in ast.walk(node)):
                    raise NotSplittable
                self.calls.append(node)
                return ast.copy_location(ast.Name(f"_{len(self.calls) - 1}_", ast.Load()), node)
        if isinstance(node, ast.Call) and self._may_change(node):
            raise NotSplittable  # what it changes may be what the program keeps
        if isinstance(node, ast.Call) and _drains(node):
            self.drained.update(map(id, node.args))
        return super().visit(node)

    def _may_change(self, call: ast.Call) -> bool:
        """Whether a call by the tests could change a result of the candidate's, which would then be a copy."""
        match call.func:
            case ast.Attribute(attr=name) if name in _UNCHANGING:
                return False
            case ast.Name(id=name) if name in _PURE:
                return False
        return any(self.scope.is_candidates(one) for one in loaded_names(call))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self.generic_visit(self._kept(node, *node.values[1:]))  # the rest is perhaps not evaluated

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        by_identity = any(isinstance(operator, ast.Is | ast.IsNot) for operator in node.ops)
        return self.generic_visit(self._kept(node, *node.comparators[0 if by_identity else 1 :]))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self.generic_visit(self._kept(node, node.body, node.orelse))

    def _own_scope(self, node: ast.AST) -> ast.AST:
        """A comprehension or lambda stays as it is: its variables are nobody's, its calls cannot run ahead."""
        return self._kept(node, node)

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _own_scope
    visit_NamedExpr = _own_scope

    def _kept(self, node: ast.AST, *parts: ast.AST) -> ast.AST:
        """The node, if nothing in these parts of it is the candidate's."""
        if any(self.scope.is_candidates(name) for part in parts for name in loaded_names(part) - bound_names(part)):
            raise NotSplittable
        return node


def _drains(call: ast.Call) -> bool:
    """Whether a call takes all items of its arguments, as in `list(f())` or `"".join(f())`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == "join" and isinstance(call.func.value, ast.Constant)
    return isinstance(call.func, ast.Name) and call.func.id in _DRAINING


def _is_pure(expression: ast.expr) -> bool:
    """Whether evaluating it changes nothing but what it makes itself, and takes no longer than its values are long."""
    for node in ast.walk(expression):
        match node:
            case ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr() | ast.FormattedValue():
                return False
            case ast.BinOp(op=operator) if not isinstance(operator, ast.Add | ast.Sub):
                return False  # a short value can stand for a large number, or for a format
            case ast.Call(func=ast.Name(id=name)) if name not in _PURE:
                return False
            case ast.Attribute(attr=name) if name not in _PURE_ATTRIBUTES:
                return False
    return True


def _moves_as_a_whole(node: ast.expr) -> bool:
    """Whether all of `f(x)`, `f(x)(y)`, `data[0]` moves; of `f(x).upper()` only `f(x)` does."""
    while isinstance(node, ast.Call):
        node = node.func
        if not isinstance(node, ast.Call):
            break
    return not any(isinstance(part, ast.Call) for part in chain(node))


def chain(node: ast.expr) -> list[ast.expr]:
    """`f(x).upper()` and what stands before each call, dot and bracket of it, down to `f`."""
    parts: list[Any] = [node]
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
        parts.append(node)
    return parts

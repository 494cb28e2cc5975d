"""Tests that run as they are, with stand-ins for the candidate's names: how they are prepared.

Every `assert`, and every `with pytest.raises(...)`, is one outcome, however often it runs: it fails if it fails once.
`assert False` and `raise AssertionError` are promises: kept when the tests run to their end without reaching them.
"""

import ast
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from .collected import calls_of, reached
from .names import (
    Scope,
    bound_names,
    candidates,
    holds_no_value,
    known_names,
    loaded_names,
    shipped_source,
    spell_out_stars,
)
from .session import Unsupported

JUDGED = "__judged__"  # what the asserts report to, in the space of the tests
_CATCHING = {"AssertionError", "Exception", "BaseException"}


@dataclass(frozen=True)
class Unit:
    """A part of the tests that runs by itself, and the numbers of its asserts: from `first` up to `last`."""

    code: CodeType
    first: int
    last: int

    @property
    def is_step(self) -> bool:
        """Whether it has no assert: what comes after it builds on it."""
        return self.first == self.last


@dataclass(frozen=True)
class Body:
    """Tests as programs."""

    units: tuple[Unit, ...]  # the setup, one for each source text, and for each test function in it that nothing calls
    sources: tuple[str, ...]  # the text of each assert
    promises: frozenset[int]  # numbers of the asserts that must not be reached
    used: frozenset[str]  # names that are the candidate's
    bound: frozenset[str]  # names that tests bind
    candidates_setup: str  # source text of what the candidate's process needs of the setup and the tests
    classes: tuple[str, ...]  # names of the classes in it, whose instances both sides can have
    uncalled: bool  # whether there are functions that nothing calls
    defined: frozenset[str]  # names of the functions that tests and setup define
    kept_back: frozenset[str]  # names that setup and tests bind and the candidate's process does not have
    expects_stop: bool  # whether the tests name StopIteration
    asks_once: bool  # whether nothing can see that items of an iterator are computed ahead

    @property
    def count(self) -> int:
        return len(self.sources)


def compile_body(tests: tuple[str, ...], setup: str, own: set[str]) -> Body:
    """Prepare tests to run as they are; `own` are names that are the candidate's for certain.

    Raises:
        Unsupported: they use a name that is neither theirs nor the candidate's, or bind one of the candidate's.
    """
    marker = _Marker()
    *trees, setup_tree = [ast.parse(text) for text in (*tests, setup)]
    spell_out_stars([*trees, setup_tree], frozenset(own))
    bound, used = _names(trees, setup_tree, (*tests, setup), own)
    scope = Scope.of(setup_tree, set(own))
    shipped = [*scope.shipped, *_shipped(trees, scope.shipped)]
    called, loaded = reached([setup_tree, *trees]), set().union(*map(loaded_names, [*trees, setup_tree]))
    expects_stop = any("Stop" in text for text in (*tests, setup))
    if expects_stop and loaded & {"map", "filter"}:
        raise Unsupported("the tests name StopIteration beside map or filter, which it would end")
    setup_code = compile(marker.mark(setup_tree, setup), "<setup>", "exec")
    units = [Unit(setup_code, 0, len(marker.sources))]
    for tree, text in zip(trees, tests, strict=True):
        units += _units(tree, text, marker, called)
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return Body(
        tuple(units),
        tuple(marker.sources),
        frozenset(marker.promises),
        used,
        bound,
        shipped_source(shipped),
        tuple(node.name for node in shipped if isinstance(node, ast.ClassDef)),
        any(function.name not in called for function in functions),
        frozenset(
            one.name for tree in (setup_tree, *trees) for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)
        ),
        frozenset(set().union(*map(bound_names, [setup_tree, *trees])) - set().union(*map(bound_names, shipped)) - own),
        expects_stop,
        _asks_once(trees, setup_tree, used),
    )


def _asks_once(trees: list[ast.Module], setup: ast.Module, used: frozenset[str]) -> bool:
    """Whether tests ask the candidate for one call alone, with constants for arguments, and watch nothing else."""
    nodes = [node for tree in (*trees, setup) for node in ast.walk(tree)]
    asked = sum(isinstance(node, ast.Name) and node.id in used for node in nodes)
    calls = [
        one for one in nodes if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in used
    ]
    given = [part for call in calls for part in (*call.args, *(keyword.value for keyword in call.keywords))]
    looks = {"send", "throw", "close", "stdout", "redirect_stdout"}
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
    watched = names & looks or any(name.startswith("gi_") for name in names)
    return asked == len(calls) == 1 and all(isinstance(one, ast.Constant) for one in given) and not watched


def _names(
    trees: list[ast.Module], setup: ast.Module, texts: tuple[str, ...], own: set[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The names that tests bind as globals, and those that are the candidate's."""
    loaded: set[str] = set()
    bound: set[str] = set()
    by_tests: set[str] = set()
    for tree, text in zip((*trees, setup), texts, strict=True):
        with_stars = "import" in text and "*" in text
        for name, is_bound in _global_names(ast.unparse(tree) if with_stars else text):
            (bound if is_bound else loaded).add(name)
            if is_bound and tree is not setup:
                by_tests.add(name)
    if anew := sorted(by_tests & own):
        raise Unsupported(f"the tests bind {anew[0]!r} anew, and the program would not see it")
    known = known_names() | {"__name__", "__file__", "__doc__", "__builtins__"}
    used = frozenset(name for name in loaded - bound if candidates(name, known - own, own))
    return frozenset(by_tests), used


def _global_names(text: str) -> Iterator[tuple[str, bool]]:
    """Names that a program reads (False) or binds (True) as globals."""
    top = symtable.symtable(text, "<tests>", "exec")
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            at_top = table is top or symbol.is_global()
            if at_top and symbol.is_referenced():
                yield symbol.get_name(), False
            if (table is top or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                yield symbol.get_name(), True


def _shipped(trees: list[ast.Module], before: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Imports of the tests, and classes of theirs that hold no values: an instance of one can be an argument."""
    before = list(before)
    for statement in (statement for tree in trees for statement in tree.body):
        if holds_no_value(statement, before):
            before.append(statement)
            yield statement


def _units(tree: ast.Module, text: str, marker: "_Marker", called: set[str]) -> Iterator[Unit]:
    first = len(marker.sources)
    calls: list[tuple[str, int, int]] = []
    body: list[ast.stmt] = []
    for statement in tree.body:
        start = len(marker.sources)
        body += marker.mark(ast.Module([statement], []), text).body
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name not in called:
            calls += [(call, start, len(marker.sources)) for call in calls_of(statement)]
    yield Unit(compile(ast.Module(body, []), "<tests>", "exec"), first, len(marker.sources))
    for call, start, last in calls:
        yield Unit(compile(call, "<tests>", "exec"), start, last)


def lines_of(text: str) -> list[bytes]:
    """The lines of a program as the columns of its syntax tree count them, for `source_of`."""
    return text.encode(errors="surrogatepass").splitlines(keepends=True)


def source_of(node: ast.stmt, lines: list[bytes]) -> str:
    """The text of a statement, in time that does not depend on the length of the program."""
    found = lines[node.lineno - 1 : node.end_lineno]
    found[-1] = found[-1][: node.end_col_offset]
    found[0] = found[0][node.col_offset :]
    return b"".join(found).decode(errors="surrogatepass")


def asserts_of(test: str) -> list[str] | None:
    """The source texts of a test's asserts, and of expected exceptions that count as one, in the order of outcomes.

    Returns:
        None where it is no Python, or where only running it tells how many count: one stands in a block or a function.

    Example:
        >>> asserts_of("x = inc(1)\\nassert x == 2"), asserts_of("for n in range(9): assert inc(n) > n")
        (['assert x == 2'], None)
    """
    try:
        test = test.strip()
        tree, marker = ast.parse(test), _Marker()
        outermost = {*map(id, tree.body)}
        marker.mark(tree, test)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deep nesting
        return None
    return marker.sources if outermost.issuperset(map(id, marker.nodes)) else None


class _Marker(ast.NodeTransformer):
    """Gives every assert a number and lets the space of the tests know how it went."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.nodes: list[ast.stmt] = []
        self.promises: set[int] = set()
        self._unarmed: list[int] = []
        self._how = "noted"  # which exceptions end at an assert: see `run._Judged`
        self._text, self._lines = "", list[bytes]()

    def mark(self, tree: ast.Module, text: str) -> ast.Module:
        if text is not self._text:
            self._text, self._lines = text, lines_of(text)
        body = self._visited(tree.body)
        armed = [self._arm()] if self._unarmed else []
        first = sum(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in body)
        if first and isinstance(body[0], ast.Expr):  # its docstring
            first += 1
        return ast.fix_missing_locations(ast.Module([*body[:first], *armed, *body[first:]], []))

    def visit_Assert(self, node: ast.Assert) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant) and not node.test.value:
            return self._promise(node)
        return self._recorded(node, self._how)

    def visit_Raise(self, node: ast.Raise) -> Any:
        self.generic_visit(node)
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return self._promise(node) if isinstance(error, ast.Name) and error.id == "AssertionError" else node

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        expects = any(_expected_exception(item.context_expr) for item in node.items)
        return self._recorded(node, self._how) if expects else node

    def visit_Try(self, node: ast.Try) -> Any:
        how, start = self._how, len(self._unarmed)
        if node.handlers:
            self._how = "caught" if how == "caught" or any(map(_catches, node.handlers)) else "tried"
        node.body = self._visited(node.body)
        self._how = how
        for handler in node.handlers:
            handler.body = self._visited(handler.body)
        node.orelse, node.finalbody = self._visited(node.orelse), self._visited(node.finalbody)
        return self._armed(node, start)

    def _visited(self, statements: list[ast.stmt]) -> list[Any]:
        tree = ast.Module(statements, [])
        self.generic_visit(tree)
        return tree.body

    def visit_If(self, node: ast.If) -> Any:
        before = len(self._unarmed)
        self.generic_visit(node)
        return self._armed(node, before)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        how, self._how = self._how, "noted"
        self.generic_visit(node)
        self._how = how
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        self.generic_visit(node)
        call = _expected_exception(node.value)
        return self._recorded(node, self._how) if call and len(call.args) > 1 else node

    def _number(self, node: ast.stmt) -> int:
        self.sources.append(source_of(node, self._lines))
        self.nodes.append(node)
        return len(self.sources) - 1

    def _recorded(self, node: ast.stmt, how: str) -> ast.stmt:
        (block,) = ast.parse(f"with {JUDGED}.{how}({self._number(node)}): pass").body
        assert isinstance(block, ast.With)
        block.body = [node]
        return ast.copy_location(block, node)

    def _promise(self, node: ast.stmt) -> list[ast.stmt]:
        number = self._number(node)
        self.promises.add(number)
        self._unarmed.append(number)
        return [*ast.parse(f"{JUDGED}.broken({number})").body, node]

    def _arm(self, start: int = 0) -> ast.stmt:
        numbers, self._unarmed[start:] = self._unarmed[start:], []
        return ast.parse(f"{JUDGED}.armed({numbers})").body[0]

    def _armed(self, node: ast.stmt, start: int) -> Any:
        return [self._arm(start), node] if len(self._unarmed) > start else node


def _expected_exception(expression: ast.expr) -> ast.Call | None:
    """The call in `with pytest.raises(...)` and its like."""
    match expression:
        case ast.Call(func=ast.Name(id="raises" | "assertRaises") | ast.Attribute(attr="raises" | "assertRaises")):
            return expression
    return None


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether an `except` takes an AssertionError, too."""
    return handler.type is None or bool(loaded_names(handler.type) & _CATCHING)

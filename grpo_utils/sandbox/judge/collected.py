"""What pytest would call of some tests, and that nothing of it is left out in silence."""

import ast
from collections.abc import Iterator
from typing import Any

from .names import loaded_names
from .session import Unsupported

Function = ast.FunctionDef | ast.AsyncFunctionDef
HOOKS = (  # of a module, of a class
    frozenset({"setup_module", "teardown_module", "setup_function", "teardown_function"}),
    frozenset({"setup_class", "teardown_class", "teardown_method", "teardown", "__init__"}),
)


def reached(trees: list[ast.Module]) -> set[str]:
    """The names that tests use when they are run from top to bottom: outside of definitions, and what these lead to."""
    inside: dict[str, set[str]] = {}
    names: set[str] = set()
    for statement in (statement for tree in trees for statement in tree.body):
        if isinstance(statement, Function | ast.ClassDef):
            inside[statement.name] = inside.get(statement.name, set()) | loaded_names(statement)
        elif not _marks(statement):
            names |= loaded_names(statement)
    waiting = list(names)
    while waiting:
        new = inside.get(waiting.pop(), set()) - names
        names |= new
        waiting += new
    return names


def _marks(statement: ast.stmt) -> bool:
    """Whether it gives a function an attribute and nothing else, as in `test_f.slow = True`."""
    if not isinstance(statement, ast.Assign):
        return False
    return all(isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) for target in statement.targets)


def calls_of(statement: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """What pytest would call of a definition that `require_collected` let pass: a test, or the methods of a class."""
    if isinstance(statement, ast.FunctionDef):
        if is_test(statement):
            yield f"{statement.name}()"
    elif statement.name.startswith("Test"):
        methods = [part for part in statement.body if isinstance(part, ast.FunctionDef)]
        before = [part for part in methods if part.name in ("setup_method", "setup")]
        for method in filter(is_test, methods):
            first = [f"_test.{one.name}({f'_test.{method.name}' if _needed(one, 1) else ''})" for one in before]
            yield "; ".join([f"_test = {statement.name}()", *first, f"_test.{method.name}()"])


def is_test(node: ast.AST) -> bool:
    return isinstance(node, Function) and node.name.startswith("test")


def require_collected(tree: ast.Module, called: set[str], is_setup: bool = False) -> None:
    """See that whatever pytest would call of these tests is called, by them or by `calls_of`.

    Args:
        tree: of tests, or of their setup.
        called: names that the tests use themselves, from `reached`.
        is_setup: whether nobody calls functions of it but the tests.

    Raises:
        Unsupported: a test is asynchronous or a generator, takes a fixture, stands in a block, in the setup, or in a
            class that has a base, a constructor or a decorator; or the tests have a hook that pytest would call.
    """
    for outer in tree.body:
        for node, depth in _definitions(outer, 0):
            in_class = depth == 1 and isinstance(outer, ast.ClassDef)
            if in_class and not getattr(outer, "name", "").startswith("Test"):
                continue
            if node.name in called and not in_class:
                if isinstance(node, ast.ClassDef):
                    _require_all_called(node, called, tree)
                continue
            why = _why_not(node, in_class, node is outer)
            if not why and is_setup and (is_test(node) or _is_test_class(node)):
                why = "it stands in the setup"
            if why:
                raise Unsupported(f"pytest would call {node.name!r}, and here nobody does: {why}")


def _definitions(node: ast.AST, depth: int) -> Iterator[tuple[Any, int]]:
    """Definitions that pytest would see, and in how many classes each stands. Those in a function it does not see."""
    if isinstance(node, Function | ast.ClassDef):
        yield node, depth
        if isinstance(node, Function):
            return
        depth += 1
    for child in ast.iter_child_nodes(node):
        yield from _definitions(child, depth)


def _is_test_class(node: Any) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.startswith("Test") and any(map(is_test, node.body))


def _require_all_called(node: ast.ClassDef, called: set[str], tree: ast.Module) -> None:
    """Of a class of tests that the tests themselves make instances of, all tests must be asked for."""
    asked = {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
    for method in filter(is_test, node.body if _is_test_class(node) else ()):
        if method.name not in asked:  # type: ignore[attr-defined]
            raise Unsupported(f"the tests use {node.name!r}, and not its {method.name!r}")  # type: ignore[attr-defined]


def _why_not(node: Any, in_class: bool, is_at_top: bool) -> str:
    """Why a function or class is not called as pytest would call it, or "" if it is, or pytest would not either."""
    if node.name in HOOKS[in_class]:
        return "it is a hook"
    if isinstance(node, ast.ClassDef):
        if node.name.startswith("Test") and [base for base in node.bases if ast.unparse(base) != "object"]:
            return "it has a base"
        if not _is_test_class(node):
            return ""
        return "it has a decorator" if node.decorator_list else "" if is_at_top else "it is inside of another one"
    if not is_test(node):
        return ""
    if isinstance(node, ast.AsyncFunctionDef):
        return "it is asynchronous"
    if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node)):
        return "it is a generator"
    if _needed(node, int(in_class)) - _given(node):
        return "it takes a fixture"
    return "" if is_at_top or in_class else "it stands in a block"


def _needed(function: Any, given: int) -> set[str]:
    """The parameters without defaults of a function, but for so many at the beginning."""
    arguments = function.args
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {
        *positional[given : len(positional) - len(arguments.defaults)],
        *(one.arg for one, default in named if default is None),
    }


def _given(function: Any) -> set[str]:
    """The parameters that decorators give: those of `parametrize`, and of a decorator that is not pytest's all."""
    given: set[str] = set()
    for decorator in function.decorator_list:
        text = ast.unparse(decorator)
        if not text.startswith(("pytest.mark.", "mark.")):
            return _needed(function, 0)
        if ".parametrize(" in text or text.startswith("mark.parametrize("):
            first = [*decorator.args[:1], *(one.value for one in decorator.keywords if one.arg == "argnames")]
            given |= {
                name.strip()
                for one in ast.walk(first[0])
                if isinstance(one, ast.Constant)
                for name in str(one.value).split(",")
            }
    return given

"""HumanEval problems as checks.

Their tests are functions, `def check(candidate): ...`, some with loops. The body runs on the trusted side and only its
calls of `candidate` travel. Helper functions that a prompt brings along, such as `poly` in HumanEval/32, are the
test's own: a candidate that redefines them changes nothing.
"""

import ast
from collections.abc import Mapping

from .verdict import Check


def from_human_eval(problem: Mapping[str, str], completion: str, timeout: float | None = None) -> Check:
    """Make a check of one problem and one completion.

    Args:
        problem: a row of the data set: prompt, test and entry_point.
        completion: the text that follows the prompt.
        timeout: seconds, or None for the sandbox's own limit.

    Returns:
        A check whose asserts are those of the problem's `check` function.

    Example:
        >>> problem = {"prompt": "def inc(n):\\n", "entry_point": "inc", "test": "def check(f):\\n    assert f(1) == 2"}
        >>> from_human_eval(problem, "    return n + 1").tests[-1]
        'check(inc)'
    """
    entry_point = problem["entry_point"]
    return Check(
        problem["prompt"] + completion,
        (problem["test"], f"check({entry_point})"),
        names=(entry_point,),
        setup=_helpers(problem["prompt"], entry_point),
        timeout=timeout,
    )


def _helpers(prompt: str, entry_point: str) -> str:
    """The imports and functions of a prompt without the one that is asked for."""
    try:
        tree = ast.parse(prompt + "\n    pass")  # the prompt ends with a docstring, or with a bare `def` line
    except SyntaxError:
        return ""
    own = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == entry_point)]
    return ast.unparse(ast.Module(own, []))

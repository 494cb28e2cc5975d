"""What code says, as a hash: whether what a run holds was made by the code that is here now.

A run is not made again, and a training not refused, because of a comment or a docstring.
"""

import ast
import functools
import hashlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]  # of the project: notebooks, recipes, data


def code_hash(*names: str) -> str:
    """Returns a hash of what the package's Python files say (see `meaning_hash`): of those named, or of all of them."""
    package = ROOT / "grpo_utils"
    digest = hashlib.sha256()
    for name in names or (".",):
        path = package / name
        for source in [path] if path.suffix == ".py" else sorted(path.rglob("*.py")):
            meaning = meaning_hash(source.read_text(encoding="utf-8"))
            digest.update(f"{source.relative_to(package)}\0{meaning}\0".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=256)  # the package's files and a chain's cells, asked for again with every notebook
def meaning_hash(source: str) -> str:
    """Returns the sha256 of a Python text's syntax tree without docstrings, the same for Python 3.11 to 3.13.

    A text that is no Python, such as a cell of a notebook that somebody is still writing, is hashed as it is.
    """
    try:
        text = _written_out(ast.parse(source))
    except (SyntaxError, ValueError):  # the second: a text with a null character
        text = source
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _written_out(node: Any) -> str:
    """A syntax tree as text; unlike with `ast.dump`, a field that only newer versions of Python have says nothing."""
    if isinstance(node, list):
        return f"[{','.join(map(_written_out, node))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)  # which characters `repr` escapes depends on Python's table of Unicode
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        fields["body"] = node.body[ast.get_docstring(node, clean=False) is not None :]
    if isinstance(node, ast.JoinedStr):  # early versions of 3.12 end a nested format with an empty text
        fields["values"] = [one for one in node.values if not (isinstance(one, ast.Constant) and one.value == "")]
    known = (f"{name}={_written_out(value)}" for name, value in fields.items() if value is not None and value != [])
    return f"{type(node).__name__}({','.join(known)})"

"""Python files that a recipe names, with rewards and kinds of tasks of one's own: nothing in the package changes."""

import linecache
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from .errors import UserError, nearest

PACKAGE = "grpo_imports"  # of the modules, so that none stands in the place of a library
sys.modules.setdefault(PACKAGE, types.ModuleType(PACKAGE))
_places: set[str] = set()  # of the files, as tracebacks name them


def import_files(settings: dict[str, Any], more: list[str], folder: Path) -> None:
    """Imports the files that a recipe names, and puts their texts into it: so a run's own recipe needs them no more.

    Args:
        settings: a recipe's. `imports` lists files, or has their texts by name; a key of `rewards` may be FILE.py:NAME.
            What is left is `imports` with texts, and NAME.
        more: files besides those.
        folder: the recipe's; a path that is not absolute is looked for there, then in the current folder.

    Raises:
        UserError: a file is not there, or fails: the sentence has its line.
    """
    named = settings.pop("imports", [])
    kept = named if isinstance(named, dict) else {}
    texts = {name: (f"<{name}>", text) for name, text in zip(kept, _listed([*kept.values()]), strict=True)}
    files = _listed([] if kept else named) + _listed(more)
    weights = settings.get("rewards")
    weights = weights if isinstance(weights, dict) else {}
    own = [str(key).rpartition(":") for key in weights if ".py:" in str(key)]
    if own:
        files += [file for file, _, _ in own]
        settings["rewards"] = {str(key).rpartition(".py:")[2]: weight for key, weight in weights.items()}
        if len(settings["rewards"]) < len(weights):
            raise UserError(f"`rewards` has a name twice: {', '.join(map(str, weights))}.")
    for file in dict.fromkeys(files):
        path = next((path for path in (folder / file, Path(file).absolute()) if path.is_file()), None)
        if path is None:
            raise UserError(f"There is no file {file!r} to import, neither in {folder.absolute()} nor in {Path.cwd()}.")
        where = str(path.resolve())
        if texts.get(path.name, (where,))[0] != where:
            raise UserError(f"Two of the files to import are called {path.name}: rename one.")
        texts[path.name] = where, path.read_text(encoding="utf-8-sig")
    for name, (where, text) in texts.items():
        _run_file(name, where, text)
    for file, _, name in own:
        there = vars(sys.modules[f"{PACKAGE}.{Path(file).stem}"])
        if name not in there:
            raise UserError(f"{file} has no {name!r}{nearest(name, there)}: `rewards` names one of its functions.")
    if texts:
        settings["imports"] = {name: text for name, (_, text) in texts.items()}


def _listed(files: Any) -> list[str]:
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise UserError(f"`imports` is a list of Python files, such as [my_rewards.py], not {files!r}.")
    return list(files)


def place_of(error: BaseException) -> str:
    """Returns the file and line where an exception left a file that a recipe imports, or "" if it came by none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _places]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _run_file(name: str, where: str, text: str) -> None:
    """Makes a module of a text, unless the same one is there; a traceback shows its lines, of a run's recipe too."""
    module = types.ModuleType(f"{PACKAGE}.{Path(name).stem}")
    there = sys.modules.get(module.__name__)
    if there and vars(there)["__source__"] == text:
        return
    vars(module)["__source__"] = text
    _places.add(where)
    sys.modules[module.__name__] = module  # where dataclasses and pickle look for it
    linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
    try:
        exec(compile(text, where, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        del sys.modules[module.__name__]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == where]
        line = (error.lineno or 1) if isinstance(error, SyntaxError) else [1, *lines][-1]
        said = error.msg if isinstance(error, SyntaxError) else error
        raise UserError(f"{where}, line {line}: {type(error).__name__}: {said}") from error

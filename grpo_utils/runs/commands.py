"""What the project's command lines share: a recipe from their options, and errors that are one sentence."""

import argparse
import errno
import functools
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from grpo_utils.sandbox import SandboxUnavailable

from .errors import UserError, nearest
from .folder import RunError, outputs_folder
from .imports import place_of
from .recipe import RecipeError, parse_yaml

GO_ON = "Make room or the folder writable: the same command then goes on where this one stopped."
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--recipe`, `--set` and `--run` to the options of a program that is no command of `grpo`, a benchmark."""
    parser.add_argument("--recipe", help="name or path of a recipe (default: the run's own, else cpu-code)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override: grpo.max_steps=5")
    parser.add_argument("--run", metavar="NAME", help="folder in outputs/ (default: the recipe's name)")


def parameters_of(
    recipe: str | None, settings: Sequence[str], run: str | None, imports: Sequence[Path] = ()
) -> tuple[str, dict[str, Any]]:
    """Returns recipe and overrides that `--recipe`, `--set`, `--run` and `--import` ask for, with absolute paths.

    A run that is named alone has its own recipe; without a name the default is `cpu-code`.

    Raises:
        RecipeError: a `--set` is not of the form KEY=VALUE, or its value is not YAML. A RunError: no run has the name.

    Example:
        >>> parameters_of("cpu-code", ["grpo.max_steps=5"], "short")
        ('cpu-code', {'grpo.max_steps': 5, 'name': 'short'})
    """
    overrides: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise RecipeError(f"--set takes KEY=VALUE, such as grpo.max_steps=5, not {text!r}.")
        if key.startswith("rewards.") and ".py:" in key:
            key = f"rewards.{Path(key.removeprefix('rewards.')).absolute()}"
        overrides[key] = parse_yaml(value, f"The value in --set {text!r}")
    if imports:
        overrides["imports"] = [str(path.absolute()) for path in imports]
    if run:
        overrides["name"] = run
        if not (recipe or settings or imports):
            there = {path.parent.name: path for path in outputs_folder().glob("*/recipe.yaml")}
            if run not in there:
                raise RunError(
                    f"There is no run {run!r}{nearest(run, there)} in {outputs_folder()}: a new one takes --recipe or "
                    "--set beside its name; GRPO_OUTPUTS_DIR names another folder of runs."
                )
            recipe = str(there[run])
    recipe = recipe or "cpu-code"
    return str(Path(recipe).absolute()) if recipe.endswith((".yaml", ".yml")) else recipe, overrides


def run_command(main: Callable[[], None], trains: bool = False) -> None:
    """Runs a command line's `main`. SIGTERM counts as Ctrl-C; one that `trains` says that it ends a step first.

    An error that the user can mend, in a file of the user's too, and a disk that takes no more become one sentence on
    stderr and exit code 1, an interruption 130.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's `&` leave it
            signal.signal(number, functools.partial(_stop, trains))
    try:
        main()
    except (UserError, SandboxUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in DISK:
            raise
        print(f"error: {error.strerror}: {error.filename or 'a file'}. {GO_ON}", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception as error:
        if not (place := place_of(error)):
            raise
        print(f"error: {place}: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this one stopped", file=sys.stderr)
        raise SystemExit(130) from None


def _stop(trains: bool, number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt; a second signal finds the plain reaction of Python or of the system."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    step = "a training step is ended and saved first; " if trains else ""
    print(f"\nstopping: {step}a second Ctrl-C does not wait", file=sys.stderr)
    raise KeyboardInterrupt

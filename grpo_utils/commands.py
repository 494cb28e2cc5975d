"""What the project's command lines share: their options, and errors that are one sentence."""

import argparse
import errno
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from grpo_utils.errors import UserError
from grpo_utils.recipes import Recipe, RecipeError, load, parse
from grpo_utils.sandbox import SandboxUnavailable

GO_ON = "Make room or the folder writable: the same command then goes on where this one stopped."
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that every command shares: `--recipe`, `--set` and `--run`."""
    parser.add_argument("--recipe", default="cpu-code", help="name or path of a recipe (default: cpu-code)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override: grpo.max_steps=5")
    parser.add_argument("--run", metavar="NAME", help="folder in outputs/ (default: the recipe's name)")


def parameters_of(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns the recipe (a path made absolute) and the overrides that a command line asks for.

    Raises:
        RecipeError: a `--set` is not of the form KEY=VALUE, or its value is not YAML.
    """
    overrides: dict[str, Any] = {}
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise RecipeError(f"--set takes KEY=VALUE, such as grpo.max_steps=5, not {text!r}.")
        overrides[key] = parse(value, f"The value in --set {text!r}")
    if arguments.run:
        overrides["name"] = arguments.run
    is_path = arguments.recipe.endswith((".yaml", ".yml"))
    return str(Path(arguments.recipe).absolute()) if is_path else arguments.recipe, overrides


def recipe_of(arguments: argparse.Namespace) -> Recipe:
    """Returns the recipe that a command line asks for, overrides applied.

    Raises:
        RecipeError: a `--set` or the recipe is wrong.
    """
    return load(*parameters_of(arguments))


def run(main: Callable[[], None]) -> None:
    """Runs a command line's `main`. SIGTERM counts as Ctrl-C.

    An error that the user can mend, an interruption and a disk that takes no more become one sentence on stderr and
    exit code 1, or 130 for an interruption.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's `&` leave it
            signal.signal(number, _stop)
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
    except KeyboardInterrupt:
        print("stopped; the same command goes on where this one stopped", file=sys.stderr)
        raise SystemExit(130) from None


def _stop(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt; a second signal finds the plain reaction of Python or of the system."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("\nstopping: a training step is ended and saved first; a second Ctrl-C does not wait", file=sys.stderr)
    raise KeyboardInterrupt

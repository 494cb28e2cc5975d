"""Training in processes of its own: several of them, by `accelerate launch`, or one that imports Unsloth before TRL.

`training.train` comes here when the recipe asks for it, so a notebook starts either in the same way as any other run.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from grpo_utils import runs
from grpo_utils.runs import LAUNCHED, Recipe, RecipeError

LAUNCHERS = runs.ROOT / "recipes" / "launchers"


def is_launched() -> bool:
    """Whether this is one of the processes that train, and not the one that starts them."""
    return LAUNCHED in os.environ or "LOCAL_RANK" in os.environ  # the second is set by accelerate and torchrun


def launch_command(recipe: Recipe, run: Path) -> list[str] | None:
    """Returns the command that trains the recipe in processes of its own, or None when this process can do it.

    The new processes train the very recipe, which is written to the folder for them, and into this folder: neither need
    be those of `outputs/<recipe.name>`.
    """
    if is_launched():
        return None
    if recipe.launcher:
        launcher = ["-m", "accelerate.commands.launch", "--config_file", str(launcher_file(recipe.launcher))]
    elif recipe.model.engine == "unsloth":
        launcher = []
    else:
        return None
    folder = run.absolute()
    settings = folder / "launched.yaml"
    runs.write_file(settings, recipe.to_yaml())
    training = ["-m", "grpo_utils", "train", "--recipe", str(settings), "--folder", str(folder)]
    return [sys.executable, *launcher, *training]


def launcher_file(name: str) -> Path:
    """Returns the file that configures `accelerate launch`: one in `launchers/`, or any path that ends in `.yaml`."""
    path = Path(name).absolute() if name.endswith((".yaml", ".yml")) else LAUNCHERS / f"{name}.yaml"
    if not path.is_file():
        known = sorted(one.stem for one in LAUNCHERS.glob("*.yaml"))
        raise RecipeError(f"There is no launcher {name!r}{runs.nearest(name, known)}; launchers: {', '.join(known)}.")
    return path


def count_processes(recipe: Recipe) -> int:
    """Returns in how many processes a recipe trains; where a launcher leaves that open, it counts as one."""
    if is_launched():
        return int(os.environ.get("WORLD_SIZE", "1"))
    path = launcher_file(recipe.launcher) if recipe.launcher else None
    settings = runs.parse_yaml(path.read_bytes(), str(path)) if path else None
    number = settings.get("num_processes") if isinstance(settings, dict) else None
    return number if isinstance(number, int) and number > 0 else 1


def as_one_process(recipe: Recipe) -> Recipe:
    """Returns a recipe with the batches of all its processes together: TRL checks them, and knows only its own."""
    others = 1 if is_launched() else count_processes(recipe)
    batch = recipe.grpo["per_device_train_batch_size"] * others
    return recipe.model_copy(update={"grpo": {**recipe.grpo, "per_device_train_batch_size": batch}})


def run_launched(command: list[str]) -> None:
    """Runs a command and prints what it prints, as a notebook does not show a child's own output; raises RunError."""
    # when it is stopped, accelerate's launcher would give a step at hand 30 seconds before it kills
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "86400"} | os.environ | {LAUNCHED: "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    # in a session of its own, so that a signal comes once, from here
    own: dict[str, Any] = {"pass_fds": runs.lock_descriptors(), "start_new_session": True}
    with subprocess.Popen(command, env=environment, **pipes, **own) as process:
        try:
            _show(process)
        except KeyboardInterrupt:
            process.terminate()
            try:
                _show(process)  # until the step is saved
            except KeyboardInterrupt:  # a second one does not wait
                for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
                        one.kill()
            raise
    if process.returncode:
        raise runs.RunError(f"Training ended with exit code {process.returncode}; the last lines above say why.")


def _show(process: "subprocess.Popen[str]") -> None:
    for line in process.stdout or ():
        print(line, end="", flush=True)

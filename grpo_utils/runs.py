"""The folder of a run: where everything that a run makes is kept, and what made it.

Notebooks hand over by these files alone, so that each can be run by itself once its inputs exist.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from grpo_utils.errors import UserError
from grpo_utils.recipes import Recipe
from grpo_utils.tasks import ROOT

WARM_START = "warm-start"
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "numpy", "scipy")


class RunError(UserError):
    """A run that cannot go on."""


def outputs() -> Path:
    """Returns the folder that holds all runs: `outputs/`, or what `GRPO_OUTPUTS_DIR` names."""
    return Path(os.environ.get("GRPO_OUTPUTS_DIR") or ROOT / "outputs").absolute()


def start(recipe: Recipe) -> Path:
    """Returns the folder of the recipe's run, `outputs/<recipe.name>`, made if need be.

    A new folder gets `recipe.yaml` and `environment.json`.

    Raises:
        RunError: the recipe needs a GPU and there is none, or the folder cannot be written or was made with another
            recipe.
    """
    need_gpu(recipe)
    run = outputs() / recipe.name
    settings = run / "recipe.yaml"
    try:
        run.mkdir(parents=True, exist_ok=True)
        if not settings.is_file():
            write(run / "environment.json", json.dumps(environment(recipe), indent=2) + "\n")
            write(settings, recipe.to_yaml())
    except OSError as error:
        raise RunError(
            f"{run} cannot be written ({error.strerror}): make it writable or name another folder in GRPO_OUTPUTS_DIR."
        ) from error
    if settings.read_text(encoding="utf-8") != recipe.to_yaml():
        raise RunError(
            f"{run} holds a run with other settings: give this one a name of its own (--run NAME, or OVERRIDES "
            '{"name": "..."}), or start it over with --force.'
        )
    return run


def need_gpu(recipe: Recipe) -> None:
    """Does nothing if this machine has the GPU that the recipe needs, or the recipe needs none.

    Raises:
        RunError: there is no GPU; the text names the recipe for machines without one.
    """
    if recipe.without_gpu is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise RunError(
            f"Recipe {recipe.name!r} needs a GPU, and PyTorch {torch.__version__} finds none here: without one, run "
            f"the recipe {recipe.without_gpu!r}."
        )


def need(path: Path, notebook: str) -> Path:
    """Returns `path` if it is there.

    Raises:
        RunError: it is not; the text names the notebook that writes it.
    """
    if not path.exists():
        raise RunError(f"{path.name} is not in {path.parent}: run notebook {notebook} first.")
    return path


def checkpoints(run: Path) -> list[Path]:
    """Returns the complete checkpoints of a run in the order of their steps.

    The trainer writes `trainer_state.json` last: a folder without it was cut short by a kill.
    """
    found = (run / "checkpoints").glob("checkpoint-*/trainer_state.json")
    return sorted((state.parent for state in found), key=lambda folder: int(folder.name.partition("-")[2]))


def adapters(run: Path) -> list[Path]:
    """Returns the folders of all finished adapters: the warm start's, if there is one, then the checkpoints."""
    warm_start = run / "checkpoints" / WARM_START
    return [*([warm_start] if warm_start.is_dir() else []), *checkpoints(run)]


def write(path: Path, text: str) -> None:
    """Writes a text file whole or not at all: a killed process leaves the old file, never half of a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def code_hash(*names: str) -> str:
    """Returns a hash of the package's sources: of the modules and folders named, or of all of them."""
    package = ROOT / "grpo_utils"
    digest = hashlib.sha256()
    for name in names or (".",):
        path = package / name
        for source in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def write_manifest(run: Path) -> None:
    """Writes `manifest.json`: the sha256 of every table and figure of the run."""
    files = [run / "results.csv", run / "results.md", *sorted((run / "figures").glob("*"))]
    hashes = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    relative = {str(file.relative_to(run)): digest for file, digest in hashes.items()}
    write(run / "manifest.json", json.dumps(relative, indent=2) + "\n")


def environment(recipe: Recipe) -> dict[str, Any]:
    """Returns what a run depends on besides its recipe: versions, hardware, commit and seed."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        commit = head.stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        commit = None
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "commit": commit,
        "seed": recipe.seed,
    }

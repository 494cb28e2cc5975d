"""Trainings beside that of a run: the same recipe with other rewards, each in a folder of its own."""

import inspect
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_utils import runs, tasks
from grpo_utils.runs import Recipe

ALONE: dict[str, Any] = {  # in this process, which alone knows a notebook's rewards; Unsloth has no warm start
    "model.engine": "transformers",
    "launcher": None,
    "teacher": None,
    "grpo.use_vllm": False,
}


def half_batch(recipe: Recipe) -> int:
    """Returns half the recipe's `gradient_accumulation_steps`, or all where half a batch has no whole groups."""
    own, size = recipe.grpo.get("gradient_accumulation_steps", 1), recipe.grpo["num_generations"]
    is_even = own % 2 == 0 and recipe.grpo["per_device_train_batch_size"] * own // 2 % size == 0
    return own // 2 if is_even else own


def begin_variant(folder: Path, recipe: Recipe, start: Path, graders: Sequence[Callable[..., Any]] = ()) -> Path:
    """Returns the folder of a training, emptied if it was made with another recipe, other data, code or graders.

    Args:
        folder: of the training.
        recipe: what it trains.
        start: adapters to begin with, copied to the training's checkpoints where both are still to come.
        graders: a notebook's functions that decide what it earns.
    """
    sources = map(inspect.getsource, graders)
    made_with = "\n".join([recipe.to_yaml(), tasks.data_fingerprint(recipe), runs.code_hash(), *sources])
    path = folder / "made_with.txt"
    if path.is_file() and path.read_text(encoding="utf-8") != made_with:
        runs.clear_run(folder)
    runs.write_file(path, made_with)
    if start.is_dir() and not (folder / "checkpoints").is_dir():
        shutil.copytree(start, folder / "checkpoints")
    return folder

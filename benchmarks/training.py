"""How fast a GRPO step is on a CPU: `python benchmarks/training.py`, about fifteen minutes on an idle machine.

The same steps of the default recipe from the same warm start, side by side in one run: as `grpo train` takes them, in
the other of bfloat16 and float32 too, and as TRL's own trainer does with its defaults (its generation, its batches, a
model as transformers loads it). With `--against FOLDER`, also as another checkout of this repository takes them. The
sides take turns, each in a process of its own; the first step of a process is not counted. Writes
`benchmarks/results/training.md`.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from generation import commit_of

RESULTS = Path(__file__).parent / "results" / "training.md"
HERE = Path(__file__).parents[1]


def load(folder: Path, steps: int, model: str | None, dtype: str) -> Any:
    """The recipe: the default's, on all of its tasks, since a filter would need their pass rates."""
    from grpo_utils import runs

    settings: dict[str, Any] = {"name": "steps", "dataset.pass_rate": None, "grpo.max_steps": steps}
    settings |= {"grpo.save_steps": steps, "model.dtype": dtype} | ({"model.name": model} if model else {})
    os.environ["GRPO_OUTPUTS_DIR"] = str(folder)
    recipe = runs.load_recipe("cpu-code", settings)
    if model:  # the upper half of its layers, as in the recipe
        from grpo_utils import policy

        layers = policy.load_model_config(recipe.model).num_hidden_layers
        recipe = runs.load_recipe("cpu-code", settings | {"lora.layers_to_transform": list(range(layers // 2, layers))})
    return recipe


def take_steps(side: str, folder: Path, steps: int, model: str | None, dtype: str) -> dict[str, Any]:
    """Seconds and mean completion length of each step but the first, and the peak memory in MB."""
    from grpo_utils import runs, training

    recipe = load(folder, steps, model, dtype)
    run = runs.start_run(recipe)
    training.grpo._refuse_other_origin = lambda *_: None  # the warm start is of one checkout, for all
    entries: list[dict[str, Any]] = []
    if side == "warm":
        training.warm_start(recipe, run)
    elif side == "trl":
        entries = steps_of_trl(recipe, run)
    else:
        training.train(recipe, run, lambda entry: entries.append(dict(entry)))
    steps_taken = [entry for entry in entries if "step_time" in entry][1:]
    return {
        "seconds": [entry["step_time"] for entry in steps_taken],
        "tokens": [entry["completions/mean_length"] for entry in steps_taken],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def steps_of_trl(recipe: Any, run: Path) -> list[dict[str, Any]]:
    """What TRL logs of its own trainer: generation, batches and attention are its and transformers' defaults."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from trl.trainer.grpo_trainer import GRPOTrainer

    from grpo_utils import policy, rewards, runs, training

    plain = AutoModelForCausalLM.from_pretrained(
        policy.resolve_model(recipe.model.name), dtype=getattr(torch, recipe.model.dtype)
    )
    trainer = GRPOTrainer(
        model=PeftModel.from_pretrained(plain, run / "checkpoints" / runs.WARM_START, is_trainable=True),
        processing_class=policy.load_tokenizer(recipe.model),
        args=training.grpo_config(recipe, run),
        train_dataset=training.training_set(recipe, run),
        reward_funcs=rewards.recipe_rewards(recipe)[0],  # type: ignore[arg-type]
    )
    trainer.train()
    return trainer.state.log_history


def measure(side: str, start: Path, steps: int, model: str | None, dtype: str, code: Path) -> dict[str, Any]:
    """What `take_steps` finds in a process of its own with the package of a checkout, after the warm start in `start`.

    The checkpoints lie in a run of another recipe there, if anything of a recipe differs: they alone are copied.
    """
    command = [sys.executable, __file__, "--side", side, "--steps", str(steps), "--dtype", dtype]
    command += ["--model", model] if model else []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(start / "steps" / "checkpoints", Path(folder) / "steps" / "checkpoints")
        output = subprocess.check_output(
            [*command, "--folder", folder], env=os.environ | {"PYTHONPATH": str(code)}, text=True
        )
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Compares, prints the table and writes it."""
    from grpo_utils import runs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--model", help="a model's folder, in the place of the recipe's")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        print(json.dumps(take_steps(asked.side, asked.folder, asked.steps, asked.model, asked.dtype)))
        return
    held = runs.load_recipe("cpu-code").model.dtype
    other = "float32" if held == "bfloat16" else "bfloat16"
    sides: dict[str, tuple[str, str, Path]] = {
        f"grpo train, {held}": ("ours", held, HERE),
        f"grpo train, {other}": ("ours", other, HERE),
        f"TRL's own trainer, {held}": ("trl", held, HERE),
    }
    if asked.against:
        sides[commit_of(asked.against)] = ("ours", held, asked.against.resolve())
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "tokens": [], "peak": []} for name in sides}
    with tempfile.TemporaryDirectory() as start:
        command = [sys.executable, __file__, "--side", "warm", "--folder", start, "--steps", str(asked.steps)]
        subprocess.run(
            command + (["--model", asked.model] if asked.model else []), check=True, stdout=subprocess.DEVNULL
        )
        for _ in range(2):
            for name, (side, dtype, code) in sides.items():
                for key, value in measure(side, Path(start), asked.steps, asked.model, dtype, code).items():
                    found[name][key] += value if isinstance(value, list) else [value]
                print(name, found[name], flush=True)
    lines = [
        f"`python benchmarks/training.py{' --model FOLDER' if asked.model else ''} --steps {asked.steps}`: a step of "
        f"recipe cpu-code, 32 completions of at most 72 tokens{f', {Path(asked.model).name}' if asked.model else ''}; "
        "medians.",
        "",
        "| trainer | seconds a step | tokens a completion | peak memory | times the first |",
        "|---|---|---|---|---|",
    ]
    first = median(next(iter(found.values()))["seconds"])
    for name, one in found.items():
        seconds = median(one["seconds"])
        tokens, peak = median(one["tokens"]), max(one["peak"])
        lines.append(f"| {name} | {seconds:.1f} | {tokens:.0f} | {peak:.0f} MB | {seconds / first:.2f} |")
    name = f"training-{Path(asked.model).name}" if asked.model else "training"
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS.with_stem(name), "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()

"""GRPO steps on a GPU in seconds, tokens and gigabytes: `python benchmarks/gpu.py`, about ten minutes on one card.

A model of Llama-3-8B's shape with random weights, so that nothing has to be downloaded, goes through `training.train`
with groups of 8 completions of 512 tokens: with TRL's defaults, with the settings of `llama3-8b-mbpp-a100`, with its
weights in NF4 where bitsandbytes is installed, and with vLLM where that is. Every variant has a process of its own and
writes completions of full length, so all do the same work. The estimate of `grpo memory` stands beside the
measured peak. Writes `benchmarks/results/gpu.md`. `--shape tiny` runs the same code on a CPU and writes nothing.

What it cannot show: learning. Random weights earn no reward; the time of a step does not depend on that.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_utils import policy, runs, training
from grpo_utils.runs import commands

RESULTS = Path(__file__).parent / "results"
SHAPES: dict[str, Any] = {
    "llama3-8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    },
    "tiny": {
        "vocab_size": 49152, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    },
}  # fmt: skip
VARIANTS: dict[str, str | None] = {  # and the package that each needs
    "TRL's defaults": None,
    "recipe": None,
    "recipe, NF4": "bitsandbytes",
    "recipe, vLLM": "vllm",
}
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "vllm")


def make_model(shape: str, folder: Path) -> None:
    """Writes a model with random weights and a tokenizer to a folder."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = LlamaConfig(**SHAPES[shape], bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
        model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    policy.load_tokenizer(runs.load_recipe("smoke-code").model).save_pretrained(folder)


def recipe_of(variant: str, model: str, length: int, steps: int) -> runs.Recipe:
    """Returns the recipe of a variant: the A100's, on the tasks that ship, with completions of `length` tokens.

    A model with random weights writes its end token once in as many tokens as it has, so completions reach the limit.
    """
    settings = dict(runs.load_recipe("llama3-8b-mbpp-a100").grpo)
    settings |= {"max_steps": steps, "max_completion_length": length, "save_steps": steps, "use_vllm": False}
    if not torch.cuda.is_available():
        settings["optim"] = "adamw_torch"  # the paged optimiser is bitsandbytes', on a GPU
    if variant == "TRL's defaults":
        settings = {key: settings[key] for key in (*runs.NEEDED["grpo"], "save_steps", "logging_steps")}
    if variant == "recipe, vLLM":
        settings |= {"use_vllm": True}
    changes = {
        "name": "benchmark",
        "without_gpu": None,
        "dataset.name": "starter",
        "grpo": settings,
        "model.name": model,
    }
    return runs.load_recipe("llama3-8b-mbpp-a100", changes | {"model.load_in_4bit": variant == "recipe, NF4"})


def measure(recipe: runs.Recipe) -> dict[str, Any]:
    """Trains, and returns the median seconds of a step after the first, the peak of memory and its estimate, in GB."""
    run = runs.start_run(recipe)
    training.train(recipe, run)
    seconds = [entry["step_time"] for entry in runs.read_log(run / "training_log.jsonl") if "step_time" in entry]
    cuda = torch.cuda.is_available()
    card = torch.cuda.get_device_properties(0).total_memory if cuda else 0
    needed = training.estimate_memory(recipe, policy.load_model_config(recipe.model), card)
    return {
        "seconds": median(seconds[1:]),
        "peak": torch.cuda.max_memory_reserved() / training.GB if cuda else None,
        "estimate": (needed.peak - training.CONTEXT) / training.GB,  # PyTorch does not count CUDA's context
    }


def row(variant: str, found: dict[str, Any], length: int) -> str:
    """Returns one row of the table."""
    peak = "" if found["peak"] is None else f"{found['peak']:.1f}"
    rate = 8 * length / found["seconds"]
    return f"| {variant} | {found['seconds']:.2f} | {rate:.0f} | {peak} | {found['estimate']:.1f} |"


def main() -> None:
    """Measures every variant that the installed packages allow, and prints one row for each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama3-8b")
    parser.add_argument("--length", type=int, default=512, help="tokens per completion")
    parser.add_argument("--steps", type=int, default=4, help="steps per variant, the first of which does not count")
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        variant, model = arguments.child
        print(json.dumps(measure(recipe_of(variant, model, arguments.length, arguments.steps))))
        return
    if arguments.shape != "tiny" and not torch.cuda.is_available():
        raise runs.RunError("There is no GPU here: --shape tiny --length 16 runs the same code on a CPU.")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make_model(arguments.shape, Path(folder) / "model")
        torch.cuda.empty_cache()
        for variant, package in VARIANTS.items():
            if package and (importlib.util.find_spec(package) is None or not torch.cuda.is_available()):
                continue
            command = [sys.executable, __file__, "--child", variant, f"{folder}/model"]
            command += ["--length", str(arguments.length), "--steps", str(arguments.steps)]
            outputs = {"GRPO_OUTPUTS_DIR": f"{folder}/{len(rows)}"}
            done = subprocess.run(command, env=os.environ | outputs, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(row(variant, json.loads(done.stdout.splitlines()[-1]), arguments.length))
            print(rows[-1], flush=True)
    if arguments.shape != "tiny":
        runs.write_file(RESULTS / "gpu.md", report(rows, arguments.length))


def report(rows: list[str], length: int) -> str:
    """Returns the table with what it was measured on."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if importlib.util.find_spec(name)]
    lines = [
        f"Llama-3-8B's shape with random weights, LoRA of rank 16, groups of 8 completions of {length} tokens, one "
        f"group a step. `python benchmarks/gpu.py`, {date.today()}, {torch.cuda.get_device_name(0)}, Python "
        f"{platform.python_version()}, {', '.join(versions)}.",
        "",
        "| variant | seconds a step | completion tokens a second | peak reserved, GB | estimated, GB |",
        "|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    commands.run_command(main)

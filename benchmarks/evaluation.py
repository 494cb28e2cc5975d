"""How fast is a sweep over checkpoints? `python benchmarks/evaluation.py`, about ten minutes on two cores.

Two comparisons, each side by side in one run, greedy, with the same tasks, tokens and batch size on both sides:

- six checkpoints with two prompts by `evaluation.sweep`, which loads the base once, against a process per checkpoint
  that loads base and adapter with transformers and PEFT and calls plain `generate` on batches in file order;
- prompts sorted by length, as `policy.generate_completions` does it, against batches in file order.

The checkpoints are the recipe's warm start with a little noise, a different one each: policies that end their answers,
as those of a training do. Everything else is the recipe's own, the limit of tokens too.
Writes `benchmarks/results/evaluation.md`.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from grpo_utils import evaluation, policy, runs, tasks, training
from grpo_utils.policy import Policy, Sampled
from grpo_utils.runs import Recipe, commands
from grpo_utils.sandbox import Sandbox

RESULTS = Path(__file__).parent / "results" / "evaluation.md"
SHOTS = (0, 3)
BATCH = 8  # where the order of prompts is compared, so that there are several batches


def settings(arguments: argparse.Namespace) -> Recipe:
    """Returns the recipe of both sides: validation tasks with two prompts, greedy, and sampled once in training's."""
    name, overrides = commands.parameters_of(arguments.recipe, arguments.set, arguments.run)
    shots = overrides.get("prompt.shots", runs.load_recipe(name).prompt.shots)
    samples = {"train": {shots: 1}, "validation": dict.fromkeys(SHOTS, 0) | {shots: 1}, "test": {shots: 1}}
    only = {"name": "evaluation-benchmark", "evaluation.samples": samples, "dataset.pass_rate": None}
    return runs.load_recipe(name, overrides | only | {"dataset.limits": {"validation": arguments.tasks}})


def make_adapters(recipe: Recipe, run: Path, count: int) -> list[str]:
    """Writes `count` different adapters to `run/checkpoints`, as a training would, and returns their names."""
    start = training.warm_start(recipe, run)
    base = policy.load_policy(recipe).model
    names = [f"checkpoint-{i + 1}" for i in range(count)]
    for i, name in enumerate(names):
        adapted = PeftModel.from_pretrained(base, start) if start else get_peft_model(base, LoraConfig(**recipe.lora))
        torch.manual_seed(i)
        for parameter_name, parameter in adapted.named_parameters():
            if "lora_B" in parameter_name:
                parameter.data += 1e-4 * torch.randn_like(parameter)
        adapted.save_pretrained(str(run / "checkpoints" / name))
        base = adapted.unload()
    return names


# ------------------------------------------------------------------------------------------- sweep against processes


def plain(recipe: Recipe, run: Path, checkpoint: str) -> None:
    """Evaluates one checkpoint as a plain script does: load, adapter, `generate` in file order, score."""
    tokenizer = policy.load_tokenizer(recipe.model)
    base = AutoModelForCausalLM.from_pretrained(
        policy.resolve_model(recipe.model.name), dtype=getattr(torch, recipe.model.dtype)
    )
    current = Policy(PeftModel.from_pretrained(base, run / "checkpoints" / checkpoint).eval(), tokenizer)
    batch, size = tasks.load_split(recipe, "validation"), recipe.evaluation.batch_size
    found: dict[int, list[str]] = {}
    with Sandbox() as sandbox, torch.inference_mode():
        for shots in SHOTS:
            chats = [tasks.prompt_messages(task, recipe.prompt, tasks.worked_examples(recipe, shots)) for task in batch]
            chunks = [chats[first : first + size] for first in range(0, len(chats), size)]
            completions = [one for chunk in chunks for one in _generate(current, chunk, recipe)]
            evaluation.score_completions(batch, completions, recipe, sandbox)
            found[shots] = [one.text for one in completions]
    runs.write_file(run / "plain" / f"{checkpoint}.json", json.dumps(found))


def _generate(current: Policy, chats: Sequence[list[tasks.Message]], recipe: Recipe) -> list[Sampled]:
    inputs = current.tokenizer.apply_chat_template(
        list(chats), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    output = current.model.generate(**inputs, do_sample=False, max_new_tokens=recipe.evaluation.max_new_tokens)
    rows = output[:, inputs["input_ids"].shape[1] :].tolist()
    texts = current.tokenizer.batch_decode(rows, skip_special_tokens=True)
    ended = [current.tokenizer.eos_token_id in row for row in rows]
    return [Sampled(text, row, not end) for text, row, end in zip(texts, rows, ended, strict=True)]


def compare_sweeps(recipe: Recipe, run: Path, checkpoints: list[str], arguments: list[str]) -> list[str]:
    """Times both sides and returns rows of the table; `arguments` start this script with the same settings."""
    began = time.perf_counter()
    evaluation.sweep(recipe, run, checkpoints, "validation")
    ours = time.perf_counter() - began
    began = time.perf_counter()
    for checkpoint in checkpoints:
        command = [sys.executable, __file__, *arguments, "--plain", checkpoint]
        subprocess.run(command, check=True)
    theirs = time.perf_counter() - began
    same = [
        mine["completions"][0]["text"] == text
        for checkpoint in checkpoints
        for shots, texts in json.loads((run / "plain" / f"{checkpoint}.json").read_text(encoding="utf-8")).items()
        for mine, text in zip(_record(run, checkpoint, int(shots)), texts, strict=True)
    ]
    label = f"{len(checkpoints)} checkpoints x {len(SHOTS)} prompts, {len(same)} completions"
    row = f"| {label} | {ours:.0f} s | {theirs:.0f} s, a process per checkpoint | {theirs / ours:.1f} |"
    return [row, f"| of these word for word the same | {sum(same)} of {len(same)} | | |"]


def _record(run: Path, checkpoint: str, shots: int) -> list[dict]:
    path = runs.record_path(run, checkpoint, "validation", shots)
    return json.loads(path.read_text(encoding="utf-8"))["tasks"]


# -------------------------------------------------------------------------------------------------- order of prompts


def compare_orders(recipe: Recipe, repeats: int = 2) -> list[str]:
    """Times batches of prompts of similar length against batches in file order, and returns rows of the table."""
    loaded, rows = policy.load_policy(recipe), []
    for name in (recipe.dataset.name, "human-eval"):
        batch = tasks.load_tasks(name, "test")[: len(tasks.load_split(recipe, "validation"))]
        chats = [tasks.prompt_messages(task, recipe.prompt, []) for task in batch]
        lengths = [len(ids) for ids in policy.prompt_ids(loaded.tokenizer, chats)]
        by_length = [chats[i] for i in sorted(range(len(chats)), key=lengths.__getitem__)]
        taken: list[list[float]] = [[], []]
        for _ in range(repeats):
            for seconds, ordered in zip(taken, (by_length, chats), strict=True):
                began = time.perf_counter()
                for first in range(0, len(ordered), BATCH):  # a call per batch: `generate` would sort them all
                    _write(loaded, ordered[first : first + BATCH], recipe)
                seconds.append(time.perf_counter() - began)
        ours, theirs = map(min, taken)
        label = (
            f"{len(chats)} prompts of {name}, {min(lengths)} to {max(lengths)} tokens, batches of {BATCH}, by length"
        )
        rows.append(f"| {label} | {ours:.1f} s | {theirs:.1f} s, in file order | {theirs / ours:.2f} |")
    return rows


def _write(loaded: Policy, chats: list[list[tasks.Message]], recipe: Recipe) -> None:
    limit = recipe.evaluation.max_new_tokens
    policy.generate_completions(
        loaded, chats, [None] * len(chats), temperature=1.0, max_new_tokens=limit, batch_size=BATCH
    )


def main() -> None:
    """Compares, prints the table and writes it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    commands.add_recipe_options(parser)
    parser.add_argument("--checkpoints", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--plain", help=argparse.SUPPRESS)  # the checkpoint of a process of the other side
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.run:
        parser.error("--run: this benchmark has a folder of its own")
    recipe = settings(arguments)
    run = runs.outputs_folder() / recipe.name
    if arguments.plain:
        plain(recipe, run, arguments.plain)
        return
    shutil.rmtree(run, ignore_errors=True)
    runs.start_run(recipe)
    checkpoints = make_adapters(recipe, run, arguments.checkpoints)
    again = ["--recipe", arguments.recipe or "cpu-code", "--tasks", str(arguments.tasks)]
    again += [f"--set={value}" for value in arguments.set]
    lines = [
        f"`python benchmarks/evaluation.py --tasks {arguments.tasks}`: {recipe.model.name}, greedy, "
        f"at most {recipe.evaluation.max_new_tokens} new tokens.",
        "",
        "| compared | ours | the other | other / ours |",
        "|---|---|---|---|",
        *compare_sweeps(recipe, run, checkpoints, again),
        *compare_orders(recipe),
    ]
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(arguments.output, "\n".join(lines) + "\n")
    print(*lines, sep="\n")
    shutil.rmtree(run)


if __name__ == "__main__":
    commands.run_command(main)

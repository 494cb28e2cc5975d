"""How fast the policy writes on a CPU: `python benchmarks/generation.py`, about fifteen minutes on an idle machine.

Side by side in one run, as ratios: our loading and generation, with an adapter of the recipe's shape, against
transformers' and PEFT's own for the same prompts and numbers of tokens, with the memory that each needs; against ours
in the other of bfloat16 and float32; and, with `--against FOLDER`, against another checkout of this repository; then
all against what the processor could do, measured on the spot: the products of the model's own shapes, alone, and its
keys and values once through memory. Last, a decoding step with a short and with OpenMP's default spin,
on an idle machine and with one core kept busy by another program. `--model FOLDER` asks another model. Writes
`benchmarks/results/generation.md`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
RESULTS = HERE / "benchmarks" / "results" / "generation.md"
BATCH, TOKENS = 64, 96


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Median of `repeats` runs, after one to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def in_own_process(*arguments: str, code: Path = HERE, **variables: str) -> list[float]:
    """Numbers that this script prints when it is called with `arguments`, with the package of a checkout."""
    command = [sys.executable, __file__, *arguments]
    environment = os.environ | {"PYTHONPATH": str(code)} | variables
    return json.loads(subprocess.check_output(command, env=environment, text=True).splitlines()[-1])


def commit_of(folder: Path) -> str:
    """Which commit a checkout is at."""
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "--short", "HEAD"], text=True).strip()


# ------------------------------------------------------------------------------------------------- ours against plain


def recipe_of(model: str, dtype: str = "auto") -> Any:
    """The default recipe with a model in it."""
    from grpo_utils import runs

    settings = {"model.dtype": dtype}
    if model:  # an adapter in all of its layers
        settings |= {"model.name": model, "lora.layers_to_transform": None}
    return runs.load_recipe("cpu-code", settings)


def chats_of(recipe: Any, shots: int) -> list[Any]:
    """A prompt for each of `BATCH` different tasks."""
    from grpo_utils import tasks

    shown = tasks.worked_examples(recipe, shots)
    return [tasks.prompt_messages(task, recipe.prompt, shown) for task in tasks.load_tasks("starter", "train")[:BATCH]]


def write(side: str, model: str, dtype: str, shots: int) -> list[float]:
    """Seconds that one side takes for `BATCH` completions, and its peak in MB."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from grpo_utils import policy

    recipe = recipe_of(model, dtype)
    if side == "ours":
        loaded = policy.load_policy(recipe)
    else:
        plain = AutoModelForCausalLM.from_pretrained(
            policy.resolve_model(recipe.model.name), dtype=getattr(torch, recipe.model.dtype)
        )
        loaded = policy.Policy(plain.eval(), policy.load_tokenizer(recipe.model))
    torch.manual_seed(0)
    adapted = get_peft_model(loaded.model, LoraConfig(task_type="CAUSAL_LM", **recipe.lora))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=1e-3)
    loaded = policy.Policy(adapted.eval(), loaded.tokenizer)
    policy.decoding._end_ids = lambda _: [loaded.model.config.vocab_size]  # nothing ends before TOKENS tokens
    loaded.model.generation_config.eos_token_id = None
    chats = chats_of(recipe, shots)
    _write(side, loaded, chats, 4)
    began = time.perf_counter()
    _write(side, loaded, chats, TOKENS)
    return [time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def _write(side: str, loaded: Any, chats: list[Any], tokens: int) -> None:
    from grpo_utils import policy

    if side == "ours":
        settings: Any = {"temperature": 1.0, "max_new_tokens": tokens, "batch_size": BATCH}
        policy.generate_completions(loaded, chats, list(range(BATCH)), **settings)
        return
    inputs = loaded.tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    loaded.model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=tokens, pad_token_id=0)


# ------------------------------------------------------------------------------------------------- the machine's limit


def limit(model: str, shots: int) -> list[float]:
    """Seconds that the machine needs for the products and the memory of the same completions, and nothing else.

    Every product of the model is timed alone, with weights as oneDNN wants them and not in the cache; each prompt's own
    tokens are read 1,024 at once; what attention reads passes once at the speed of memory.
    """
    import torch

    from grpo_utils import policy

    recipe = recipe_of(model)
    loaded = policy.load_policy(recipe)
    ids = policy.prompt_ids(loaded.tokenizer, chats_of(recipe, shots))
    shared = next(i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1)
    own = sum(len(one) - shared for one in ids)
    linear = [module for module in loaded.model.modules() if type(module) is torch.nn.Linear]
    shapes = Counter((one.in_features, one.out_features) for one in linear)
    with torch.inference_mode():
        dtype = loaded.model.dtype
        decoding = sum(number * _product(dtype, BATCH, *shape) for shape, number in shapes.items())
        head = (loaded.model.config.hidden_size, loaded.model.config.vocab_size)
        reading = (
            sum(number * _product(dtype, 1024, *shape) for shape, number in shapes.items() if shape != head) / 1024
        )
        config = loaded.model.config
        per_token = 2 * dtype.itemsize * config.num_hidden_layers * config.num_key_value_heads
        per_token *= getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        block = torch.zeros(64 << 20)
        bandwidth = block.numel() * block.itemsize / seconds(block.sum)
        read = sum(TOKENS * (len(one) - shared + TOKENS / 2) for one in ids) * per_token / bandwidth
    return [TOKENS * decoding + own * reading + read]


def _product(dtype: Any, rows: int, inner: int, outer: int) -> float:
    """Seconds of one product, with a different weight each time."""
    import torch

    inputs = torch.randn(rows, inner).to(dtype)
    copies = max(2, min(40, (64 << 20) // (inner * outer * dtype.itemsize)))
    weights = [torch.ops.mkldnn._reorder_linear_weight(torch.randn(outer, inner).to(dtype)) for _ in range(copies)]

    def once() -> None:
        for weight in weights:
            torch.ops.mkldnn._linear_pointwise(inputs, weight, None, "none", [], "")

    return seconds(once, repeats=7) / copies


def compare_sides(model: str, against: Path | None, every: Sequence[int]) -> list[str]:
    """Rows of the table: the better of two rounds, in which the sides take turns."""
    held = recipe_of(model).model.dtype
    other = "float32" if held == "bfloat16" else "bfloat16"
    sides = {
        "ours": ("ours", held, HERE),
        f"ours in {other}": ("ours", other, HERE),
        "plain transformers and PEFT": ("plain", held, HERE),
    }
    if against:
        sides[commit_of(against)] = ("ours", held, against.resolve())
    rows = []
    for shots in every:
        taken: dict[str, list[list[float]]] = {name: [] for name in sides}
        for _ in range(2):
            for name, (side, dtype, code) in sides.items():
                taken[name].append(in_own_process("write", side, model, dtype, str(shots), code=code))
                print(shots, name, taken[name][-1], flush=True)
            taken.setdefault("the products and the memory alone", []).append(
                [*in_own_process("limit", model, str(shots)), 0.0]
            )
        best = {name: min(one for one, _ in pairs) for name, pairs in taken.items()}
        for name, one in best.items():
            peak = max(peak for _, peak in taken[name])
            rows.append(
                f"| {shots}-shot | {name} | {one:.1f} s | {BATCH * TOKENS / one:.0f} | {one / best['ours']:.2f} "
                f"| {f'{peak:.0f} MB' if peak else ''} |"
            )
    return rows


# ------------------------------------------------------------------------------------------------------ OpenMP's spin


def decode() -> list[float]:
    """Seconds of one decoding step."""
    import torch

    from grpo_utils import policy, runs

    model = policy.load_policy(runs.load_recipe("cpu-code")).model
    token = torch.ones(BATCH, 1, dtype=torch.long)
    with torch.inference_mode():
        cache = model(input_ids=torch.ones(BATCH, 64, dtype=torch.long), logits_to_keep=1).past_key_values
        return [seconds(lambda: model(input_ids=token, past_key_values=cache), repeats=5)]


def compare_spin() -> list[str]:
    """Rows of the table: the same decoding step with two spins, idle and beside a program that keeps one core busy."""
    rows = []
    for label, busy in (("idle machine", False), ("one core busy", True)):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        try:  # 300,000 is libgomp's default when the waiting policy is not set
            short, default = (in_own_process("decode", GOMP_SPINCOUNT=spin)[0] for spin in ("2000", "300000"))
        finally:
            if other:
                other.kill()
                other.wait()
        rows.append(
            f"| a decoding step of {BATCH} completions, {label} | {short:.2f} s | {default:.2f} s, OpenMP's own spin "
            f"| {default / short:.1f} |"
        )
    return rows


def main() -> None:
    """Compares, prints the table and writes it."""
    from grpo_utils import runs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--model", default="", help="a model's folder, in the place of the recipe's")
    parser.add_argument("--shots", type=int, nargs="+", default=[0, 3], help="worked examples in the prompt")
    asked = parser.parse_args()
    name = Path(asked.model).name if asked.model else recipe_of("").model.name
    lines = [
        f"`python benchmarks/generation.py`: {name} in {recipe_of(asked.model).model.dtype}, with an adapter, {BATCH} "
        f"completions of {TOKENS} tokens, sampled at temperature 1.",
        "",
        "| prompt | what | seconds | tokens a second | times ours | peak memory |",
        "|---|---|---|---|---|---|",
        *compare_sides(asked.model, asked.against, asked.shots),
    ]
    if not asked.model:
        lines += ["", "| compared | short spin | other | other / short |", "|---|---|---|---|", *compare_spin()]
    lines += ["", f"On {runs.processor()}."]
    runs.write_file(RESULTS.with_stem(f"generation-{name}" if asked.model else "generation"), "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        print(json.dumps(write(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))))
    elif sys.argv[1:2] == ["limit"]:
        print(json.dumps(limit(sys.argv[2], int(sys.argv[3]))))
    elif sys.argv[1:] == ["decode"]:
        print(json.dumps(decode()))
    else:
        main()

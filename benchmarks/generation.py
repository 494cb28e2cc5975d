"""How fast the policy writes on a CPU: `python benchmarks/generation.py`, about twelve minutes on an idle machine.

Two comparisons, each side by side in one run, as ratios: our loading and generation against transformers' own (both
with our short spin) for the same prompts and numbers of tokens, with the memory that each needs; and a decoding step
with a short and with OpenMP's default spin, on an idle machine and with one core kept busy by another program.
Writes `benchmarks/results/generation.md`.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "generation.md"
BATCH, TOKENS, SHOTS = 64, 24, (0, 1, 3)
SIDES = ("ours", "plain")


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Median of `repeats` runs, after one to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def in_own_process(*arguments: str, **variables: str) -> list[float]:
    """Numbers that this script prints when it is called with `arguments`."""
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.check_output(command, env=os.environ | variables, text=True).splitlines()[-1])


# ------------------------------------------------------------------------------------------------- ours against plain


def write(side: str) -> list[float]:
    """Seconds that one side takes for `BATCH` completions with each number of worked examples, and its peak in MB."""
    import torch
    from transformers import AutoModelForCausalLM

    from grpo_utils import policy, runs, tasks

    recipe = runs.load_recipe("cpu-code")
    if side == "ours":
        loaded = policy.load_policy(recipe)
    else:
        plain = AutoModelForCausalLM.from_pretrained(
            policy.resolve_model(recipe.model.name), dtype=getattr(torch, recipe.model.dtype)
        )
        loaded = policy.Policy(plain.eval(), policy.load_tokenizer(recipe.model))
    loaded.model.generation_config.eos_token_id = [loaded.model.config.vocab_size]  # nothing ends before TOKENS tokens
    batch, taken = tasks.load_tasks("starter", "train")[:BATCH], []
    for shots in SHOTS:
        chats = [tasks.prompt_messages(task, recipe.prompt, tasks.worked_examples(recipe, shots)) for task in batch]
        taken.append(seconds(lambda chats=chats: _write(side, loaded, chats), repeats=1))  # `compare_sides` repeats
    return [*taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def _write(side: str, loaded: Any, chats: list[Any]) -> None:
    from grpo_utils import policy

    if side == "ours":
        seeds = list(range(BATCH))
        policy.generate_completions(loaded, chats, seeds, temperature=1.0, max_new_tokens=TOKENS, batch_size=BATCH)
        return
    inputs = loaded.tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    loaded.model.generate(**inputs, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=TOKENS)


def compare_sides() -> list[str]:
    """Rows of the table: the better of two rounds, in which the sides take turns."""
    rounds = [{side: in_own_process("write", side) for side in SIDES} for _ in range(2)]
    best = {side: [min(pair) for pair in zip(*(one[side] for one in rounds), strict=True)] for side in SIDES}
    (*ours, my_peak), (*plain, other_peak) = best["ours"], best["plain"]
    labels = [f"{BATCH} completions of {TOKENS} tokens, {shots}-shot" for shots in SHOTS]
    rows = [
        f"| {label} | {mine:.1f} s | {other:.1f} s, plain transformers | {other / mine:.2f} |"
        for label, mine, other in zip(labels, ours, plain, strict=True)
    ]
    return [*rows, f"| peak memory | {my_peak:.0f} MB | {other_peak:.0f} MB | {other_peak / my_peak:.2f} |"]


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

    lines = [
        "`python benchmarks/generation.py`: embedded:smollm2-135m-instruct, sampled at temperature 1, no adapter.",
        "",
        "| compared | ours | the other | other / ours |",
        "|---|---|---|---|",
        *compare_sides(),
        *compare_spin(),
    ]
    runs.write_file(RESULTS, "\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        print(json.dumps(write(sys.argv[2])))
    elif sys.argv[1:] == ["decode"]:
        print(json.dumps(decode()))
    else:
        main()

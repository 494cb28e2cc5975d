"""How fast the policy writes on a CPU: `python benchmarks/generation.py`, about three minutes.

Two comparisons, each side by side in one run, as ratios: our generation against plain `model.generate` for the same
prompts and numbers of tokens; and a decoding step with a short and with OpenMP's default spin, on an idle machine and
with one core kept busy by another program.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

BATCH, TOKENS = 64, 24


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Median of `repeats` runs, after one to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def compare_generation() -> None:
    """Our `policy.generate` against plain generate with transformers' sdpa, for 0, 1 and 3 worked examples."""
    from grpo_utils import policy, recipes, tasks

    recipe = recipes.load("cpu-code")
    ours = policy.load(recipe.model)
    plain = policy.load(recipe.model).model
    plain.set_attn_implementation("sdpa")
    for model in (ours.model, plain):  # no token ends a row: both sides write exactly TOKENS tokens
        model.generation_config.eos_token_id = [model.config.vocab_size]
    batch = tasks.load("starter", "train")[:BATCH]
    print(f"{BATCH} completions of {TOKENS} tokens    ours    plain    plain / ours")
    for shots in (0, 1, 3):
        chats = [tasks.messages(task, recipe.prompt, tasks.examples(recipe)[:shots]) for task in batch]
        seeds = list(range(BATCH))
        inputs = ours.tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        mine = seconds(
            lambda chats=chats, seeds=seeds: policy.generate(
                ours, chats, seeds, temperature=0.8, max_new_tokens=TOKENS, batch_size=BATCH
            )
        )
        other = seconds(
            lambda inputs=inputs: plain.generate(
                **inputs, do_sample=True, temperature=0.8, top_k=0, max_new_tokens=TOKENS
            )
        )
        print(f"{shots}-shot{mine:28.1f} s {other:6.1f} s {other / mine:10.2f}", flush=True)


def decode() -> None:
    """Prints the seconds of one decoding step at batch 64; run in a process of its own, whose environment counts."""
    import torch

    import grpo_utils  # noqa: F401, sets the spin unless the environment already does
    from grpo_utils import policy, recipes

    model = policy.load(recipes.load("cpu-code").model).model
    token = torch.ones(BATCH, 1, dtype=torch.long)
    with torch.inference_mode():
        cache = model(input_ids=torch.ones(BATCH, 64, dtype=torch.long), logits_to_keep=1).past_key_values
        print(seconds(lambda: model(input_ids=token, past_key_values=cache), repeats=5))


def compare_spin() -> None:
    """The same decoding step with two spins, idle and beside a program that keeps one core busy."""
    print(f"\none decoding step of {BATCH} completions    spin 2,000    default spin    default / ours")
    for label, busy in (("idle machine", False), ("one core busy", True)):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        taken = []
        for spin in ("2000", "300000"):  # 300,000 is libgomp's default when the waiting policy is not set
            environment = os.environ | {"GOMP_SPINCOUNT": spin}
            output = subprocess.check_output([sys.executable, __file__, "decode"], env=environment, text=True)
            taken.append(float(output.split()[-1]))
        if other:
            other.kill()
            other.wait()
        print(f"{label:<30}{taken[0]:16.2f} s {taken[1]:13.2f} s {taken[1] / taken[0]:15.1f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["decode"]:
        decode()
    else:
        compare_generation()
        compare_spin()

"""Generation for evaluation by vLLM, with an adapter as a LoRA request: what `policy` does, many times faster on a GPU.

A recipe asks for it with `evaluation.engine: vllm`. The base is loaded once; adapters of all checkpoints go through the
same engine (Chen et al. 2023, Punica, arXiv 2310.18547; Kwon et al. 2023, PagedAttention, arXiv 2309.06180).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpo_utils import policy
from grpo_utils.policy import ChatOrText, ModelError, Sampled
from grpo_utils.recipes import Model

NUMBERS = itertools.count(1)  # of LoRA requests: vLLM keeps adapters apart by number


@dataclass(frozen=True)
class Served:
    """A base model in vLLM's engine with its tokenizer, and the adapter that answers (a `LoRARequest`), if any."""

    llm: Any
    tokenizer: Any
    adapter: Any = None


def load(model: Model, rank: int) -> Served:
    """Starts vLLM's engine with the base model of a recipe.

    Args:
        model: the recipe's `model` block.
        rank: of the largest adapter that will be asked for.

    Raises:
        ModelError: vLLM is not installed, or the model is neither here nor reachable.
    """
    try:
        from vllm import LLM  # type: ignore[import-not-found]
    except ImportError as error:
        raise ModelError(
            "evaluation.engine: vllm needs vLLM, which the lock files for GPUs hold: install one of them, or "
            "--set evaluation.engine=transformers."
        ) from error
    tokenizer = policy.load_tokenizer(model)
    sizes = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
    llm = LLM(
        policy.resolve(model.name),
        dtype=model.dtype,
        quantization="bitsandbytes" if model.load_in_4bit else None,
        enable_lora=True,
        max_lora_rank=next(size for size in sizes if size >= rank),
    )
    return Served(llm, tokenizer)


@contextmanager
def adapted(served: Served, adapter: Path | None) -> Iterator[Served]:
    """The engine answering with a LoRA adapter, or with the bare base for None."""
    if adapter is None:
        yield served
        return
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

    yield replace(served, adapter=LoRARequest(adapter.name, next(NUMBERS), str(adapter.absolute())))


def generate(
    served: Served,
    prompts: Sequence[ChatOrText],
    seeds: Sequence[int | None],
    *,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
    on_batch: Callable[[list[int], list[Sampled]], None] | None = None,
) -> list[Sampled]:
    """Generates one completion per prompt: arguments and result are those of `policy.generate`.

    vLLM forms its batches by itself: `batch_size` has no effect, and `on_batch` is called once. The random numbers of a
    seed are others than in `policy.generate`.
    """
    from vllm import SamplingParams  # type: ignore[import-not-found]

    drawn = [  # temperature 0 is greedy
        SamplingParams(temperature=0.0 if seed is None else temperature, seed=seed, max_tokens=max_new_tokens)
        for seed in seeds
    ]
    asked = [{"prompt_token_ids": ids} for ids in policy.prompt_ids(served.tokenizer, prompts)]
    outputs = served.llm.generate(asked, drawn, lora_request=served.adapter)
    written = [output.outputs[0] for output in outputs]
    completions = [Sampled(one.text, list(one.token_ids), one.finish_reason == "length") for one in written]
    if on_batch:
        on_batch(list(range(len(completions))), completions)
    return completions

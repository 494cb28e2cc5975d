"""The `Engine` of `evaluation.engine: vllm`, many times faster than transformers on a GPU.

The base is loaded once, and every adapter is a LoRA request to it (Chen et al. 2023, Punica, arXiv 2310.18547; Kwon et
al. 2023, PagedAttention, arXiv 2309.06180).
"""

import gc
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from grpo_utils.runs import NEUTRAL, Recipe, Sampling

from .decoding import ChatOrText, Sampled, prompt_ids
from .loading import ModelError, load_model_config, load_tokenizer, resolve_model

NUMBERS = itertools.count(1)  # of LoRA requests: vLLM keeps adapters apart by number
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
LONGEST = 8192  # tokens of prompt and completion; a model's own limit may want more memory than a card has


@dataclass(frozen=True)
class Served:
    """A base model in vLLM's engine with its tokenizer, and the adapter that answers (a `LoRARequest`), if any."""

    llm: Any
    tokenizer: Any
    adapter: Any = None


def load_policy(recipe: Recipe) -> Served:
    """Starts vLLM's engine with the base model of a recipe, and with room for its adapters.

    Raises:
        ModelError: vLLM is not installed or cannot hold the model, or the model is neither here nor reachable.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # it would report to its makers
    try:
        from vllm import LLM  # type: ignore[import-not-found]
    except ImportError as error:
        raise ModelError(
            "evaluation.engine: vllm needs vLLM, which the lock files for GPUs and cpu-vllm.lock hold: install one, or "
            "--set evaluation.engine=transformers."
        ) from error
    model = recipe.model
    tokenizer, config = load_tokenizer(model), load_model_config(model)
    limit = getattr(config, "max_position_embeddings", LONGEST)  # a model with a state, or with ALiBi, has none
    source, room = resolve_model(model.name), room_for(recipe.lora["r"])
    try:
        llm = LLM(
            source,
            dtype=model.dtype,
            quantization="bitsandbytes" if model.load_in_4bit else None,
            enable_lora=True,
            max_lora_rank=room,
            max_model_len=min(LONGEST, limit),
            gpu_memory_utilization=_share_of_memory(),
        )
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"vLLM cannot start with {model.name!r}: {error}") from error
    return Served(llm, tokenizer)


def _share_of_memory() -> float:
    """The share of the card's memory that vLLM may take, or of the machine's, where others need some."""
    if not torch.cuda.is_available():
        memory = psutil.virtual_memory()
        return 0.5 * memory.available / memory.total
    gc.collect()  # what a notebook or a trainer has left on the card
    torch.cuda.empty_cache()
    free, whole = torch.cuda.mem_get_info()
    return 0.95 * free / whole


def room_for(rank: int) -> int:
    """Returns the least rank that vLLM makes room for and an adapter of this rank fits into.

    Raises:
        ModelError: there is none.
    """
    if rank > RANKS[-1]:
        raise ModelError(f"vLLM takes adapters of rank {RANKS[-1]} at most, not {rank}: lower lora.r.")
    return next(size for size in RANKS if size >= rank)


@contextmanager
def with_adapter(served: Served, adapter: Path | None) -> Iterator[Served]:
    """The engine answering with a LoRA adapter, or with the bare base for None."""
    if adapter is None:
        yield served
        return
    from vllm.lora.request import LoRARequest  # type: ignore[import-not-found]

    yield replace(served, adapter=LoRARequest(adapter.name, next(NUMBERS), str(adapter.absolute())))


def generate_completions(
    served: Served,
    prompts: Sequence[ChatOrText],
    seeds: Sequence[int | None],
    *,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling = NEUTRAL,
    on_batch: Callable[[list[int], list[Sampled]], None] | None = None,
) -> list[Sampled]:
    """Generates one completion per prompt, as `policy.generate_completions` does.

    vLLM forms its batches by itself: `batch_size` has no effect, and `on_batch` is called once. The random numbers of a
    seed are others.
    """
    from vllm import SamplingParams  # type: ignore[import-not-found]

    settings = {"max_tokens": max_new_tokens, **arguments(sampling)}
    drawn = [  # temperature 0 is greedy
        SamplingParams(temperature=0.0 if seed is None else temperature, seed=seed, **settings) for seed in seeds
    ]
    ids = prompt_ids(served.tokenizer, prompts, sampling.chat_template_kwargs)
    asked = [{"prompt_token_ids": one} for one in ids]
    outputs = served.llm.generate(asked, drawn, lora_request=served.adapter)
    written = [output.outputs[0] for output in outputs]
    completions = [Sampled(one.text, list(one.token_ids), one.finish_reason == "length") for one in written]
    if on_batch:
        on_batch(list(range(len(completions))), completions)
    return completions


def arguments(sampling: Sampling) -> dict[str, Any]:
    """Returns all of vLLM's sampling parameters: its server would take others from the model's own settings.

    Example:
        >>> arguments(Sampling(top_p=0.9))
        {'top_k': 0, 'top_p': 0.9, 'min_p': 0.0, 'repetition_penalty': 1.0}
    """
    return sampling.model_dump(exclude={"chat_template_kwargs"}) | {"min_p": sampling.min_p or 0.0}

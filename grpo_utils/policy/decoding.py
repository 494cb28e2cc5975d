"""Prompts -> completions: batched decoding in which nothing is computed twice."""

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from peft import PeftModel
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from grpo_utils.runs import NEUTRAL, Recipe, Sampling
from grpo_utils.tasks import Message

from .loading import ModelError, Policy

ChatOrText = str | Sequence[Message]
SLICE = 16  # decoding steps between two looks at which completions have ended


@dataclass(frozen=True)
class Sampled:
    """One completion: its text, its token ids (the end token included), and whether it was cut off at the limit."""

    text: str
    ids: list[int]
    truncated: bool


class Engine(Protocol):
    """What writes completions: this room with transformers, and the module `vllm`. Its policies are its own."""

    def load_policy(self, recipe: Recipe) -> Any: ...

    def with_adapter(self, policy: Any, adapter: Path | None, /) -> AbstractContextManager[Any]: ...

    @property
    def generate_completions(self) -> Callable[..., list[Sampled]]: ...


@dataclass(eq=False)
class _SampleByRow(LogitsProcessor):
    """Leaves each row one token: a sample (inverse of the cumulative distribution), or the likeliest.

    A row draws from its own generator, so its completion depends on its seed and not on the rows that share its batch.
    It is also cheaper than `torch.multinomial`, which draws a number per vocabulary entry.
    """

    temperature: float
    generators: Sequence[torch.Generator | None]
    sampling: Sampling = NEUTRAL

    def __post_init__(self) -> None:
        one = self.sampling  # in the order of transformers' `generate`
        self.cuts: list[Any] = [TopKLogitsWarper(one.top_k)] if one.top_k else []
        self.cuts += [TopPLogitsWarper(one.top_p)] if one.top_p < 1 else []
        self.cuts += [MinPLogitsWarper(one.min_p)] if one.min_p is not None else []

    def only(self, rows: Sequence[int]) -> "_SampleByRow":
        """The sampler of some of the rows."""
        return replace(self, generators=[self.generators[row] for row in rows])

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        token = scores.argmax(-1, keepdim=True)
        sampled = [row for row, generator in enumerate(self.generators) if generator is not None]
        if sampled:
            logits = scores[sampled] / self.temperature
            for cut in self.cuts:
                logits = cut(input_ids[sampled], logits)
            cumulative = torch.softmax(logits, dim=-1).cumsum(-1)
            drawn = torch.stack([torch.rand(1, generator=one) for one in self.generators if one is not None])
            # strictly below the total, so that rounding cannot point past the last token
            drawn = torch.minimum(drawn.to(scores.device) * cumulative[:, -1:], cumulative[:, -1:] * (1 - 1e-6))
            token[sampled] = torch.searchsorted(cumulative, drawn, right=True)
        return torch.full_like(scores, float("-inf")).scatter_(1, token, 0.0)  # type: ignore[return-value]


def generate_completions(
    policy: Policy,
    prompts: Sequence[ChatOrText],
    seeds: Sequence[int | None],
    *,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
    sampling: Sampling = NEUTRAL,
    on_batch: Callable[[list[int], list[Sampled]], None] | None = None,
) -> list[Sampled]:
    """Generates one completion per prompt, in their order.

    What all prompts begin with (system prompt and worked examples) is computed once, a prompt with several completions
    once per batch, and a completion that has ended leaves its batch. Prompts of similar length share a batch. A model
    whose cache does not allow that is left to transformers' own `generate`, with a warning.

    Args:
        policy: model and tokenizer.
        prompts: one chat or text per completion wanted, as for `prompt_ids`; repeat it for several completions.
        seeds: for each prompt the seed of its own random numbers, or None for greedy decoding.
        temperature: of the sampled ones.
        max_new_tokens: tokens after which a completion is cut off.
        batch_size: prompts per batch.
        sampling: what else decides what is asked and drawn; a recipe's is `recipe.sampling`.
        on_batch: called after each batch with the positions and completions it held.

    Raises:
        ModelError: there is a chat and the tokenizer has no chat template.
    """
    ids = prompt_ids(policy.tokenizer, prompts, sampling.chat_template_kwargs)
    order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), ids[i], i))  # completions of one prompt stand together
    results: dict[int, Sampled] = {}
    with torch.inference_mode():
        prefix = _Prefix.of(policy.model, ids)
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            rows = [ids[i] for i in batch]
            generators = [None if (seed := seeds[i]) is None else torch.Generator().manual_seed(seed) for i in batch]
            sampler = _SampleByRow(temperature, generators, sampling)
            if prefix:
                written = _generate_batch(policy, rows, prefix, sampler, max_new_tokens)
            else:
                written = _generate_plainly(policy, rows, sampler, max_new_tokens)
            completions = [_sampled(policy, tokens) for tokens in written]
            results.update(zip(batch, completions, strict=True))
            if on_batch:
                on_batch(batch, completions)
    return [results[i] for i in range(len(ids))]


def prompt_ids(
    tokenizer: Any, prompts: Sequence[ChatOrText], template: Mapping[str, Any] | None = None
) -> list[list[int]]:
    """Returns the token ids of chats or plain texts up to where the policy's own words begin.

    A chat that ends with the assistant's turn is gone on with. `template` is what the chat template is told besides the
    chat (`grpo.chat_template_kwargs` of a recipe).

    Raises:
        ModelError: there is a chat and the tokenizer has no chat template.
    """
    if tokenizer.chat_template is None and not all(isinstance(prompt, str) for prompt in prompts):
        raise ModelError(
            f"Model {tokenizer.name_or_path!r} has no chat template, so it cannot be asked in turns: take its instruct "
            "variant, or give the tokenizer in its folder a `chat_template`."
        )
    ids = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids.append(tokenizer(prompt)["input_ids"])
            continue
        is_begun = prompt[-1]["role"] == "assistant"
        settings = {"add_generation_prompt": not is_begun, "continue_final_message": is_begun, "return_dict": True}
        ids.append(tokenizer.apply_chat_template(list(prompt), **settings, **(template or {}))["input_ids"])
    return ids


@dataclass(frozen=True)
class _Prefix:
    """What all prompts begin with, computed once; and where a batch's shorter prompts are padded.

    Attributes:
        cache: its keys and values.
        is_windowed: some layers see a window only, by places and not by positions. Padding then goes to the left of
            a prompt. Otherwise it goes between the prefix and the rest, so that the prefix keeps its places.
    """

    cache: DynamicCache
    is_windowed: bool

    @classmethod
    def of(cls, model: Any, ids: list[list[int]]) -> "_Prefix | None":
        """The prefix of prompts, or None for a model whose cache cannot be cut and handed to other rows."""
        inner = _without_adapter(model)
        # every position enters through the mask and `position_ids` alone, and every layer keeps one key per token
        kinds = {type(layer) for layer in DynamicCache(config=inner.config).layers}
        is_shareable = inner._supports_attention_backend and not inner._is_stateful
        if not is_shareable or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
            _warn_of_plain(inner.config.name_or_path or type(inner).__name__)
            return None
        shortest = min(map(len, ids))
        shared = next((i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1), shortest - 1)
        beginning = torch.tensor([ids[0][: shared + 1]], device=model.device)
        # all keys are kept, those outside of a window too: another row's window may still hold them
        cache = _prefill(model, beginning, torch.ones_like(beginning), DynamicCache())
        return cls(cache, DynamicSlidingWindowLayer in kinds)

    def repeated(self, gaps: torch.Tensor) -> DynamicCache:
        """A cache with one row per gap, the number of tokens that the row is shorter than the longest."""
        places = torch.arange(self.cache.get_seq_length(), device=gaps.device).expand(len(gaps), -1)
        if self.is_windowed:  # moved to the right, and cut off there; what is left of it is masked
            places = (places - gaps[:, None]).clamp(min=0)
        layers: list[Any] = self.cache.layers
        pairs = [(layer.keys[0], layer.values[0]) for layer in layers]
        return DynamicCache([tuple(one[:, places].transpose(0, 1) for one in pair) for pair in pairs])


def _without_adapter(model: Any) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


@functools.cache
def _warn_of_plain(model: str) -> None:
    """Says once for each model what it costs that it is left to transformers."""
    warnings.warn(
        f"{model}: its cache cannot be shared by several prompts, so transformers' own `generate` writes the "
        "completions, more slowly: every completion computes its whole prompt, only prompts of equal length share a "
        "batch, and a batch lasts as long as its longest completion.",
        stacklevel=2,
    )


def _prefill(model: Any, inputs: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> DynamicCache:
    """Adds to `cache` the keys and values of the tokens that it lacks, except the last one, and returns it."""
    done = cache.get_seq_length()
    if done < inputs.shape[1] - 1:
        body = _without_adapter(model).base_model  # without the output head; an adapter lies in its layers
        body(
            input_ids=inputs[:, done:-1],
            attention_mask=mask[:, :-1],
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, done:-1],
            past_key_values=cache,
            use_cache=True,
        )
    return cache


def _read_prompts(
    model: Any, rows: list[list[int]], prefix: _Prefix
) -> tuple[torch.Tensor, torch.Tensor, DynamicCache]:
    """Computes each different prompt once, and returns token ids, attention mask and cache with all rows."""
    unique = sorted({tuple(row) for row in rows})
    longest, start = max(map(len, unique)), 0 if prefix.is_windowed else prefix.cache.get_seq_length()
    gaps = [longest - len(row) for row in unique]
    # padding is masked; a token of the prompt itself, because a repetition penalty looks at all tokens
    padded = [[*row[:start], *row[:1] * gap, *row[start:]] for row, gap in zip(unique, gaps, strict=True)]
    inputs = torch.tensor(padded, device=model.device)
    mask = torch.ones_like(inputs)
    for i, gap in enumerate(gaps):
        mask[i, start : start + gap] = 0
    cache = _prefill(model, inputs, mask, prefix.repeated(torch.tensor(gaps, device=model.device)))
    places = torch.tensor([unique.index(tuple(row)) for row in rows], device=model.device)
    cache.batch_select_indices(places)
    return inputs[places], mask[places], cache


def _generate_batch(
    policy: Policy, rows: list[list[int]], prefix: _Prefix, sampler: _SampleByRow, max_new_tokens: int
) -> list[list[int]]:
    """Returns the new token ids of each row, up to and with its end token."""
    ends = set(_end_ids(policy))
    inputs, mask, cache = _read_prompts(policy.model, rows, prefix)
    alive, written = list(range(len(rows))), [[] for _ in rows]
    for first in range(0, max_new_tokens, SLICE):
        limit = min(SLICE, max_new_tokens - first)
        output = _continue(policy, inputs, mask, sampler.only(alive), limit, past_key_values=cache)
        for i, tokens in zip(alive, output[:, inputs.shape[1] :].tolist(), strict=True):
            written[i] += tokens
        left = [place for place, i in enumerate(alive) if not ends & set(written[i])]
        if not left:
            break
        places = torch.tensor(left, device=policy.model.device)
        cache.batch_select_indices(places)
        mask = torch.cat([mask, mask.new_ones(len(mask), output.shape[1] - inputs.shape[1])], dim=1)[places]
        inputs, alive = output[places], [alive[place] for place in left]
    return written


def _generate_plainly(
    policy: Policy, rows: list[list[int]], sampler: _SampleByRow, max_new_tokens: int
) -> list[list[int]]:
    """What `_generate_batch` does, for any model: rows of equal length go together, and none is padded."""
    written = []
    # a model with a state that transformers does not keep for it (RWKV) mixes up the rows of a batch
    together = _without_adapter(policy.model)._supports_default_dynamic_cache()
    groups = itertools.groupby(range(len(rows)), key=lambda i: len(rows[i]) if together else i)  # sorted by length
    for places in (list(group) for _, group in groups):
        inputs = torch.tensor([rows[i] for i in places], device=policy.model.device)
        output = _continue(policy, inputs, torch.ones_like(inputs), sampler.only(places), max_new_tokens)
        written += output[:, inputs.shape[1] :].tolist()
    return written


def _continue(
    policy: Policy, inputs: torch.Tensor, mask: torch.Tensor, sampler: _SampleByRow, limit: int, **more: Any
) -> torch.Tensor:
    """Returns `inputs` with at most `limit` new tokens behind every row."""
    return policy.model.generate(
        input_ids=inputs,
        attention_mask=mask,
        logits_processor=LogitsProcessorList([sampler]),
        do_sample=False,
        max_new_tokens=limit,
        pad_token_id=policy.tokenizer.pad_token_id,
        eos_token_id=_end_ids(policy),
        repetition_penalty=sampler.sampling.repetition_penalty,  # else the model's generation config decides
        temperature=None,
        top_p=None,
        top_k=None,
        **more,
    )


def _end_ids(policy: Policy) -> list[int]:
    """The tokens that end a completion, which are those of TRL: the tokenizer's, and all that the model declares."""
    declared = policy.model.generation_config.eos_token_id
    several = declared if isinstance(declared, list) else [declared]
    return sorted({one for one in [policy.tokenizer.eos_token_id, *several] if one is not None})


def _sampled(policy: Policy, tokens: list[int]) -> Sampled:
    ends = _end_ids(policy)
    end = next((i for i, token in enumerate(tokens) if token in ends), None)
    kept = tokens if end is None else tokens[: end + 1]
    return Sampled(policy.tokenizer.decode(kept, skip_special_tokens=True), kept, end is None)

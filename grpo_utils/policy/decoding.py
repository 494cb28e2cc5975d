"""Prompts -> completions: batched decoding in which nothing is computed twice."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

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


class _SampleByRow(LogitsProcessor):
    """Replaces each row's logits by one token: a sample (inverse of the cumulative distribution), or the most likely.

    A row draws from its own generator, so its completion depends on its seed and not on the rows that happen to
    share its batch. It is also cheaper than `torch.multinomial`, which draws a number per vocabulary entry. A row
    whose generator is None is decoded greedily.
    """

    def __init__(self, temperature: float, generators: Sequence[torch.Generator | None]) -> None:
        self.temperature = temperature
        self.generators = generators

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        token = scores.argmax(-1, keepdim=True)
        sampled = [row for row, generator in enumerate(self.generators) if generator is not None]
        if sampled:
            cumulative = torch.softmax(scores[sampled] / self.temperature, dim=-1).cumsum(-1)
            drawn = torch.stack([torch.rand(1, generator=one) for one in self.generators if one is not None])
            # strictly below the total, so that rounding cannot point past the last token
            drawn = torch.minimum(drawn.to(scores.device) * cumulative[:, -1:], cumulative[:, -1:] * (1 - 1e-6))
            token[sampled] = torch.searchsorted(cumulative, drawn, right=True)
        return torch.full_like(scores, float("-inf")).scatter_(1, token, 0.0)  # type: ignore[return-value]


def generate(
    policy: Policy,
    prompts: Sequence[ChatOrText],
    seeds: Sequence[int | None],
    *,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
    on_batch: Callable[[list[int], list[Sampled]], None] | None = None,
) -> list[Sampled]:
    """Generates one completion per prompt.

    Nothing is computed twice: what all prompts begin with (system prompt and worked examples) is computed once, a
    prompt with several completions once per batch, and a completion that has ended leaves its batch. Prompts of
    similar length share a batch.

    Args:
        policy: model and tokenizer.
        prompts: one chat or text per completion wanted, as for `prompt_ids`; repeat it for several completions.
        seeds: for each prompt the seed of its own random numbers, or None for greedy decoding.
        temperature: of the sampled ones.
        max_new_tokens: tokens after which a completion is cut off.
        batch_size: prompts per batch.
        on_batch: called after each batch with the positions and completions it held.

    Returns:
        The completions in the order of `prompts`.

    Raises:
        ModelError: there is a chat and the tokenizer has no chat template.
    """
    ids = prompt_ids(policy.tokenizer, prompts)
    shortest = min(map(len, ids))
    shared = next((i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1), shortest - 1)
    order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), ids[i], i))  # completions of one prompt stand together
    results: dict[int, Sampled] = {}
    with torch.inference_mode():
        beginning = torch.tensor([ids[0][: shared + 1]], device=policy.model.device)
        prefix = _prefill(policy.model, beginning, torch.ones_like(beginning), DynamicCache(config=policy.model.config))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            generators = [None if (seed := seeds[i]) is None else torch.Generator().manual_seed(seed) for i in batch]
            rows = _generate_batch(policy, [ids[i] for i in batch], prefix, generators, temperature, max_new_tokens)
            completions = [_sampled(policy, tokens) for tokens in rows]
            results.update(zip(batch, completions, strict=True))
            if on_batch:
                on_batch(batch, completions)
    return [results[i] for i in range(len(ids))]


def prompt_ids(tokenizer: Any, prompts: Sequence[ChatOrText]) -> list[list[int]]:
    """Returns the token ids of prompts up to where the policy's own words begin.

    Args:
        tokenizer: of the policy.
        prompts: chats or plain texts. A chat that ends with the assistant's turn is gone on with.

    Raises:
        ModelError: there is a chat and the tokenizer has no chat template.
    """
    ids = []
    if tokenizer.chat_template is None and not all(isinstance(prompt, str) for prompt in prompts):
        raise ModelError(
            f"Model {tokenizer.name_or_path!r} has no chat template, so it cannot be asked in turns: take its instruct "
            "variant, or give the tokenizer in its folder a `chat_template`."
        )
    for prompt in prompts:
        if isinstance(prompt, str):
            ids.append(tokenizer(prompt)["input_ids"])
            continue
        is_begun = prompt[-1]["role"] == "assistant"
        settings = {"add_generation_prompt": not is_begun, "continue_final_message": is_begun, "return_dict": True}
        ids.append(tokenizer.apply_chat_template(list(prompt), **settings)["input_ids"])
    return ids


def _prefill(model: Any, inputs: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> DynamicCache:
    """Adds to `cache` the keys and values of the tokens that it lacks, except the last one, and returns it."""
    done = cache.get_seq_length()
    if done < inputs.shape[1] - 1:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, done:-1]
        model(
            input_ids=inputs[:, done:-1],
            attention_mask=mask[:, :-1],
            position_ids=positions,
            past_key_values=cache,
            logits_to_keep=1,
        )
    return cache


def _read_prompts(
    model: Any, rows: list[list[int]], prefix: DynamicCache, pad: int
) -> tuple[torch.Tensor, torch.Tensor, DynamicCache]:
    """Computes each different prompt once, and returns token ids, attention mask and cache with all rows."""
    unique = sorted({tuple(row) for row in rows})
    longest, shared = max(map(len, unique)), prefix.get_seq_length()
    # the padding goes between the shared beginning and the rest, so that the shared keys keep their positions
    gaps = [longest - len(row) for row in unique]
    padded = [[*row[:shared], *[pad] * gap, *row[shared:]] for row, gap in zip(unique, gaps, strict=True)]
    inputs = torch.tensor(padded, device=model.device)
    mask = torch.ones_like(inputs)
    for i, gap in enumerate(gaps):
        mask[i, shared : shared + gap] = 0
    cache = copy.deepcopy(prefix)
    cache.batch_repeat_interleave(len(unique))
    _prefill(model, inputs, mask, cache)
    places = torch.tensor([unique.index(tuple(row)) for row in rows], device=model.device)
    cache.batch_select_indices(places)
    return inputs[places], mask[places], cache


def _generate_batch(
    policy: Policy,
    rows: list[list[int]],
    prefix: DynamicCache,
    generators: list[torch.Generator | None],
    temperature: float,
    max_new_tokens: int,
) -> list[list[int]]:
    """Returns the new token ids of each row, up to and with its end token."""
    model, pad, ends = policy.model, policy.tokenizer.pad_token_id, _end_ids(policy)
    inputs, mask, cache = _read_prompts(model, rows, prefix, pad)
    alive, written = list(range(len(rows))), [[] for _ in rows]
    for first in range(0, max_new_tokens, SLICE):
        output = model.generate(
            input_ids=inputs,
            attention_mask=mask,
            past_key_values=cache,
            logits_processor=LogitsProcessorList([_SampleByRow(temperature, [generators[i] for i in alive])]),
            do_sample=False,
            max_new_tokens=min(SLICE, max_new_tokens - first),
            pad_token_id=pad,
            eos_token_id=ends,
            repetition_penalty=1.0,  # TRL trains without what a model's generation config may ask for
            temperature=None,
            top_p=None,
            top_k=None,
        )
        for i, tokens in zip(alive, output[:, inputs.shape[1] :].tolist(), strict=True):
            written[i] += tokens
        left = [place for place, i in enumerate(alive) if not set(ends) & set(written[i])]
        if not left:
            break
        places = torch.tensor(left, device=model.device)
        cache.batch_select_indices(places)
        mask = torch.cat([mask, mask.new_ones(len(mask), output.shape[1] - inputs.shape[1])], dim=1)[places]
        inputs, alive = output[places], [alive[place] for place in left]
    return written


def _end_ids(policy: Policy) -> list[int]:
    """The tokens that end a completion: some models have several."""
    stops = policy.model.generation_config.eos_token_id
    return stops if isinstance(stops, list) else [policy.tokenizer.eos_token_id]


def _sampled(policy: Policy, tokens: list[int]) -> Sampled:
    ends = _end_ids(policy)
    end = next((i for i, token in enumerate(tokens) if token in ends), None)
    kept = tokens if end is None else tokens[: end + 1]
    return Sampled(policy.tokenizer.decode(kept, skip_special_tokens=True), kept, end is None)

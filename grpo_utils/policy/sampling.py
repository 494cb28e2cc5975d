"""Logits -> tokens: each row draws with random numbers of its own."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo_utils.runs import NEUTRAL, Sampling

BLOCK = 256  # tokens of the vocabulary


def random_numbers(seed: int | None, number: int) -> torch.Tensor:
    """What a completion's tokens are drawn with; nan stands for the likeliest token."""
    if seed is None:
        return torch.full((number,), torch.nan)
    return torch.rand(number, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Sampler:
    """Chooses each row's next token: a sample (inverse of the cumulative distribution), or the likeliest."""

    temperature: float
    sampling: Sampling = NEUTRAL

    @functools.cached_property
    def cuts(self) -> list[Any]:
        one = self.sampling  # in the order of transformers' `generate`
        cuts: list[Any] = [TopKLogitsWarper(one.top_k)] if one.top_k else []
        cuts += [TopPLogitsWarper(one.top_p)] if one.top_p < 1 else []
        return cuts + ([MinPLogitsWarper(one.min_p)] if one.min_p is not None else [])

    def choose(self, logits: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Returns one token for each row of `logits` (rows x vocabulary), by the row's number in `drawn`."""
        tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        greedy = drawn.isnan()
        if greedy.any():
            tokens[greedy] = logits[greedy].argmax(-1)
        if not greedy.all():
            tokens[~greedy] = self._sample(logits[~greedy], drawn[~greedy, None])
        return tokens

    def _sample(self, logits: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        scores = logits.float()
        if self.temperature != 1:
            scores = scores / self.temperature
        for cut in self.cuts:
            scores = cut(None, scores)
        # first the block of tokens in which the cumulative distribution passes the number, then the token in it
        weights = torch.softmax(scores, dim=-1)
        weights = torch.nn.functional.pad(weights, (0, -weights.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
        block, left = _passed(weights.sum(-1), drawn)
        token, _ = _passed(weights[torch.arange(len(weights), device=weights.device), block], left)
        return block * BLOCK + token


def _passed(weights: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the sum of each row's weights passes its share `number`, and which share of what lies there is left."""
    cumulative = weights.cumsum(-1)
    # strictly below the total, so that rounding cannot point past the last place, nor to one without weight
    target = torch.minimum(number * cumulative[:, -1:], cumulative[:, -1:] * (1 - 1e-6))
    place = torch.searchsorted(cumulative, target, right=True)
    here = weights.gather(1, place)
    left = (target - cumulative.gather(1, place) + here) / here
    return place.squeeze(1), left.clamp(min=0)

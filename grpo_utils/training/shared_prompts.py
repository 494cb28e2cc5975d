"""TRL's trainer for a CPU, where a prompt is computed once for all completions of its group."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer
from trl.models.utils import _ForwardRedirection
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import selective_log_softmax_and_entropy

from grpo_utils.policy.batching import layer_kinds, without_adapter
from grpo_utils.policy.cpu import ATTENTION, Branches

TOKENS_AT_ONCE = 2048  # of one forward pass: attention grows with the square
# the losses that are the same sum over an optimiser step's rows, whichever of them are in a micro-batch together
SUMS = ("grpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


class SharedPromptTrainer(GRPOTrainer):
    """GRPO with the same loss and gradient from fewer tokens (Liu et al. 2025, "Prefix Grouper", arXiv 2506.05433).

    TRL hands each completion to the model behind a copy of its prompt, and all padded to one length. Here a prompt and
    the completions of its group are one row without padding, in which a completion sees the prompt and itself.
    """

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, with the completions of a group in one micro-batch, where no optimiser step's loss depends on that."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches: Any = self._buffered_inputs
        by_batch = self.top_entropy_quantile < 1 or self._entropy_bonus_enabled or self.aux_loss_enabled
        if batches is before or batches is None or by_batch or self.loss_type not in SUMS:
            return inputs
        # so many micro-batches never lie on both sides of an optimiser step or of a generation
        together = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)  # type: ignore[attr-defined]
        blocks = [batches[first : first + together] for first in range(0, len(batches), together)]
        self._buffered_inputs = [batch for block in blocks for batch in _sorted_by_prompt(block)]
        return self._buffered_inputs[self._step % len(batches)]

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's, in one forward pass of what holds several processes together: how many are within is their own."""
        inner = self.accelerator.unwrap_model(model)
        if model is inner:
            return super().compute_loss(model, *args, **kwargs)
        return _ForwardRedirection()(model, inner, super().compute_loss, inner, *args, **kwargs)

    def _get_per_token_logps_and_entropies(  # type: ignore[override]
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **more: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """TRL's: log-probability and entropy (rows x completion tokens, 0 where masked) and no auxiliary loss."""
        rows = [
            (ids[:-logits_to_keep][mask[:-logits_to_keep].bool()], ids[-logits_to_keep:][mask[-logits_to_keep:].bool()])
            for ids, mask in zip(input_ids, attention_mask, strict=True)
        ]
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (prompt, _) in enumerate(rows):
            groups.setdefault(tuple(prompt.tolist()), []).append(i)
        shares = len(groups) <= len(rows) / 2 and any(len(completion) for _, completion in rows)
        shares = shares and _can_share(self.accelerator.unwrap_model(model))
        known = {"batch_size", "compute_entropy"}  # not images, nor the auxiliary loss of a mixture of experts
        if not shares or any(more[key] is not None and more[key] is not False for key in more.keys() - known):
            return super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, logits_to_keep, **more)
        places, logps, entropies = [], [], []
        for prompt, members in groups.items():
            at_once = max(1, (TOKENS_AT_ONCE - len(prompt)) // logits_to_keep)
            for first in range(0, len(members), at_once):
                some = members[first : first + at_once]
                completions = [rows[i][1] for i in some]
                if not any(map(len, completions)):  # all of a group can be masked, as too long
                    continue
                logits = _completion_logits(model, rows[some[0]][0], completions)
                found = selective_log_softmax_and_entropy(
                    logits.float(),
                    torch.cat(completions),
                    entropy_requires_grad=self._entropy_bonus_enabled,
                    temperature=self.temperature,
                )
                logps.append(found[0])
                entropies.append(found[1])
                places += [(i, k) for i in some for k in range(len(rows[i][1]))]
        row, column = torch.tensor(places).unbind(1)

        def spread(values: list[torch.Tensor]) -> torch.Tensor:
            return torch.zeros(len(rows), logits_to_keep).index_put((row, column), torch.cat(values))

        return spread(logps), spread(entropies) if more.get("compute_entropy") else None, None


def _can_share(model: Any) -> bool:
    """Whether all that a token sees is what the mask says, in every layer."""
    attention = without_adapter(model).config._attn_implementation
    return attention == ATTENTION and layer_kinds(model) == {DynamicLayer}  # no windows


def _sorted_by_prompt(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows in batches of the same size, those of a prompt beside each other."""
    rows = len(batches[0]["prompt_ids"])
    prompts = torch.cat([batch["prompt_ids"] for batch in batches]).tolist()
    order = torch.tensor(sorted(range(len(prompts)), key=lambda i: (prompts[i], i)))

    def part(values: list[Any], places: torch.Tensor) -> Any:
        if isinstance(values[0], torch.Tensor) and values[0].dim():
            return torch.cat(values)[places]
        if isinstance(values[0], list):
            together = [one for some in values for one in some]
            return [together[i] for i in places]
        return values[0]

    return [
        {key: part([batch[key] for batch in batches], places) for key in batches[0]} for places in order.split(rows)
    ]


def _completion_logits(model: Any, prompt: torch.Tensor, completions: Sequence[torch.Tensor]) -> torch.Tensor:
    """The logits (tokens x vocabulary) of all tokens of completions, one after the other, behind the same prompt."""
    read = [one[:-1] for one in completions]  # nothing is predicted from the last token
    branches = Branches(len(prompt), [len(one) for one in read])
    # what predicts the first token of every completion is the prompt's last
    ends = itertools.accumulate(map(len, read), initial=len(prompt))
    last = torch.tensor([len(prompt) - 1])
    predicting = [
        torch.cat([last, torch.arange(begin, end)])[: len(one)]
        for one, (begin, end) in zip(completions, itertools.pairwise(ends), strict=True)
    ]
    return model(
        input_ids=torch.cat([prompt, *read])[None],
        attention_mask=branches.whole_mask,
        position_ids=branches.position[None],
        branches=branches,
        logits_to_keep=torch.cat(predicting),
        use_cache=False,
    ).logits[0]

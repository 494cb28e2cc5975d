"""A prompt computed once for its group: TRL's own numbers, from fewer tokens."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_utils.policy import cpu
from grpo_utils.training import shared_prompts
from grpo_utils.training.shared_prompts import SharedPromptTrainer
from tests.policy.test_families import FAMILIES, ours
from tests.policy.test_families import WORDS as FAMILY_WORDS

WORDS = 300


@pytest.fixture
def model(tiny_model) -> Any:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    cpu.prepare(base)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(base, lora)


def a_trainer(kind: type[GRPOTrainer], **more: Any) -> Any:
    """A trainer with what the two methods read."""
    trainer: Any = object.__new__(kind)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.use_liger_kernel, trainer._entropy_bonus_enabled, trainer.temperature = False, False, 0.8
    trainer.model_kwarg_keys = {"logits_to_keep"}
    for name, value in more.items():
        setattr(trainer, name, value)
    return trainer


def rows(prompts: list[list[int]], completions: list[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask: prompts padded on the left, random completions of these lengths on the right."""
    longest = max(map(len, prompts))
    ids = torch.randint(5, WORDS, (len(prompts), longest + width))
    mask = torch.zeros_like(ids)
    for i, (prompt, length) in enumerate(zip(prompts, completions, strict=True)):
        ids[i, longest - len(prompt) : longest] = torch.tensor(prompt)
        mask[i, longest - len(prompt) : longest + length] = 1
    return ids, mask


def both(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> list[tuple[Any, ...]]:
    """Log-probabilities, entropies and gradients of the two trainers."""
    found = []
    for kind in (GRPOTrainer, SharedPromptTrainer):
        logps, entropies, _ = a_trainer(kind)._get_per_token_logps_and_entropies(
            model, ids, mask, width, compute_entropy=True, pixel_values=None
        )
        kept = mask[:, -width:].bool()
        weights = torch.linspace(-1, 1, kept.numel()).view(kept.shape)
        model.zero_grad()
        (logps * weights)[kept].sum().backward()
        gradients = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        found.append((logps.detach()[kept], entropies.detach()[kept], gradients))
    return found


A, B = [7, 8, 9, 10, 11], [7, 8, 12]


@pytest.mark.parametrize(
    ("prompts", "lengths"),
    [
        ([A] * 4, [6, 6, 6, 6]),
        ([A, B, A, B, A, B], [1, 6, 3, 5, 2, 4]),
        ([A, A, A, A], [6, 0, 0, 1]),  # 0: masked, because it was cut off
        ([A, A, B, B], [0, 0, 3, 4]),
        ([[9]] * 3, [2, 3, 1]),
    ],
)
@pytest.mark.parametrize("at_once", [2048, 12])
def test_numbers_and_gradients_are_those_of_trl(model, monkeypatch, prompts, lengths, at_once):
    monkeypatch.setattr(shared_prompts, "TOKENS_AT_ONCE", at_once)
    torch.manual_seed(1)
    theirs, ours = both(model, *rows(prompts, lengths, 6), 6)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-5)
    assert ours[2].keys() == theirs[2].keys()
    mine, other = (torch.cat([one.flatten() for one in found[2].values()]) for found in (ours, theirs))
    assert other.norm() > 0
    assert (mine - other).norm() < 1e-3 * other.norm()


def test_a_prompt_is_read_once_for_its_group(model):
    seen = []
    model.get_base_model().model.embed_tokens.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    ids, mask = rows([A] * 8, [6] * 8, 6)
    a_trainer(SharedPromptTrainer)._get_per_token_logps_and_entropies(model, ids, mask, 6)
    assert [tuple(one.shape) for one in seen] == [(1, len(A) + 8 * 5)]


@pytest.mark.parametrize(("prompts", "lengths"), [([A, B, [5]], [2, 3, 1]), ([A, A], [0, 0])])
def test_what_shares_nothing_is_left_to_trl(model, prompts, lengths):
    torch.manual_seed(1)
    ids, mask = rows(prompts, lengths, 4)
    ours = a_trainer(SharedPromptTrainer)._get_per_token_logps_and_entropies(model, ids, mask, 4)
    theirs = a_trainer(GRPOTrainer)._get_per_token_logps_and_entropies(model, ids, mask, 4)
    assert torch.equal(ours[0], theirs[0])


def test_groups_stay_together_within_an_optimiser_step_and_rows_stay_whole(monkeypatch):
    """TRL shuffles all completions of a generation; what it puts into one optimiser step stays in it."""
    prompts = torch.tensor([[0], [1], [2], [0], [3], [1], [3], [2]])
    whole = {"prompt_ids": prompts, "advantages": torch.arange(8.0), "texts": list("abcdefgh"), "none": None}
    whole["num_items_in_batch"] = torch.tensor(8)

    def batches() -> list[dict[str, Any]]:
        cut = [
            {k: v[i : i + 2] for k, v in whole.items() if k not in ("none", "num_items_in_batch")} for i in (0, 2, 4, 6)
        ]
        return [one | {"none": None, "num_items_in_batch": whole["num_items_in_batch"]} for one in cut]

    def prepare(self: Any, batch: Any) -> Any:
        self._buffered_inputs = batches()
        return self._buffered_inputs[0]

    monkeypatch.setattr(GRPOTrainer, "_prepare_inputs", prepare)
    for steps, expected in ((4, [[0, 0], [1, 1], [2, 2], [3, 3]]), (2, [[0, 0], [1, 2], [1, 2], [3, 3]])):
        trainer = a_trainer(SharedPromptTrainer, _buffered_inputs=None, _step=0)
        trainer.args = SimpleNamespace(gradient_accumulation_steps=steps)
        first = trainer._prepare_inputs({})
        found = trainer._buffered_inputs
        assert first is found[0]
        assert [one["prompt_ids"].flatten().tolist() for one in found] == expected
        assert all(one["none"] is None and one["num_items_in_batch"] == 8 for one in found)
        for one in found:
            for prompt, advantage, text in zip(one["prompt_ids"], one["advantages"], one["texts"], strict=True):
                i = int(advantage)
                assert (prompts[i], "abcdefgh"[i]) == (prompt, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_computed_once_for_its_group_gives_the_log_probabilities_of_trl(family):
    current = ours(family).model
    ids, mask = torch.randint(5, FAMILY_WORDS, (6, 24)), torch.ones(6, 24, dtype=torch.long)
    padding = 0 if family == "gpt2" else 5  # TRL gives GPT-2 no positions, which then counts the padding
    for rows, begin in ((slice(0, 4), 0), (slice(4, 6), padding)):
        ids[rows, :14], mask[rows, :begin] = ids[rows.start, :14].clone(), 0
    for row, length in enumerate((10, 3, 1, 7, 0, 5)):
        mask[row, 14 + length :] = 0
    found = []
    for kind in (GRPOTrainer, SharedPromptTrainer):
        trainer = a_trainer(kind)
        with torch.no_grad():
            found.append(trainer._get_per_token_logps_and_entropies(current, ids, mask, 10)[0])
    kept = mask[:, 14:].bool()
    torch.testing.assert_close(found[1][kept], found[0][kept], rtol=1e-3, atol=1e-3)

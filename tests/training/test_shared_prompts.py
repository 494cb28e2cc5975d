"""A prompt computed once for its group: TRL's own numbers, from fewer tokens."""

import os
import socket
import typing
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_utils.policy import cpu
from grpo_utils.training import shared_prompts
from grpo_utils.training.checks import CHOICES
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
        trainer = a_trainer(SharedPromptTrainer, _buffered_inputs=None, _step=0, loss_type="grpo")
        trainer.top_entropy_quantile, trainer.aux_loss_enabled = 1.0, False
        trainer.args = SimpleNamespace(gradient_accumulation_steps=steps, steps_per_generation=4)
        first = trainer._prepare_inputs({})
        found = trainer._buffered_inputs
        assert first is found[0]
        assert [one["prompt_ids"].flatten().tolist() for one in found] == expected
        assert all(one["none"] is None and one["num_items_in_batch"] == 8 for one in found)
        for one in found:
            for prompt, advantage, text in zip(one["prompt_ids"], one["advantages"], one["texts"], strict=True):
                i = int(advantage)
                assert (prompts[i], "abcdefgh"[i]) == (prompt, text)


def optimiser_steps(
    kind: type[GRPOTrainer], folder: Path, settings: dict[str, Any], lengths: list[int]
) -> list[torch.Tensor]:
    """Loss and gradient, in one vector, of each optimiser step of a trainer on two generations of random completions.

    A generation has three micro-batches, where `settings` say nothing else, of rows with these numbers of tokens in
    turn. Four rows share a prompt.
    """
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cpu.prepare(base)
    own = {"loss_type": "dapo", "gradient_accumulation_steps": 3, "num_generations": 4, "gradient_checkpointing": False}
    own |= {"per_device_train_batch_size": 4, "use_cpu": True, "bf16": False, "report_to": "none"}
    config: Any = GRPOConfig(output_dir="unused", **own | settings)
    trainer: Any = kind(
        model=base,
        args=config,
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["unused"] * 24}),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    )
    trainer.current_gradient_accumulation_steps = window = config.gradient_accumulation_steps
    model = trainer.accelerator.prepare(trainer.model.train())

    def generation(_: Any) -> dict[str, torch.Tensor]:
        number, width = config.per_device_train_batch_size * config.steps_per_generation, max(*lengths, 1)
        all_lengths = [lengths[i % len(lengths)] for i in range(number)]
        prompts = [[[1, 7, 8, 9, 10], [1, 7, 8], [1, 9]][i // 4 % 3] for i in range(number)]
        ids, mask = rows(prompts, all_lengths, width)
        ids *= mask
        return {
            "prompt_ids": ids[:, :-width], "prompt_mask": mask[:, :-width],
            "completion_ids": ids[:, -width:], "completion_mask": mask[:, -width:],
            "old_per_token_logps": torch.rand(number, width) - 11.0,
            "ref_per_token_logps": torch.rand(number, width) - 11.0,
            "advantages": torch.randn(number),
            "num_items_in_batch": trainer.accelerator.gather(torch.tensor(sum(all_lengths))).sum(),
        }  # fmt: skip

    trainer._generate_and_score_completions = generation
    torch.manual_seed(1)
    found = []
    for _ in range(2 * config.steps_per_generation // window):
        model.zero_grad()
        loss = torch.zeros(())
        for i in range(window):
            with trainer.accelerator.no_sync(model) if i < window - 1 else nullcontext():
                one = trainer.compute_loss(model, trainer._prepare_inputs({}))
                trainer.accelerator.backward(one)
            loss, trainer._step = loss + one.detach(), trainer._step + 1
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([loss[None], *gradients]))
    return found


def compare(theirs: list[torch.Tensor], ours: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours, theirs, strict=True):
        assert other[1:].norm() > 0
        assert mine[0].item() == pytest.approx(other[0].item(), rel=1e-4, abs=1e-6)
        assert (mine - other)[1:].norm() < 1e-4 * other[1:].norm()


@pytest.mark.parametrize(
    "settings",
    [
        *({"loss_type": name} for name in typing.get_args(CHOICES["grpo.loss_type"])),
        {"steps_per_generation": 3, "gradient_accumulation_steps": 2},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
        {"steps_per_generation": 2, "gradient_accumulation_steps": 4},
        {"top_entropy_quantile": 0.4},
        {"entropy_coef": 0.5},
        {"importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True},
        {"delta": 1.5, "off_policy_mask_threshold": 0.1},
    ],
    ids=str,
)
def test_every_optimiser_step_has_the_loss_and_the_gradient_of_trl(tiny_model, settings):
    lengths = [8, 3, 1, 7, 4, 0, 5]  # one is cut off and masked
    compare(*(optimiser_steps(kind, tiny_model, settings, lengths) for kind in (GRPOTrainer, SharedPromptTrainer)))


UNEVEN = {  # the completions' tokens in each of two processes
    "many tokens and few": ([8, 7], [1, 2]),
    "a prompt whose completions are all masked": ([8, 3, 5, 6], [0] * 4 + [5] * 8),
    "all masked": ([8, 3], [0]),
}


def one_of_two(rank: int, port: int, folder: Path, results: Path) -> None:
    """A process that takes the optimiser steps of all cases with both trainers."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared_prompts.TOKENS_AT_ONCE = 20
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    found = {
        name: [optimiser_steps(kind, folder, settings, uneven[rank]) for kind in (GRPOTrainer, SharedPromptTrainer)]
        for name, uneven in UNEVEN.items()
    }
    torch.save(found, results / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_need_not_make_equally_many_forward_passes(tiny_model, tmp_path):
    """What a process computes at once depends on its own completions; it may not wait for more than the gradient."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = torch.multiprocessing.get_context("spawn").Process
    processes = [start(target=one_of_two, args=(rank, port, tiny_model, tmp_path)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name in UNEVEN:
        compare(*first[name])
        compare(*second[name])
        assert all(torch.equal(a[1:], b[1:]) for a, b in zip(first[name][1], second[name][1], strict=True))


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

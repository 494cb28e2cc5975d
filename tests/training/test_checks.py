"""Keys for TRL and PEFT: each has an effect, which evaluation follows, or is refused with what to do instead."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.sft_config import SFTConfig

from grpo_utils import policy, runs, training
from grpo_utils.policy import cpu
from grpo_utils.runs import RecipeError
from grpo_utils.training import checks, memory

# honoured, as the trainers and this package were read; conditional: beside some other keys, or on a GPU
DECIDED = json.loads((Path(__file__).parents[1] / "data" / "trainer_fields.json").read_text())
TARGETS = {"grpo": GRPOConfig, "warm_start": SFTConfig, "lora": LoraConfig}


def refusals(block: str, key: str) -> list[str]:
    """What is said of a key with a value that is not its default, beside one loss and beside another."""
    found = []
    for loss in ("dapo", "sapo"):
        recipe = runs.load_recipe("cpu-code", {"grpo.loss_type": loss})
        configs = {"grpo": training.grpo_config, "warm_start": training.grpo.sft_config}
        config = configs[block](recipe, Path("unused")) if block in configs else LoraConfig(**recipe.lora)
        changed = recipe.model_copy(update={block: {**(getattr(recipe, block) or {}), key: "another"}})
        try:
            checks.check_heeded(changed, block, config)
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("block", TARGETS)
def test_of_every_field_in_the_installed_versions_it_is_decided_whether_it_is_heeded(block):
    """A new version's new field fails here: read what the trainers and this package do with it, and enter it."""
    names = [name for kind in DECIDED[block].values() for name in kind]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(TARGETS[block]))
    assert set(DECIDED[block]["elsewhere"]) <= set(checks.ELSEWHERE)


@pytest.mark.parametrize(
    ("block", "kind"), [(block, kind) for block in TARGETS for kind in DECIDED[block] if kind != "elsewhere"]
)
def test_what_is_decided_holds(block, kind):
    for key in DECIDED[block][kind]:
        found = refusals(block, key)
        assert bool(found) == (kind != "honoured"), key
        assert all(one.startswith(f"{block}.{key} ") for one in found)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("cpu-code", {"grpo.per_device_eval_batch_size": 4}, r"batch_size .* see the block 'evaluation'"),
        ("cpu-code", {"warm_start.save_strategy": "no"}, None),
        ("cpu-code", {"warm_start.save_strategy": "steps"}, r"warm_start.save_strategy"),
        ("cpu-code", {"grpo.num_train_epochs": 2}, r"num_train_epochs .* max_steps says how long"),
        ("cpu-code", {"grpo.trust_remote_code": True}, r"trust_remote_code .* block 'model' says what is loaded"),
        ("cpu-code", {"grpo.save_only_model": True}, r"save_only_model .* goes on from its last checkpoint"),
        ("cpu-code", {"grpo.cache_implementation": "static"}, r"needs a GPU and generation by transformers"),
        ("cpu-code", {"grpo.vllm_max_model_length": 512}, r"vllm_max_model_length needs use_vllm, or remove it"),
        ("cpu-code", {"grpo.use_vllm": False, "grpo.vllm_max_model_length": 512}, None),
        ("cpu-code", {"grpo.vllm_server_port": 8000}, None),  # its default
        ("cpu-code", {"grpo.use_liger_kernel": True}, r"use_liger_kernel needs a GPU and the package"),
        ("cpu-code", {"grpo.optim_args": "a=1"}, r"optim_args needs optim: galore or apollo or sgd"),
        ("cpu-code", {"grpo.optim_args": "momentum=0.9", "grpo.optim": "sgd"}, None),
        ("cpu-code", {"grpo.ddp_timeout": 60}, r"ddp_timeout needs several processes"),
        ("cpu-code", {"grpo.ddp_timeout": 60, "launcher": "ddp"}, None),
        ("cpu-code", {"grpo.vespo_k_pos": 1.0}, r"vespo_k_pos needs loss_type: vespo"),
        ("cpu-code", {"grpo.vespo_k_pos": 1.0, "grpo.loss_type": "vespo"}, None),
        ("cpu-code", {"grpo.use_bias_correction_kl": False}, r"use_bias_correction_kl needs beta"),
        ("cpu-code", {"grpo.use_bias_correction_kl": False, "grpo.beta": 0.1}, None),
        ("cpu-code", {"warm_start.num_train_epochs": 1.0}, r"warm_start.num_train_epochs needs max_steps: -1"),
        ("cpu-code", {"warm_start.num_train_epochs": 1.0, "warm_start.max_steps": -1}, None),
        (
            "cpu-code",
            {"grpo.use_vllm": True, "grpo.vllm_mode": "server", "grpo.vllm_server_port": 8001},
            r"vllm_server_port needs vllm_mode: server and a GPU",
        ),
        (
            "cpu-code",
            {"grpo.use_vllm": True, "grpo.vllm_mode": "server", "grpo.vllm_gpu_memory_utilization": 0.5},
            r"needs vllm_mode: colocate",
        ),
        ("llama3-8b-mbpp-multi-gpu", {"grpo.vllm_server_port": 8001}, None),
        ("cpu-code", {"lora.modules_to_save": ["lm_head"]}, r"modules_to_save .* lora.target_modules names"),
        ("cpu-code", {"lora.lora_bias": True}, r"lora_bias .* lora.target_modules names"),
        *[
            ("cpu-code", {"lora.init_lora_weights": one}, rf"init_lora_weights' .* 'orthogonal' or 'mica', not '{one}'")
            for one in ("pissa", "pissa_niter_4", "olora", "eva", "corda", "loftq")
        ],
    ],
)  # fmt: skip
def test_what_would_have_no_effect_is_refused_before_training(name, overrides, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = runs.load_recipe(name, overrides)
    if message is None:
        training.check_arguments(recipe)
    else:
        with pytest.raises(RecipeError, match=message):
            training.check_arguments(recipe)


def test_what_only_a_gpu_heeds_is_left_to_it(monkeypatch):
    recipe = runs.load_recipe("cpu-code", {"grpo.cache_implementation": "static"})
    config = training.grpo_config(recipe, Path("unused"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    checks.check_heeded(recipe, "grpo", config)


@pytest.mark.parametrize("layer", ["lm_head", "embed_tokens"])
def test_an_adapter_of_a_head_that_is_the_embedding_is_refused(layer):
    """Merged it would change both, and training has changed one of them."""
    recipe = runs.load_recipe("cpu-code", {"lora.target_modules": [layer], "lora.layers_to_transform": None})
    config = policy.load_model_config(recipe.model)
    with pytest.raises(ValueError, match="head is its embedding"):
        memory.count_parameters(config, recipe.lora)
    config.tie_word_embeddings = False
    assert memory.count_parameters(config, recipe.lora)[2] > 0


@pytest.mark.parametrize(
    "settings",
    [
        *({"init_lora_weights": one} for one in (True, False, "gaussian", "orthogonal", "mica")),
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 32}},
        {"exclude_modules": ["v_proj"]},
        {"layers_to_transform": [1], "layers_pattern": "layers"},
        {"trainable_token_indices": [3, 4]},
        {"target_modules": "all-linear"},
    ],
    ids=str,
)
def test_every_checkpoint_is_evaluated_and_exported_as_it_was_trained(tiny_model, tmp_path, settings):
    """One after the other on the same base, also with packed weights; and the base afterwards is what it was."""

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def states(model: Any) -> torch.Tensor:
        ids = torch.tensor([[3, 4, 5, 6, 7, 3, 9]])
        return model(input_ids=ids, output_hidden_states=True).hidden_states[-1].float()

    lora: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    trained = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", **lora | settings)).eval()
    torch.manual_seed(0)
    expected = []
    for step in ("1", "2"):
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.data += 0.5 * torch.randn_like(parameter)
        expected.append(states(trained))
        trained.save_pretrained(tmp_path / step)
    loaded = policy.Policy(base(), None)
    before = states(loaded.model)
    for step, right in zip(("1", "2"), expected, strict=True):
        with policy.with_adapter(loaded, tmp_path / step) as current:
            assert torch.equal(states(current.model), right)
            with cpu.packed_weights(current.model):
                assert (states(current.model) - right).norm() < 0.1 * (right - before).norm()
    assert torch.equal(states(loaded.model), before)
    merged: Any = PeftModel.from_pretrained(base(), tmp_path / "2").merge_and_unload()  # type: ignore[operator]
    assert (states(merged) - expected[1]).norm() < 0.1 * (expected[1] - before).norm()

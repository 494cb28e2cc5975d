"""A policy loaded by Unsloth, which has patched TRL, transformers and PEFT by then.

It patches them as they load, so the process that trains imports it before all else: `__main__` sees to that, and
`launch` starts such a process for the recipes that want it.
"""

from typing import Any

import torch

from grpo_utils import policy
from grpo_utils.policy import Policy
from grpo_utils.runs import Recipe


def load_unsloth(recipe: Recipe) -> Policy:
    """Loads the model of a recipe with Unsloth, with a fresh adapter on it; raises ModelError if that fails."""
    from unsloth import FastLanguageModel  # type: ignore[import-not-found]

    loading, adapting = arguments(recipe)
    try:
        model, tokenizer = FastLanguageModel.from_pretrained(**loading)
    except (OSError, ValueError) as error:
        raise policy.unreachable_model(recipe.model, error) from error
    return policy.Policy(FastLanguageModel.get_peft_model(model, **adapting), tokenizer)


def arguments(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a recipe as the arguments of Unsloth's `from_pretrained` and `get_peft_model`.

    Unsloth's own vLLM (`fast_inference`) takes TRL's settings of vLLM, and shares its weights with the trainer.
    """
    grpo = recipe.grpo
    loading = {
        "model_name": recipe.model.name,
        "dtype": getattr(torch, recipe.model.dtype),
        "load_in_4bit": recipe.model.load_in_4bit,
        "max_seq_length": grpo.get("vllm_max_model_length"),
        "fast_inference": grpo.get("use_vllm", False),
        "gpu_memory_utilization": grpo.get("vllm_gpu_memory_utilization"),
        "max_lora_rank": recipe.lora["r"],
        "random_state": recipe.seed,
    }
    adapting = {**recipe.lora, "random_state": recipe.seed, "use_gradient_checkpointing": "unsloth"}
    return {name: value for name, value in loading.items() if value is not None}, adapting

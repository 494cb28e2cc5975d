"""`grpo_utils.training` in a process that imports Unsloth first: it patches TRL, transformers and PEFT as they load.

`training` starts it for recipes that want Unsloth: `python -m grpo_utils.training --recipe llama3-8b-mbpp-24gb`. For
the same reason nothing here may import those three before Unsloth.
"""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from grpo_utils import commands, launch
from grpo_utils.errors import UserError
from grpo_utils.recipes import Recipe

if TYPE_CHECKING:
    from grpo_utils.policy import Policy


def load(recipe: Recipe) -> "Policy":
    """Loads the model of a recipe with Unsloth, with a fresh adapter on it.

    Raises:
        ModelError: the model cannot be loaded.
    """
    from unsloth import FastLanguageModel  # type: ignore[import-not-found]

    from grpo_utils import policy

    loading, adapting = arguments(recipe)
    try:
        model, tokenizer = FastLanguageModel.from_pretrained(**loading)
    except (OSError, ValueError) as error:
        raise policy.unreachable(recipe.model, error) from error
    return policy.Policy(FastLanguageModel.get_peft_model(model, **adapting), tokenizer)


def arguments(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a recipe as the arguments of Unsloth's `from_pretrained` and `get_peft_model`.

    Unsloth's own vLLM (`fast_inference`) takes TRL's settings of vLLM, and shares its weights with the trainer.

    Example:
    ```python
    >>> from grpo_utils import recipes
    >>> loading, adapting = arguments(recipes.load("llama3-8b-mbpp-24gb"))
    >>> loading["max_seq_length"], loading["fast_inference"], adapting["r"]
    (1024, True, 16)

    ```
    """
    import torch

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


def main() -> None:
    """Trains the policy of a recipe with Unsloth."""
    if importlib.util.find_spec("unsloth") is None:
        raise UserError(
            "The recipe wants Unsloth, which is not installed: install the GPU profile, or set model.engine to "
            "transformers and grpo.use_vllm to false."
        )
    os.environ[launch.LAUNCHED] = "1"
    os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")  # read while Unsloth is imported
    import unsloth  # type: ignore[import-not-found]  # noqa: F401

    from grpo_utils import training

    training.main()


if __name__ == "__main__":
    commands.run(main)

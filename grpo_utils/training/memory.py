"""How much of a GPU's memory a recipe needs, before anything is loaded: `grpo memory --recipe NAME`.

It is arithmetic on the model's configuration; `benchmarks/gpu.py` sets it beside what a run really took. It does not
know what DeepSpeed divides among GPUs (an upper bound there), nor other programs on the card.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoModelForCausalLM

from grpo_utils import policy
from grpo_utils.runs import Recipe

GB = 10**9
CONTEXT = 10**9  # CUDA's context and kernels, and blocks of PyTorch's allocator that no tensor fills
PROMPT_TOKENS = 256  # a prompt without worked examples, or one worked example, has about as many at most
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # 4 bits; one byte per block of 64; four bytes per 256 blocks (2305.14314)


@dataclass(frozen=True)
class Estimate:
    """What a training step needs on one GPU, in bytes."""

    held: Mapping[str, float]  # all the time: weights, adapter, gradients, optimiser, CUDA's context
    generation: float  # while completions are written: the KV cache, or all that vLLM reserves
    learning: float  # while the policy learns: activations and logits
    together: bool  # generation keeps its memory while the policy learns (vLLM that does not sleep)
    trainable: int  # number of trainable parameters

    @property
    def peak(self) -> float:
        """The most that is needed at one time, in bytes."""
        phases = (self.generation, self.learning)
        return sum(self.held.values()) + (sum(phases) if self.together else max(phases))

    def __str__(self) -> str:
        rows = [*self.held.items(), ("generation", self.generation), ("learning", self.learning), ("peak", self.peak)]
        lines = [f"{name:<12} {size / GB:6.2f} GB" for name, size in rows]
        sharing = "at the same time" if self.together else "one after the other"
        lines.append(f"{self.trainable:,} trainable parameters; generation and learning {sharing}")
        return "\n".join(lines)


def estimate_memory(recipe: Recipe, config: Any, card: float) -> Estimate:
    """Estimates what training needs on one GPU of `card` bytes, of which vLLM beside the trainer reserves a share.

    `config` is the model's configuration, from transformers' `AutoConfig`.
    """
    grpo, dtype = recipe.grpo, 4 if recipe.model.dtype == "float32" else 2
    total, linear, trainable = count_parameters(config, recipe.lora)
    weights = dtype * total
    if recipe.model.load_in_4bit:
        weights = dtype * (total - linear) + NF4_BYTES * linear
    held_in = 2 if recipe.model.load_in_4bit and recipe.model.engine == "transformers" else 4  # TRL follows QLoRA there
    moments = 2 if "8bit" in grpo.get("optim", "") else 8
    generation, together = _generation(recipe, config, card, weights)
    held = {
        "weights": weights,
        "adapter": held_in * trainable,
        "gradients": held_in * trainable,
        "optimiser": moments * trainable,
        "context": CONTEXT,
    }
    return Estimate(held, generation, _learning(recipe, config), together, trainable)


def count_parameters(config: Any, lora: Mapping[str, Any]) -> tuple[int, int, int]:
    """Returns a model's parameters in all, those in layers that 4-bit loading shrinks, and those that LoRA trains.

    No weight is allocated. Raises a ValueError when the adapter does not fit the model's layers.
    """
    shape = {**lora, "init_lora_weights": False}  # some ways to begin compute with weights
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        total, head = model.num_parameters(), model.get_output_embeddings()
        layers = [one for one in model.modules() if isinstance(one, torch.nn.Linear) and one is not head]
        linear = sum(one.weight.numel() for one in layers)
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **shape))
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if config.tie_word_embeddings and any(isinstance(one, BaseTunerLayer) for one in ends):
        raise ValueError("the model's head is its embedding, so no export could hold an adapter of one of them")
    return total, linear, adapted.get_nb_trainable_parameters()[0]


def _tokens(recipe: Recipe) -> int:
    """Tokens of the longest prompt with its completion."""
    longest = PROMPT_TOKENS * (1 + recipe.prompt.shots) + recipe.grpo["max_completion_length"]
    return min(longest, recipe.grpo.get("vllm_max_model_length", longest))


def _generation(recipe: Recipe, config: Any, card: float, weights: float) -> tuple[float, bool]:
    """Bytes that generation takes, and whether it keeps them while the policy learns."""
    grpo = recipe.grpo
    if grpo.get("use_vllm"):
        if grpo.get("vllm_mode") == "server":
            return 0.0, False
        reserved = card * grpo.get("vllm_gpu_memory_utilization", 0.3)
        shared = weights if recipe.model.engine == "unsloth" else 0.0  # Unsloth's vLLM uses the trainer's weights
        return max(0.0, reserved - shared), not grpo.get("vllm_enable_sleep_mode", False)
    rows = grpo["per_device_train_batch_size"] * grpo.get("gradient_accumulation_steps", 1)
    # keys and values of every layer, in 16 bits
    return float(rows * _tokens(recipe) * 2 * config.num_hidden_layers * _key_width(config) * 2), False


def _key_width(config: Any) -> int:
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * size


def _learning(recipe: Recipe, config: Any) -> float:
    """Bytes of what the backward pass needs from the forward pass, for one micro-batch, in 16 bits.

    A layer keeps its input, both normed inputs, queries, the mixed values and the middle sum (6 times the width), keys
    and values, and four tensors of the MLP's width. With checkpointing only the layers' inputs are kept, and one
    layer is computed again at a time. Logits are there three times: themselves, their gradient, and a copy by slicing.
    """
    rows, width = recipe.grpo["per_device_train_batch_size"], config.hidden_size
    middle = getattr(config, "intermediate_size", None) or 4 * width  # as GPT-2 has it without saying so
    layer = 2 * rows * _tokens(recipe) * (6 * width + 2 * _key_width(config) + 4 * middle)
    kept = layer * config.num_hidden_layers
    if recipe.grpo.get("gradient_checkpointing", True):  # `training` switches it on where there is a GPU
        kept = 2 * rows * _tokens(recipe) * width * config.num_hidden_layers + layer
    return float(kept + 3 * 2 * rows * recipe.grpo["max_completion_length"] * config.vocab_size)


def advice(recipe: Recipe, needed: Estimate, card: float) -> str | None:
    """Returns one sentence that says which setting to lower if the recipe does not fit `card` bytes, else None."""
    if needed.peak <= card:
        return None
    remedies = [(needed.held["weights"], "set model.load_in_4bit to true", not recipe.model.load_in_4bit)]
    if recipe.grpo.get("use_vllm"):
        remedies.append((needed.generation, "lower grpo.vllm_gpu_memory_utilization", needed.generation > 0))
    else:
        remedies.append((needed.generation, "lower grpo.gradient_accumulation_steps or grpo.num_generations", True))
    halved = "halve grpo.per_device_train_batch_size and double grpo.gradient_accumulation_steps"
    splits = recipe.grpo["per_device_train_batch_size"] > 1
    remedies.append((needed.learning, halved if splits else "lower grpo.max_completion_length", True))
    remedies.append((needed.held["optimiser"], "set grpo.optim to paged_adamw_8bit", "optim" not in recipe.grpo))
    remedy = max(one for one in remedies if one[2])[1]
    return (
        f"Recipe {recipe.name!r} needs about {needed.peak / GB:.1f} GB of GPU memory and the card has "
        f"{card / GB:.1f} GB: {remedy}."
    )


def warn_if_short(recipe: Recipe) -> None:
    """Warns, on a machine with a GPU, when the recipe will probably not fit its memory."""
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        sentence = advice(recipe, estimate_memory(recipe, policy.load_model_config(recipe.model), card), card)
        if sentence:
            warnings.warn(sentence, stacklevel=2)

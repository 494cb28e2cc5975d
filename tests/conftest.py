"""Shared by all tests: outputs go to a temporary folder, and one sandbox serves the whole session."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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
    """A folder with a random model of one layer, which writes nonsense fast, and the embedded model's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from grpo_utils import policy
    from grpo_utils.recipes import Model

    tokenizer = policy.load_tokenizer(Model(name="embedded:smollm2-135m-instruct"))
    folder = tmp_path_factory.mktemp("models") / "tiny"
    sizes: Any = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
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

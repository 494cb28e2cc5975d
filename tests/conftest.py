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

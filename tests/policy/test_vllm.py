"""Evaluation on vLLM: what it is asked for, with an engine acted out, and with the real one where it is installed."""

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig

from grpo_utils import policy, runs
from grpo_utils.policy import ModelError, Sampled, vllm
from grpo_utils.runs import Model, Recipe, Sampling

SETTINGS: dict[str, Any] = {"temperature": 0.7, "max_new_tokens": 3, "batch_size": 2}


def recipe_of(model: object, rank: int = 4) -> Recipe:
    return runs.load_recipe("smoke-code", {"model": {"name": str(model), "dtype": "float32"}, "lora.r": rank})


@pytest.fixture
def engine(monkeypatch):
    """A vLLM that answers every prompt with its own last token and remembers what it was asked."""
    seen = SimpleNamespace(loaded=None, asked=[])

    class LLM:
        def __init__(self, name, **settings):
            seen.loaded = (name, settings)

        def generate(self, prompts, sampling, lora_request):
            seen.asked.append((prompts, sampling, lora_request))
            answers = [
                SimpleNamespace(text="1", token_ids=prompt["prompt_token_ids"][-1:], finish_reason="length")
                for prompt in prompts
            ]
            return [SimpleNamespace(outputs=[answer]) for answer in answers]

    lora = SimpleNamespace(LoRARequest=lambda name, number, path: SimpleNamespace(name=name, number=number, path=path))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=LLM, SamplingParams=SimpleNamespace))
    monkeypatch.setitem(sys.modules, "vllm.lora", SimpleNamespace(request=lora))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", lora)
    return seen


def test_a_greedy_completion_has_neither_seed_nor_temperature(engine, tiny_model):
    served = vllm.load_policy(recipe_of(tiny_model))
    looked: list[list[int]] = []
    prompts = ["a", "b c", "d"]
    found = vllm.generate_completions(
        served, prompts, [None, 5, 6], on_batch=lambda batch, _: looked.append(batch), **SETTINGS
    )
    assert looked == [[0, 1, 2]]
    sampling = [one for _, batch, _ in engine.asked for one in batch]
    assert [(one.temperature, one.seed) for one in sampling] == [(0.0, None), (0.7, 5), (0.7, 6)]
    assert found == [Sampled("1", ids[-1:], True) for ids in policy.prompt_ids(served.tokenizer, prompts)]


def test_the_engine_is_asked_with_the_recipes_sampling(engine, tiny_model):
    served = vllm.load_policy(recipe_of(tiny_model))
    served.tokenizer.chat_template = "{{ messages[0].content }}{{ more }}"
    sampling = Sampling(top_k=20, min_p=0.1, repetition_penalty=1.2, chat_template_kwargs={"more": " b"})
    chat = [{"role": "user", "content": "a"}]
    vllm.generate_completions(served, [chat], [5], sampling=sampling, **SETTINGS)
    vllm.generate_completions(served, ["a b"], [5], **SETTINGS)
    (asked, (one,), _), (plain, (neutral,), _) = engine.asked
    assert asked == plain
    assert (one.top_k, one.top_p, one.min_p, one.repetition_penalty) == (20, 1.0, 0.1, 1.2)
    assert (neutral.top_k, neutral.top_p, neutral.min_p, neutral.repetition_penalty) == (0, 1.0, 0.0, 1.0)


def test_a_model_without_a_limit_of_positions_has_that_of_the_engine(engine, tmp_path):
    policy.load_tokenizer(Model(name="embedded:smollm2-135m-instruct")).save_pretrained(tmp_path)
    AutoConfig.for_model("bloom").save_pretrained(tmp_path)
    vllm.load_policy(recipe_of(tmp_path))
    assert engine.loaded[1]["max_model_len"] == vllm.LONGEST


def test_every_adapter_is_a_request_of_its_own_and_the_base_has_none(engine, tiny_model, tmp_path):
    served = vllm.load_policy(recipe_of(tiny_model, rank=20))
    assert engine.loaded[1]["max_lora_rank"] == 32
    with pytest.raises(ModelError, match=r"lower lora\.r"):
        vllm.room_for(513)
    for adapter in (None, tmp_path / "checkpoint-1", tmp_path / "checkpoint-2"):
        with vllm.with_adapter(served, adapter) as current:
            vllm.generate_completions(current, ["a"], [None], **SETTINGS)
    requests = [request for _, _, request in engine.asked]
    assert requests[0] is None
    assert [request.path for request in requests[1:]] == [str(tmp_path / f"checkpoint-{i}") for i in (1, 2)]
    assert requests[1].number != requests[2].number


def test_an_engine_takes_part_of_the_memory_left_and_a_failing_one_is_a_sentence(engine, tiny_model, monkeypatch):
    half_full = SimpleNamespace(available=6, total=12)
    monkeypatch.setattr(vllm.psutil, "virtual_memory", lambda: half_full)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    vllm.load_policy(recipe_of(tiny_model))
    assert engine.loaded[1]["gpu_memory_utilization"] == 0.25

    def fail(name, **settings):
        raise RuntimeError("Engine core initialization failed.")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", fail)
    with pytest.raises(ModelError, match=r"vLLM cannot start with .* initialization failed"):
        vllm.load_policy(recipe_of(tiny_model))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_sentence_says_what_to_do(tiny_model):
    with pytest.raises(ModelError, match=r"--set evaluation\.engine=transformers"):
        vllm.load_policy(recipe_of(tiny_model))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")
def test_vllm_writes_what_transformers_writes(tmp_path):
    recipe = recipe_of("embedded:smollm2-135m-instruct")  # vLLM refuses heads as small as a tiny one's
    own = policy.load_policy(recipe)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(own.model, lora).save_pretrained(str(tmp_path))
    prompts: list[str] = ["a b c", "1 + 1 ="]
    settings: dict[str, Any] = SETTINGS | {"max_new_tokens": 8}
    served = vllm.load_policy(recipe)
    with vllm.with_adapter(served, tmp_path) as current:
        theirs = vllm.generate_completions(current, prompts, [None, None], **settings)
    with policy.with_adapter(policy.load_policy(recipe), tmp_path) as current:
        ours = policy.generate_completions(current, prompts, [None, None], **settings)
    assert theirs == ours

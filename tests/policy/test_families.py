"""Any chat model: ours in a batch = ours alone = transformers' own `generate`, for many families of models.

They are tiny and random, in float32, where two ways to compute the same thing do not differ by a token. Their weights
are large, so that every token before matters, and windows are smaller than what all prompts begin with.
"""

import copy
import functools
import inspect
import random
import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grpo_utils import policy
from grpo_utils.policy import batching, cpu
from grpo_utils.runs import Sampling

WINDOW, WORDS = 16, 64
SIZES: dict[str, Any] = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 5, "eos_token_id": 1}
SIZES |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2}
WINDOWED: dict[str, Any] = GROUPED | {"sliding_window": WINDOW}
BOTH: dict[str, Any] = WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
LINEAR: dict[str, Any] = {"linear_num_key_heads": 2, "linear_num_value_heads": 4} | dict.fromkeys(
    ("linear_key_head_dim", "linear_value_head_dim"), 8
)
MAMBA: dict[str, Any] = {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8}
HYBRID: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
LATENT: dict[str, Any] = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
LATENT |= {"v_head_dim": 12, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
PER_LAYER: dict[str, Any] = {"vocab_size_per_layer_input": WORDS, "hidden_size_per_layer_input": 8}
VISION: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    # attention to all that came before
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 16},
    "smollm3": GROUPED,
    "granite": GROUPED | {"attention_multiplier": 0.5},
    "cohere": GROUPED,
    "gemma": GROUPED | {"head_dim": 16},
    "gpt2": SIZES | {"n_inner": 48},
    "gpt_neox": SIZES,
    "opt": SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": SIZES,
    "nemotron": GROUPED,
    "qwen3_moe": GROUPED | EXPERTS | {"head_dim": 8, "moe_intermediate_size": 16},
    "deepseek_v3": SIZES | LATENT | {"num_key_value_heads": 4, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    # some layers or all see a window or a chunk only
    "mistral": WINDOWED,
    "mixtral": WINDOWED | EXPERTS,
    "phi3": WINDOWED,
    "starcoder2": WINDOWED,
    "gemma2": BOTH | {"head_dim": 8, "query_pre_attn_scalar": 4},
    "gemma3_text": BOTH | {"head_dim": 8, "query_pre_attn_scalar": 4},
    "gemma3": {"text_config": BOTH | {"head_dim": 8}, "vision_config": VISION},
    "gemma4_text": BOTH | {"head_dim": 8, "global_head_dim": 8, "num_kv_shared_layers": 0} | PER_LAYER,
    "olmo3": BOTH,
    "cohere2": BOTH,
    "gpt_oss": BOTH | EXPERTS | {"head_dim": 8},  # with attention sinks
    "llama4_text": GROUPED | EXPERTS | {"head_dim": 8, "intermediate_size_mlp": 48, "attention_chunk_size": WINDOW},
    # what they remember of the beginning is no list of keys, or their attention is of their own
    "lfm2": GROUPED | {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": GROUPED | EXPERTS | LINEAR | {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8},
    "qwen3_5_text": GROUPED | LINEAR | {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8},
    "granitemoehybrid": GROUPED | EXPERTS | HYBRID | {"layer_types": ["mamba", "attention"]},
    "mamba2": SIZES | MAMBA,
    "rwkv": SIZES | {"attention_hidden_size": 32},
    "mpt": SIZES | {"d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {"attn_impl": "torch"}},
    "bloom": SIZES,
    "falcon": SIZES | {"alibi": True, "num_kv_heads": 2, "new_decoder_architecture": True},
    "stablelm": GROUPED,
}
ONE_TOKEN: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 1, "batch_size": 1}
LEFT_TO_TRANSFORMERS = tuple(FAMILIES)[tuple(FAMILIES).index("lfm2") :]


class Numbers:
    """A tokenizer for texts of numbers."""

    chat_template = None
    pad_token_id, eos_token_id = 0, 4

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids: list[int], **settings: Any) -> str:
        return " ".join(map(str, ids))


@functools.cache
def tiny(family: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family], tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.3)
    model.generation_config.eos_token_id = [1, 2, 3]  # and 4 is the tokenizer's: in 20 tokens many completions end
    return model


def ours(family: str) -> policy.Policy:
    model = copy.deepcopy(tiny(family))
    cpu.prepare(model)
    return policy.Policy(model, Numbers())


def texts(*lengths: int, beginning: int = 0) -> list[str]:
    """Prompts of these lengths behind a common beginning."""
    draw = random.Random(sum(lengths))
    begun = [draw.randrange(5, WORDS) for _ in range(beginning)]
    return [" ".join(map(str, begun + [draw.randrange(5, WORDS) for _ in range(length)])) for length in lengths]


def greedy(current: policy.Policy, prompts: list[str], batch_size: int, **sampling: Any) -> list[list[int]]:
    settings: Any = {"temperature": 1.0, "max_new_tokens": 20, "batch_size": batch_size}
    settings["sampling"] = Sampling(**sampling)
    return [one.ids for one in policy.generate_completions(current, prompts, [None] * len(prompts), **settings)]


def of_transformers(model: Any, prompt: str, **given: Any) -> list[int]:
    """What transformers alone writes after one prompt alone."""
    inputs = torch.tensor([Numbers()(prompt)["input_ids"]])
    settings: Any = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0, "eos_token_id": [1, 2, 3, 4]}
    settings |= given
    with torch.inference_mode():
        output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **settings)
    return output[0, inputs.shape[1] :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("least", "spare"), [(1, 32), (1000, 3)], ids=["apart", "in-each-row"])
def test_a_batch_is_what_transformers_writes_alone(family, least, spare, monkeypatch):
    """Whether what all prompts begin with is read apart or with the keys of each row, and however often rows move."""
    monkeypatch.setattr(batching, "WORTH_SHARING", least)
    monkeypatch.setattr(batching, "SPARE_PLACES", spare)
    current = ours(family)
    for prompts in (texts(1, 6, 13, beginning=WINDOW + 4), texts(1, 2, WINDOW + 4)):
        expected = [of_transformers(tiny(family), prompt) for prompt in prompts]
        assert len({token for ids in expected for token in ids}) > 3, "all say the same: the comparison shows nothing"
        assert greedy(current, prompts * 2, batch_size=4) == expected * 2
        assert [greedy(current, [prompt], batch_size=1)[0] for prompt in prompts] == expected


def test_families_that_transformers_must_serve_are_said_once_with_what_it_costs():
    policy.decoding._warn_once.cache_clear()
    said = {}
    for family in FAMILIES:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                policy.generate_completions(policy.Policy(tiny(family), Numbers()), ["7 8"], [None], **ONE_TOKEN)
        said[family] = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
    assert {family for family, lines in said.items() if lines} == set(LEFT_TO_TRANSFORMERS)
    for family in LEFT_TO_TRANSFORMERS:
        (line,) = said[family]
        assert line.startswith(f"{type(tiny(family)).__name__}: its cache cannot be shared")
        assert "more slowly: every completion computes its whole prompt" in line


@pytest.mark.parametrize("family", ["llama", "mistral", "mamba2"])
def test_a_sample_depends_on_its_seed_and_not_on_its_batch(family):
    """On each of the three ways, and with everything that a recipe may say of sampling."""
    current, prompts, seeds = ours(family), texts(1, 4, 4, 9, beginning=WINDOW), [7, None, 8, 9]
    sampling = Sampling(top_k=30, top_p=0.9, min_p=0.01, repetition_penalty=1.5)
    settings: Any = {"temperature": 2.0, "max_new_tokens": 20, "sampling": sampling}
    together = policy.generate_completions(current, prompts, seeds, batch_size=4, **settings)
    apart = [
        policy.generate_completions(current, [prompts[i]], [seeds[i]], batch_size=1, **settings)[0] for i in range(4)
    ]
    assert together == apart
    other = policy.generate_completions(current, prompts, [17, None, 18, 19], batch_size=4, **settings)
    assert [one == two for one, two in zip(other, together, strict=True)] == [False, True, False, False]


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_repetition_penalty_sees_the_prompt_and_not_its_padding(family):
    current, prompts = ours(family), texts(*range(1, 15), beginning=WINDOW)
    expected = [of_transformers(tiny(family), prompt, repetition_penalty=1.5) for prompt in prompts]
    assert expected != greedy(current, prompts, batch_size=14)
    assert any(0 in ids for ids in expected), "the token for padding is never written: the comparison shows nothing"
    assert greedy(current, prompts, batch_size=14, repetition_penalty=1.5) == expected


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_an_adapter_counts_in_what_prompts_begin_with_too(family):
    current = ours(family)
    before = greedy(current, texts(1, 6, beginning=WINDOW + 4), batch_size=2)
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    current.model = get_peft_model(current.model, lora)
    for layer in current.model.modules():
        if hasattr(layer, "lora_B"):
            torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.5)
    prompts = texts(1, 6, beginning=WINDOW + 4)
    expected = [of_transformers(current.model, prompt) for prompt in prompts]
    assert expected != before
    assert greedy(current, prompts, batch_size=2) == expected


def test_free_rows_are_taken_by_the_next_prompts():
    """Ten completions in three rows, all of other lengths, are what each is alone, and few rows stand idle."""
    current, prompts = ours("llama"), texts(*range(1, 11), beginning=3)
    alone = [greedy(current, [prompt], batch_size=1)[0] for prompt in prompts]
    assert len({len(ids) for ids in alone}) > 2
    steps, positions = [], []
    current.model.lm_head.register_forward_hook(lambda _, inputs, __: steps.append(len(inputs[0])))
    current.model.model.register_forward_pre_hook(
        lambda _, inputs, given: positions.append(given["position_ids"].max()) if "position_ids" in given else None,
        with_kwargs=True,
    )
    assert greedy(current, prompts, batch_size=3) == alone
    assert max(steps) == 3
    assert sum(steps) < 1.2 * sum(map(len, alone))
    assert greedy(current, prompts, batch_size=8) == alone
    assert max(positions) <= max(len(prompt.split()) + len(ids) for prompt, ids in zip(prompts, alone, strict=True))


@pytest.mark.parametrize("ends", [None, 2, [2, 3]])
def test_a_completion_ends_where_the_tokenizer_or_the_model_says(ends):
    current = ours("llama")
    current.model.generation_config.eos_token_id = ends
    declared = {4} | ({ends} if isinstance(ends, int) else set(ends or ()))
    written = greedy(current, texts(*range(1, 40)), batch_size=39)
    finished = [ids for ids in written if len(ids) < 20]
    assert {ids[-1] for ids in finished} == declared
    assert not {token for ids in written for token in ids[:-1]} & declared


@pytest.mark.parametrize("settings", [{}, {"scaling": 0.3}, {"scaling": 0.0}, {"dropout": 0.0}, {"is_causal": True}])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_for_one_token_is_what_sdpa_computes(settings, groups):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 4, 1, 8), torch.randn(3, groups, 9, 8), torch.randn(3, groups, 9, 12)
    some = torch.rand(3, 1, 1, 9) > 0.3
    module: Any = torch.nn.Module()
    module.num_key_value_groups = 4 // groups
    bias = torch.randn(3, 4, 1, 9)
    masks = [None, some, some.expand(3, 4, 1, 9), torch.where(some, 0.0, float("-inf")), bias]
    for mask in masks:
        theirs, _ = sdpa_attention_forward(module, query, key, value, mask, **settings)  # type: ignore[arg-type]
        mine, _ = cpu.attention(module, query, key, value, mask, **settings)
        torch.testing.assert_close(mine, theirs)
    theirs, _ = sdpa_attention_forward(module, query, key, value, some, position_bias=bias, **settings)
    mine, _ = cpu.attention(module, query, key, value, some, position_bias=bias, **settings)
    torch.testing.assert_close(mine, theirs)


def test_attention_knows_all_arguments_that_sdpa_reads():
    """Another one in a later transformers must not be dropped in silence."""
    read = set(inspect.signature(sdpa_attention_forward).parameters)
    tensors = {"module", "query", "key", "value", "attention_mask"}
    assert read == tensors | {"scaling", "dropout", "position_bias", "is_causal", "kwargs"}


def test_every_model_that_has_sdpa_gets_the_fast_attention():
    """But Falcon looks its implementation up in a table of its own."""
    had = {family for family in FAMILIES if tiny(family).config._attn_implementation == "sdpa"}
    got = {family for family in FAMILIES if ours(family).model.config._attn_implementation == "cpu_attention"}
    assert got == had - {"falcon"}

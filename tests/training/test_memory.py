"""The memory estimate against numbers worked out by hand for Llama-3-8B, and the settings that it says to lower."""

import pytest
from transformers import GPT2Config, LlamaConfig

from grpo_utils import runs, training
from grpo_utils.training import GB

# Llama-3-8B (Meta's model card and config.json): 32 layers of width 4,096 with 8 key-value heads of 128
LLAMA = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, tie_word_embeddings=False,
)  # fmt: skip
# per layer: q and o 2 x 4096 x 4096, k and v 2 x 4096 x 1024, MLP 3 x 4096 x 14336
LINEAR = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
# embeddings and head 128256 x 4096 each, 2 norms per layer and a last one
OTHER = 2 * 128256 * 4096 + (2 * 32 + 1) * 4096
# LoRA of rank 16 adds 16 x (in + out) per layer to q, v, gate, up and down
ADAPTER = 32 * 16 * ((4096 + 4096) + (4096 + 1024) + 3 * (4096 + 14336))
CARD = 24 * GB


def estimate(name="llama3-8b-mbpp-24gb", card=CARD, **overrides):
    recipe = runs.load_recipe(name, {key.replace("__", "."): value for key, value in overrides.items()})
    return recipe, training.estimate_memory(recipe, LLAMA, card)


@pytest.fixture(scope="module")
def in_4_bits():
    return estimate(model__engine="transformers", grpo__use_vllm=False)[1]


def test_weights_match_hand_computed_numbers(in_4_bits):
    assert LINEAR + OTHER == 8_030_261_248  # the 8.03 billion of the model card
    # 16 bits: 2 x 8.03e9 = 16.06 GB
    assert estimate("llama3-8b-mbpp-a100", 80 * GB)[1].held["weights"] == 2 * (LINEAR + OTHER)
    # NF4, QLoRA section 3: 4 bits + 8 / 64 + 32 / (64 x 256) = 4.127 bits for linear layers; the rest stays in 16 bits
    assert in_4_bits.held["weights"] == pytest.approx(LINEAR * 4.126953125 / 8 + 2 * OTHER)
    assert in_4_bits.held["weights"] == pytest.approx(5.70 * GB, rel=1e-3)


def test_adapter_and_optimiser_match_and_stay_below_the_published_200_mb(in_4_bits):
    assert in_4_bits.trainable == ADAPTER == 35_127_296
    assert 4 * ADAPTER < 200e6  # 140.5 MB in float32
    assert in_4_bits.held["adapter"] == in_4_bits.held["gradients"] == 2 * ADAPTER  # TRL trains it in bfloat16 on NF4
    assert in_4_bits.held["optimiser"] == 2 * ADAPTER  # two moments of one byte


def test_kv_cache_and_activations_match(in_4_bits):
    # 2 (keys and values) x 32 layers x 8 heads x 128 x 2 bytes = 131,072 bytes a token; 8 x (256 + 512) tokens
    assert in_4_bits.generation == 8 * 768 * 131_072  # 0.81 GB
    # one completion at a time: inputs of 32 layers 768 x 4096 x 2 bytes each, one layer with its MLP, 3 x the logits
    inputs = 32 * 768 * 4096 * 2
    layer = 768 * 2 * (6 * 4096 + 2 * 1024 + 4 * 14336)
    assert in_4_bits.learning == inputs + layer + 3 * 512 * 128256 * 2
    assert in_4_bits.peak == sum(in_4_bits.held.values()) + in_4_bits.generation  # the larger of the two phases


def test_a_model_that_names_its_sizes_in_another_way_is_estimated():
    recipe = runs.load_recipe("smollm2-mbpp-gpu", {"lora.target_modules": ["c_attn"]})
    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100)  # no key-value heads, no middle size
    tokens = 256 + recipe.grpo["max_completion_length"]
    rows = recipe.grpo["per_device_train_batch_size"] * recipe.grpo.get("gradient_accumulation_steps", 1)
    assert training.estimate_memory(recipe, config, CARD).generation == rows * tokens * 2 * 2 * 64 * 2


def test_vllm_takes_its_share_of_the_card_and_a_server_takes_none():
    _, shared = estimate()
    assert shared.generation == pytest.approx(0.6 * CARD - shared.held["weights"])  # Unsloth shares the weights
    assert not shared.together
    _, own = estimate("llama3-8b-mbpp-a100", 80 * GB, grpo__vllm_enable_sleep_mode=False)
    assert own.generation == 0.4 * 80 * GB
    assert own.peak == sum(own.held.values()) + own.generation + own.learning
    assert estimate("llama3-8b-mbpp-multi-gpu", 80 * GB)[1].generation == 0.0


@pytest.mark.parametrize(
    ("name", "gigabytes", "overrides", "remedy"),
    [
        ("llama3-8b-mbpp-24gb", 24, {}, None),
        ("llama3-8b-mbpp-a100", 80, {}, None),
        ("llama3-8b-mbpp-a100", 24, {}, "set model.load_in_4bit to true"),
        ("llama3-8b-mbpp-24gb", 24, {"grpo__vllm_gpu_memory_utilization": 0.97}, "lower grpo.vllm_gpu_memory"),
        ("llama3-8b-mbpp-24gb", 16, {"grpo__per_device_train_batch_size": 32}, "halve grpo.per_device_train"),
    ],
)
def test_the_advice_names_the_largest_thing_that_a_setting_can_lower(name, gigabytes, overrides, remedy):
    recipe, needed = estimate(name, gigabytes * GB, **overrides)
    sentence = training.advice(recipe, needed, gigabytes * GB)
    assert remedy in sentence if remedy else sentence is None

"""The policy: embedded model, generation that does not depend on its batch, adapters that come and go."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, GenerationConfig

from grpo_utils import policy, runs, tasks
from grpo_utils.policy import cpu
from grpo_utils.policy.sampling import Sampler
from grpo_utils.runs import Sampling

RECIPE = runs.load_recipe("smoke-code")
CHATS = [
    tasks.prompt_messages(task, RECIPE.prompt, tasks.worked_examples(RECIPE, 1))
    for task in tasks.load_tasks("starter", "train")[:5]
]
SETTINGS: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 12}
NOTHING = torch.zeros(1, 0, dtype=torch.long)


@pytest.fixture(scope="module")
def loaded():
    """In float32, where two ways to compute the same thing differ by less than one token's margin."""
    return policy.load_policy(runs.load_recipe("smoke-code", {"model.dtype": "float32"}))


def test_the_embedded_model_has_the_right_size_and_special_tokens(loaded):
    assert loaded.model.num_parameters() == 134_515_008
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert loaded.tokenizer.pad_token == "<|endoftext|>"
    assert loaded.tokenizer.padding_side == "left"


def test_code_survives_the_tokenizer_to_the_letter(loaded):
    code = "def f(a , b):\n\treturn [ 'it's' , a != b ]  # 12345"
    assert loaded.tokenizer.decode(loaded.tokenizer(code)["input_ids"]) == code


def test_greedy_generation_equals_plain_generate(loaded):
    """The shared prefix, the padding in the middle and the own attention change nothing."""
    ours = policy.generate_completions(loaded, CHATS, [None] * len(CHATS), batch_size=3, **SETTINGS)
    for chat, sampled in zip(CHATS, ours, strict=True):
        inputs = loaded.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        plain = loaded.model.generate(**inputs, do_sample=False, max_new_tokens=12)
        text = loaded.tokenizer.decode(plain[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert sampled.text == text


def test_the_head_reads_a_slice_of_a_batch_in_one_piece(loaded):
    """Else torch expands its weights, 113 MB in this model, once for each row."""
    tokens = torch.arange(10).reshape(2, 5)
    seen = []
    hook = loaded.model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].is_contiguous()))
    with torch.inference_mode():
        last = loaded.model(input_ids=tokens, logits_to_keep=1).logits
        every = loaded.model(input_ids=tokens).logits
    hook.remove()
    assert seen == [True, True]
    torch.testing.assert_close(last, every[:, -1:], rtol=0.0, atol=1e-3)


@pytest.fixture(scope="module")
def in_bfloat16():
    return policy.load_policy(RECIPE)


def test_packed_weights_give_the_same_numbers_to_the_bit(in_bfloat16):
    tokens = torch.arange(60).reshape(4, 15)
    with torch.inference_mode():
        before = in_bfloat16.model(input_ids=tokens).logits
        with cpu.packed_weights(in_bfloat16.model):
            packed = in_bfloat16.model(input_ids=tokens).logits
        after = in_bfloat16.model(input_ids=tokens).logits
    assert torch.equal(packed, before)
    assert torch.equal(after, before)


def with_lora(model, scale=1.0):
    """The model with a random adapter, `scale` times as large as the one that cpu-code's warm start makes."""
    torch.manual_seed(0)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "down_proj"])
    adapted = get_peft_model(model, lora)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.01 * scale)
    return adapted


@pytest.mark.parametrize(("dtype", "scale"), [("bfloat16", 50.0), ("float32", 0.1)])
def test_packed_weights_have_the_adapter_and_only_while_it_counts(dtype, scale, in_bfloat16, loaded):
    held = {"bfloat16": in_bfloat16, "float32": loaded}[dtype]
    tokens = torch.tensor([ids[-60:] for ids in policy.prompt_ids(held.tokenizer, CHATS)])
    model = with_lora(held.model, scale)
    try:
        with torch.inference_mode():
            plain = torch.log_softmax(model(input_ids=tokens).logits.float(), -1)
            with cpu.packed_weights(model):
                packed = torch.log_softmax(model(input_ids=tokens).logits.float(), -1)
            with model.disable_adapter():
                without = torch.log_softmax(model(input_ids=tokens).logits.float(), -1)
                with cpu.packed_weights(model):
                    base = torch.log_softmax(model(input_ids=tokens).logits.float(), -1)
    finally:
        held.model = model.unload()
    divergence, of_base, change = (
        (one.exp() * (one - other)).sum(-1).mean()
        for one, other in [(plain, packed), (without, base), (plain, without)]
    )
    assert divergence < 0.02 * change, (divergence, change)
    assert of_base < 1e-6


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here")
@pytest.mark.parametrize("scale", [0.1, 0.01])
def test_generation_sees_all_of_a_small_update(scale, in_bfloat16):
    """In weights rounded to bfloat16, 0.37 of it is left at a tenth of the warm start, and 0.04 at a hundredth."""
    model = with_lora(in_bfloat16.model, scale)
    try:
        shares = []
        for lora in (model.model.model.layers[layer].self_attn.q_proj for layer in (3, 20)):
            inputs = torch.randn(20_000, lora.in_features).bfloat16()
            with torch.inference_mode():
                before = lora.get_base_layer()(inputs).float()
                with cpu.packed_weights(lora):
                    after = lora(inputs).float()
            update = inputs.float() @ lora.get_delta_weight("default").detach().T
            shares.append(float(((after - before) * update).sum() / update.square().sum()))
    finally:
        in_bfloat16.model = model.unload()
    assert shares == pytest.approx([1, 1], abs=0.01 if scale == 0.1 else 0.05)


def test_the_memory_of_a_freed_tensor_stays_with_the_process():
    program = """
import torch
from grpo_utils.policy import cpu
cpu.keep_freed_memory()
def pages(): return int(open("/proc/self/statm").read().split()[1])
before = pages()
torch.ones(50_000_000)
print((pages() - before) * 4096)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(printed) > 150_000_000


def test_a_sample_depends_on_its_seed_and_not_on_its_batch(loaded):
    seeds = [11, 12, 13, 14, 15]
    together = policy.generate_completions(loaded, CHATS, seeds, batch_size=5, **SETTINGS)
    apart = policy.generate_completions(loaded, CHATS[::-1], seeds[::-1], batch_size=2, **SETTINGS)[::-1]
    assert together == apart
    other = policy.generate_completions(loaded, CHATS, [seed + 100 for seed in seeds], batch_size=5, **SETTINGS)
    assert [one.text for one in other] != [one.text for one in together]


def test_prompts_of_one_token_and_of_two_share_a_batch(loaded):
    prompts = ["The", "The sum", "Two"]
    assert [len(ids) for ids in policy.prompt_ids(loaded.tokenizer, prompts)] == [1, 2, 1]
    together = policy.generate_completions(loaded, prompts, [None] * 3, batch_size=3, **SETTINGS)
    assert [one.ids for one in together] == [
        policy.generate_completions(loaded, [prompt], [None], batch_size=1, **SETTINGS)[0].ids for prompt in prompts
    ]
    assert all(len(one.ids) > 1 for one in together)


def test_a_completion_holds_its_end_token_unless_it_was_cut_off(loaded):
    question = [{"role": "user", "content": "Say hi."}]
    for limit in (2, 60):
        (one,) = policy.generate_completions(
            loaded, [question], [None], temperature=1.0, max_new_tokens=limit, batch_size=1
        )
        assert one.truncated == (one.ids[-1] != loaded.tokenizer.eos_token_id)
        assert len(one.ids) <= limit
    assert not one.truncated


def test_samples_follow_the_distribution_at_the_temperature():
    logits = torch.tensor([[0.0, 1.0, 2.0, -30.0]]).repeat(4000, 1)
    chosen = Sampler(0.8).choose(logits, torch.rand(4000, generator=torch.Generator().manual_seed(0)))
    shares = torch.bincount(chosen, minlength=4) / 4000
    assert torch.allclose(shares, torch.softmax(logits[0] / 0.8, 0), atol=0.03)


@pytest.mark.parametrize(
    "given",
    [{"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 4, "top_p": 0.95, "min_p": 0.1}, {}],
)
def test_samples_follow_the_distribution_that_transformers_cuts(given, loaded):
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 1.5, 0.4]]).repeat(4000, 1)
    drawn = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    chosen = Sampler(0.8, Sampling(**given)).choose(logits, drawn)
    shares = torch.bincount(chosen, minlength=6) / 4000
    settings: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 0, "top_p": 1.0} | given
    theirs = loaded.model._get_logits_processor(GenerationConfig(**settings), input_ids_seq_length=1, device="cpu")
    expected = torch.softmax(theirs(NOTHING, logits[:1]), -1)[0]
    assert torch.equal(shares == 0, expected == 0)
    assert torch.allclose(shares, expected, atol=0.03)


def test_an_adapter_changes_the_policy_only_while_it_is_switched_in(loaded, tmp_path):
    before = policy.generate_completions(loaded, CHATS[:2], [None, None], batch_size=2, **SETTINGS)
    adapter = get_peft_model(
        loaded.model, LoraConfig(r=8, lora_alpha=64, target_modules=["down_proj"], init_lora_weights=False)
    )
    adapter.save_pretrained(tmp_path)
    loaded.model = adapter.unload()
    with policy.with_adapter(loaded, tmp_path) as changed:
        during = policy.generate_completions(changed, CHATS[:2], [None, None], batch_size=2, **SETTINGS)
    assert during != before
    assert policy.generate_completions(loaded, CHATS[:2], [None, None], batch_size=2, **SETTINGS) == before


def test_a_hub_model_without_network_says_how_to_use_a_local_path(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("We couldn't connect to the hub")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", unreachable)
    with pytest.raises(policy.ModelError, match=r"set model\.name to the path"):
        policy.load_policy(runs.load_recipe("smoke-code", {"model.name": "someone/some-model"}))


def test_an_unknown_embedded_model_is_refused():
    with pytest.raises(policy.ModelError, match="There is no embedded model"):
        policy.load_policy(runs.load_recipe("smoke-code", {"model.name": "embedded:gpt-9"}))

"""What a policy is made of: bases of one name are told apart, adapters stay with theirs, updates are measured."""

import json
import shutil

import pytest
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from grpo_utils import policy, runs
from grpo_utils.policy import ModelError
from grpo_utils.runs import Model


def test_a_copy_is_the_same_base_and_other_weights_under_the_same_name_are_not(tiny_model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_model, folder)
    copy = Model(name=str(folder))
    before = policy.base_fingerprint(copy)
    assert before == policy.base_fingerprint(Model(name=str(tiny_model)))
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in weights.items()}, folder / "model.safetensors")
    assert policy.base_fingerprint(copy) != before


def test_a_model_of_the_hub_is_its_commit(tiny_model, tmp_path, monkeypatch):
    snapshot = tmp_path / "models--someone--some-model" / "snapshots" / "0123abcd"
    shutil.copytree(tiny_model, snapshot)
    monkeypatch.setattr(policy.identity, "cached_file", lambda name, file: str(snapshot / file))
    assert policy.base_fingerprint(Model(name="someone/some-model")) == "commit 0123abcd"


def test_a_model_of_the_hub_without_network_is_one_sentence(monkeypatch):
    def unreachable(*given):
        raise OSError("We couldn't connect to the hub")

    monkeypatch.setattr(policy.identity, "cached_file", unreachable)
    with pytest.raises(ModelError, match=r"set model\.name to the path"):
        policy.base_fingerprint(Model(name="someone/some-model"))


def test_another_chat_template_is_another_base(tiny_model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_model, folder)
    before = policy.identify_base(Model(name=str(folder)))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    after = policy.identify_base(Model(name=str(folder)))
    assert [key for key in before if before[key] != after[key]] == ["chat_template_sha256"]


def test_without_a_chat_template_plain_text_works_and_a_chat_is_refused(tiny_model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").unlink()
    model = Model(name=str(folder))
    assert policy.identify_base(model)["chat_template_sha256"] is None
    tokenizer = policy.load_tokenizer(model)
    assert policy.prompt_ids(tokenizer, ["1 + 1"]) == [tokenizer("1 + 1")["input_ids"]]
    with pytest.raises(ModelError, match="has no chat template"):
        policy.prompt_ids(tokenizer, [[{"role": "user", "content": "1 + 1"}]])


def test_a_begun_answer_is_gone_on_with(tiny_model):
    tokenizer = policy.load_tokenizer(Model(name=str(tiny_model)))
    question = {"role": "user", "content": "1 + 1?"}
    asked, begun = policy.prompt_ids(tokenizer, [[question], [question, {"role": "assistant", "content": "It is"}]])
    assert tokenizer.decode(begun) == f"{tokenizer.decode(asked)}It is"


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 32}}])
def test_the_norm_of_an_update_is_that_of_the_weights_it_changes(settings, tiny_model, tmp_path):
    recipe = runs.load_recipe("smoke-code", {"model": {"name": str(tiny_model), "dtype": "float32"}})
    base = policy.load_policy(recipe).model
    before = {name: parameter.clone() for name, parameter in base.named_parameters()}
    lora = LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **settings)
    adapted: PeftModel = get_peft_model(base, lora)
    adapted.save_pretrained(str(tmp_path))
    merged = adapted.merge_and_unload().state_dict()
    squares = sum(float((merged[name] - old.detach()).double().square().sum()) for name, old in before.items())
    assert policy.update_norm(tmp_path) == pytest.approx(squares**0.5, rel=1e-4)


def test_an_adapter_goes_with_the_base_it_was_trained_on(tmp_path):
    base = {"model": {"name": "mine"}, "base": "commit 1", "chat_template_sha256": None}
    adapter = tmp_path / "checkpoint-1"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    with pytest.raises(ModelError, match=r"has no made_with\.txt that names its base"):
        policy.identify_adapter(adapter, base)
    (tmp_path / policy.MADE_WITH).write_text("base commit 1\ncode 2\n")
    assert len(json.dumps(policy.identify_adapter(adapter, base))) == 66
    with pytest.raises(ModelError, match="was trained on another base model"):
        policy.identify_adapter(adapter, {**base, "base": "commit 2"})
    assert policy.identify_adapter(None, base) is None

"""Export: the merged model answers as base and adapter do, and its card carries the right table or none."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from grpo_utils import policy, runs
from grpo_utils.runs import UserError
from grpo_utils.show import export


@pytest.fixture
def trained(tiny_model):
    """A run with one random adapter of the tiny model."""
    recipe = runs.load_recipe(
        "smoke-code",
        {"model": {"name": str(tiny_model), "dtype": "float32"}, "name": "tiny", "lora.layers_to_transform": None},
    )
    run = runs.start_run(recipe)
    adapted = get_peft_model(policy.load_policy(recipe).model, LoraConfig(init_lora_weights=False, **recipe.lora))
    adapted.save_pretrained(str(run / "checkpoints" / "checkpoint-2"))
    runs.write_file(run / "checkpoints" / policy.MADE_WITH, f"base {policy.base_fingerprint(recipe.model)}\n")
    return recipe, run


def test_the_merged_model_is_base_plus_adapter_and_not_the_base(trained):
    recipe, run = trained
    folder, share = export.merge_adapter(recipe, run, "checkpoint-2")
    assert share == pytest.approx(1)
    base, merged = (
        policy.load_policy(recipe),
        policy.load_policy(runs.load_recipe("smoke-code", {"model": {"name": str(folder), "dtype": "float32"}})),
    )
    tokens = torch.arange(100, 120)[None]
    with torch.inference_mode():
        before, after = base.model(tokens).logits, merged.model(tokens).logits
        with policy.with_adapter(base, run / "checkpoints" / "checkpoint-2") as current:
            expected = current.model(tokens).logits
    assert torch.allclose(after, expected, atol=1e-5)
    assert not torch.allclose(after, before, atol=1e-3)


@pytest.mark.parametrize(("dtype", "least", "most"), [(None, 0.0, 0.9), ("float32", 0.999, 1.001)])
def test_export_says_what_rounding_leaves_of_a_small_update(trained, dtype, least, most):
    recipe, run = trained
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "bfloat16"})})
    path = run / "checkpoints" / "checkpoint-2" / "adapter_model.safetensors"
    save_file({name: one * (2e-4 if "lora_B" in name else 1) for name, one in load_file(path).items()}, path)
    folder, share = export.merge_adapter(recipe, run, "checkpoint-2", dtype)
    assert least < share < most
    # the same from the files alone
    adapter, exported = load_file(path), load_file(folder / "model.safetensors")
    original = load_file(Path(recipe.model.name) / "model.safetensors")
    changes = [
        (original[name].to(torch.bfloat16).float(), exported[name].float(), 2 * adapter[f"{lora}.lora_B.weight"] @ a)
        for key, a in adapter.items()
        for lora in [key.removesuffix(".lora_A.weight")]
        for name in [f"{lora.removeprefix('base_model.model.')}.weight"]
        if lora != key
    ]
    assert len(changes) == 4  # two layers, q and v
    kept = sum(((after - before) * update).sum() for before, after, update in changes)
    assert share == pytest.approx(float(kept / sum(update.square().sum() for _, _, update in changes)), abs=1e-3)


@pytest.mark.parametrize(("checkpoint", "shown"), [("checkpoint-2", True), ("checkpoint-20", False)])
def test_the_card_shows_the_evaluation_of_its_own_checkpoint_only(trained, checkpoint, shown):
    recipe, run = trained
    (run / "results.md").write_text("checkpoint-2 (1-shot, as trained) against the base\n\n| strict | 7.0% |\n")
    text = str(export.model_card(recipe, run, checkpoint))
    assert ("| strict | 7.0% |" in text) == shown
    assert ("not measured" in text) == (not shown)
    assert recipe.to_yaml() in text
    assert ModelCard(text).data.to_dict()["tags"] == ["grpo", "trl"]


def test_a_hub_that_refuses_is_one_sentence(trained, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no token")

    monkeypatch.setattr(export.HfApi, "create_repo", refuse)
    with pytest.raises(UserError, match=r"someone/model cannot be pushed .* `hf auth login`"):
        export.push_model(trained[1], "someone/model")


def test_a_missing_checkpoint_names_the_notebook_that_makes_it(trained):
    recipe, run = trained
    with pytest.raises(runs.RunError, match="run notebook 04_grpo_training first"):
        export.merge_adapter(recipe, run, "checkpoint-9")


def test_the_environment_of_the_run_is_on_the_card(trained):
    recipe, run = trained
    torch_version = json.loads((run / "environment.json").read_text())["packages"]["torch"]
    assert f"torch {torch_version}" in str(export.model_card(recipe, run, "checkpoint-2"))

"""The GPU benchmark runs on a CPU with a tiny model, so that it is ready when there is a GPU."""

import pytest
import torch


@pytest.mark.parametrize("variant", ["TRL's defaults", "recipe"])
def test_a_variant_is_measured_on_a_tiny_model(load_benchmark, variant, tmp_path):
    benchmark = load_benchmark("gpu")
    benchmark.make_model("tiny", tmp_path / "model")
    found = benchmark.measure(benchmark.recipe_of(variant, str(tmp_path / "model"), length=4, steps=2))
    assert found["seconds"] > 0.0
    assert (found["peak"] is None) == (not torch.cuda.is_available())
    assert 0.0 < found["estimate"] < 1.0
    assert benchmark.row(variant, found, length=4).startswith(f"| {variant} | ")


def test_the_variants_differ_in_what_they_are_named_after(load_benchmark):
    benchmark = load_benchmark("gpu")
    found = {name: benchmark.recipe_of(name, "some/model", 512, 4) for name in benchmark.VARIANTS}
    assert [recipe.grpo.get("use_vllm", False) for recipe in found.values()] == [False, False, False, True]
    assert [recipe.model.load_in_4bit for recipe in found.values()] == [False, False, True, False]
    assert ["beta" in recipe.grpo for recipe in found.values()] == [False, True, True, True]

"""A checkpoint -> a plain Hugging Face model: the adapter merged into the weights, with a model card beside them.

`grpo export --recipe cpu-code` exports the checkpoint that notebook 05 chose; `--push USER/MODEL` uploads it too.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from httpx import HTTPError
from huggingface_hub import HfApi, ModelCard, ModelCardData
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from grpo_utils import policy, runs, tasks
from grpo_utils.runs import Recipe, UserError


def merge_adapter(recipe: Recipe, run: Path, checkpoint: str, dtype: str | None = None) -> tuple[Path, float]:
    """Adds a checkpoint's adapter to the weights of its base, and saves model, tokenizer and card.

    The sum is made in float32 and rounded once to `dtype`, by default the recipe's, also where training held the base
    in 4 bits. Rounding loses entries of the update below half a unit in the weight's last place.

    Returns:
        The folder `run/export/<checkpoint>`, which `from_pretrained` and a recipe's `model.name` take, and the share of
        the update that the rounded weights keep (see `merge_rounded`).

    Raises:
        RunError: there is no such checkpoint.
        ModelError: the base cannot be loaded, or is not the one that the adapter was trained on.
    """
    adapter = runs.need_file(run / "checkpoints" / checkpoint, "04_grpo_training")
    policy.identify_adapter(adapter, policy.identify_base(recipe.model))
    whole = recipe.model.model_copy(update={"load_in_4bit": False})
    base = policy.load_policy(recipe.model_copy(update={"model": whole}))
    base.model.to(getattr(torch, dtype or recipe.model.dtype))
    merged, share = merge_rounded(PeftModel.from_pretrained(base.model, adapter))
    folder = run / "export" / checkpoint
    partial = folder.with_name(f"{checkpoint}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    merged.save_pretrained(partial)
    base.tokenizer.save_pretrained(partial)
    model_card(recipe, run, checkpoint).save(partial / "README.md")
    shutil.rmtree(folder, ignore_errors=True)
    return partial.rename(folder), share


def merge_rounded(model: Any) -> tuple[Any, float]:
    """Adds the active adapter of a PEFT model to its weights, layer by layer in float32, and rounds once.

    Returns:
        The model without PEFT, and the share of the update that is kept: the projection of what the weights changed by
        on what they should have, 1 where nothing is lost (or there is no update).
    """
    kept = wanted = 0.0
    for layer in [module for module in model.modules() if isinstance(module, BaseTunerLayer)]:
        weight: Any = layer.get_base_layer().weight
        before = weight.data
        weight.data = before.float()
        layer.merge()
        update, weight.data = weight.data - before.float(), weight.data.to(before.dtype)
        kept += float(((weight.data.float() - before.float()) * update).sum())
        wanted += float(update.square().sum())
    return model.unload(), kept / wanted if wanted else 1.0


def model_card(recipe: Recipe, run: Path, checkpoint: str) -> ModelCard:
    """Returns the model card, with its recipe, and with notebook 05's table if that is of this checkpoint."""
    known = recipe.model.name not in policy.EMBEDDED and not Path(recipe.model.name).exists()
    metadata = ModelCardData(
        base_model=recipe.model.name if known else None,
        datasets=[tasks.HUB[recipe.dataset.name][0]] if recipe.dataset.name in tasks.HUB else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["grpo", "trl"],
    )
    table = run / "results.md"
    measured = table.read_text(encoding="utf-8") if table.is_file() else ""
    if not measured.startswith(f"{checkpoint} ("):
        measured = "This checkpoint was not measured on the test split."
    versions = runs.read_json(run / "environment.json")["packages"]
    sections = [
        f"---\n{metadata.to_yaml()}\n---",
        f"# {recipe.name}, {checkpoint}",
        f"`{recipe.model.name}` after GRPO on {recipe.dataset.name!r} with LoRA, merged. Its system prompt:",
        f"```text\n{recipe.prompt.system}\n```",
        f"## Evaluation\n\n{measured.strip()}",
        "Programs that it writes are untrusted: run them in a sandbox. One training seed is one draw.",
        f"## Recipe\n\nMade with {', '.join(f'{name} {version}' for name, version in versions.items())}.",
        f"```yaml\n{recipe.to_yaml()}```",
    ]
    return ModelCard("\n\n".join(sections) + "\n")


def push_model(folder: Path, name: str) -> str:
    """Uploads an exported model to the hub's repository `user/model`, private if it is new, and returns its address.

    Raises:
        UserError: the hub refused, or cannot be reached.
    """
    hub = HfApi()
    try:
        address = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder)
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{name} cannot be pushed ({type(error).__name__}): log in with `hf auth login` and a token that may write."
        ) from error
    return str(address)

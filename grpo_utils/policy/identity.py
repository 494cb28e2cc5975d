"""What tells one policy from another: its base model, its chat template, its adapter.

Two mistakes are silent otherwise: an adapter in a base that it was not trained on, and one that changes nothing.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from peft import LoraConfig
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file
from transformers.utils.hub import cached_file

from grpo_utils.runs import Model

from .loading import ModelError, load_tokenizer, resolve_model, unreachable_model

MADE_WITH = "made_with.txt"  # beside the adapters of a run, written by `training`
BLOCK, STRIDE = 2**12, 2**18  # bytes read of a file of weights, and how far apart


def identify_base(model: Model) -> dict[str, Any]:
    """Returns what a record says of its base: `model` (the block), `base` (its fingerprint), `chat_template_sha256`.

    Raises:
        ModelError: the model is neither here nor reachable.
    """
    template = load_tokenizer(model).chat_template
    digest = template and hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
    return {"model": model.model_dump(), "base": base_fingerprint(model), "chat_template_sha256": digest}


def base_fingerprint(model: Model) -> str:
    """Returns what tells base models of the same name apart: the hub's commit, or a hash of the folder's weights.

    Of each file of weights the size and 4 KiB out of every 256 KiB are hashed, seconds for 16 GB. Training moves most
    weights, so it is noticed; the change of a single one may not be.

    Raises:
        ModelError: the model is neither here nor reachable.
    """
    folder = Path(resolve_model(model.name))
    if not folder.is_dir():
        try:
            return f"commit {Path(str(cached_file(model.name, 'config.json'))).parent.name}"
        except OSError as error:
            raise unreachable_model(model, error) from error
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            for position in range(0, size, STRIDE):
                file.seek(position)
                digest.update(file.read(BLOCK))
    return f"sha256 {digest.hexdigest()}"


def identify_adapter(adapter: Path | None, base: dict[str, Any]) -> str | None:
    """Returns the sha256 of an adapter's weights, or None for no adapter; `base` is from `identify_base`.

    Raises:
        ModelError: the adapter was trained on another base, or nothing says on which.
    """
    if adapter is None:
        return None
    path = adapter.parent / MADE_WITH
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if f"base {base['base']}" not in lines:
        known = any(line.startswith("base ") for line in lines)
        trained = "was trained on another base model" if known else f"has no {MADE_WITH} that names its base model"
        raise ModelError(
            f"The adapter {adapter.name} {trained}, so it is not evaluated on {base['model']['name']!r}: name the "
            f"model of its training, keep that training's {MADE_WITH} in {adapter.parent}, or train it anew."
        )
    return hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()


def update_norm(adapter: Path) -> float:
    """Returns the Frobenius norm of what a LoRA adapter adds to the linear layers of its base, 0.0 if nothing.

    A layer's update is scale B A (Hu et al. 2021, arXiv 2106.09685). Its squared norm is the sum over the entries of
    (B^T B) * (A A^T), both of the size of the rank, so that B A itself is never made.

    Example:
        >>> import tempfile
        >>> from peft import LoraConfig, get_peft_model
        >>> from torch.nn import Linear, Sequential
        >>> adapted = get_peft_model(Sequential(Linear(3, 2)), LoraConfig(r=1, target_modules=["0"]))
        >>> with tempfile.TemporaryDirectory() as folder:  # before training B is 0
        ...     adapted.save_pretrained(folder)
        ...     update_norm(Path(folder))
        0.0
    """
    config: Any = LoraConfig.from_pretrained(str(adapter))
    weights = load_file(adapter / "adapter_model.safetensors")
    squares = 0.0
    for name in weights:
        layer, found, _ = name.partition(".lora_A.weight")
        if not found:
            continue
        a, b = weights[name].double(), weights[f"{layer}.lora_B.weight"].double()
        alpha = config.alpha_pattern.get(get_pattern_key(config.alpha_pattern, layer), config.lora_alpha)
        scale = alpha / (math.sqrt(len(a)) if config.use_rslora else len(a))
        squares += scale**2 * float(((b.T @ b) * (a @ a.T)).sum())
    return math.sqrt(max(squares, 0.0))

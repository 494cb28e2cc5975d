"""The machine that a run is of: what its processor is, in which type of numbers that is faster, and its cache."""

import contextlib
import functools
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

VECTORS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")  # as Linux calls them
WORTH = 1.3  # times as fast as float32 must bfloat16 be, for what it rounds away


def cache_folder() -> Path:
    """Returns the folder for what is made once per machine, converted models and embeddings: `~/.cache/grpo_utils`."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))  # by its standard an empty or relative path does not count
    return (named if named.is_absolute() else Path.home() / ".cache") / "grpo_utils"


def processor() -> str:
    """Returns the processor's name, and which it has of the extensions that decide how the sums of a model round."""
    found = dict(re.findall(r"^(model name|flags)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE))
    there = [one for one in VECTORS if one in found.get("flags", "").split()]
    name = found.get("model name", platform.processor() or platform.machine()).strip()
    return f"{name} ({', '.join(there)})" if there else name


@functools.cache  # where no file can be kept, every recipe of a process still gets the same answer
def faster_dtype() -> str:
    """Returns in which type a model's weights are held where a recipe says `auto`: `"float32"` or `"bfloat16"`.

    bfloat16 is for processors that multiply with it more than `WORTH` times as fast. That is measured, once in less
    than a second, and kept in the cache by the processor's name: results depend on it.
    """
    path = cache_folder() / f"dtype {re.sub(r'[^0-9A-Za-z]+', '-', processor())}"
    with contextlib.suppress(OSError, UnicodeDecodeError):  # what cannot be kept is measured again
        if (kept := path.read_text(encoding="utf-8")) in ("float32", "bfloat16"):
            return kept
    seconds = _seconds_of_products()
    found = "bfloat16" if seconds["float32"] > WORTH * seconds["bfloat16"] else "float32"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(found, encoding="utf-8")
        partial.replace(path)
    return found


def _seconds_of_products() -> dict[str, float]:
    """The least time of the products of a decoding step of the embedded model, by the type of its numbers."""
    import torch

    mkldnn: Any = torch.ops.mkldnn
    sides = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    least = dict.fromkeys(sides, float("inf"))
    if not mkldnn._is_mkldnn_bf16_supported():
        return least | {"float32": 0.0}
    inputs = {side: torch.ones(64, 576, dtype=dtype) for side, dtype in sides.items()}
    weight = torch.ones(1536, 576)
    weights = {side: [mkldnn._reorder_linear_weight(weight.to(sides[side])) for _ in range(20)] for side in sides}
    for side in [*sides] * 10:  # in turns, so that what else the machine does slows both
        began = time.perf_counter()
        for one in weights[side]:
            mkldnn._linear_pointwise(inputs[side], one, None, "none", [], "")
        least[side] = min(least[side], time.perf_counter() - began)
    return least

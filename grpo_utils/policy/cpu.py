"""What makes a policy fast on a CPU, with the same numbers: attention, the output head, memory."""

import ctypes
import platform
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' sdpa, and for one new token the same without repeating the keys of grouped queries.

    What else models hand over (softcaps, sinks, windows) sdpa does not read either: a model that needs it is not one
    that transformers gives sdpa.
    """
    batch, heads, length, size = query.shape
    groups = key.shape[1]
    masked = attention_mask is not None
    if (
        length > 1
        or query.requires_grad
        or dropout
        or position_bias is not None
        or (masked and (attention_mask.dtype != torch.bool or attention_mask.shape[1] > 1))
    ):
        settings: Any = {"scaling": scaling, "dropout": dropout, "position_bias": position_bias, **kwargs}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)  # type: ignore[return-value]
    scores = query.reshape(batch, groups, heads // groups, size) @ key.transpose(2, 3)
    scores = scores.float() * (size**-0.5 if scaling is None else scaling)
    if masked:  # not -inf: a padded place that sees nothing must not become nan, which other places would take over
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    mixed = torch.softmax(scores, dim=-1).to(value.dtype) @ value
    return mixed.reshape(batch, 1, heads, value.shape[3]), None


AttentionInterface.register("cpu_attention", _attention)
AttentionMaskInterface.register("cpu_attention", sdpa_mask)


def prepare(model: PreTrainedModel) -> None:
    """Makes a model fast here: its attention, if it is sdpa's, its output head, and the memory of the process."""
    # where the implementation is chosen by name in a table of the model's own, this one is not in it
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation("cpu_attention")
    if (head := model.get_output_embeddings()) is not None:
        head.register_forward_pre_hook(_contiguous)
    if platform.libc_ver()[0] == "glibc":
        keep_freed_memory()


def _contiguous(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The states that the head reads, in one piece: for a slice, torch would copy the head's weights for every row."""
    return tuple(one.contiguous() for one in inputs)


def keep_freed_memory() -> None:
    """Has glibc keep the memory of freed tensors, which the next ones take, instead of giving it back to the kernel.

    The kernel zeroes every page that it hands out again, which is slow on a virtual machine. It holds for the whole
    process, which then never shrinks.
    """
    libc, trim_threshold, mmap_max = ctypes.CDLL("libc.so.6"), -1, -4  # the names of these two in mallopt(3)
    libc.mallopt(trim_threshold, -1)
    libc.mallopt(mmap_max, 0)

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
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for one new token on a CPU, without repeating the keys of grouped queries; else transformers' sdpa."""
    batch, heads, length, size = query.shape
    if length > 1 or query.requires_grad:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)  # type: ignore[return-value]
    groups = key.shape[1]
    scores = query.reshape(batch, groups, heads // groups, size) @ key.transpose(2, 3)
    scores = scores.float() * (scaling or size**-0.5)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, float("-inf"))
    mixed = torch.softmax(scores, dim=-1).to(value.dtype) @ value
    return mixed.reshape(batch, 1, heads, size), None


AttentionInterface.register("cpu_attention", _attention)
AttentionMaskInterface.register("cpu_attention", sdpa_mask)


def prepare(model: PreTrainedModel) -> None:
    """Has a model's output head read slices without copying its weights, and the process keep freed memory."""
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

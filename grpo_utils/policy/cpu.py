"""What makes a policy fast on a CPU: attention, packed weights, the output head, memory."""

import ctypes
import functools
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
ATTENTION = "cpu_attention"


class Branches:
    """Several continuations of one text in one row: the text, then each continuation, which sees the text and itself.

    Args:
        start: tokens of the text.
        lengths: tokens of the continuations.
    """

    def __init__(self, start: int, lengths: Sequence[int]) -> None:
        self.start = start
        first = torch.tensor([start, *lengths]).cumsum(0)[:-1]
        within = torch.arange(max(lengths))
        exists = within < torch.tensor(lengths)[:, None]
        self.position = torch.cat([torch.arange(start), (start + within).expand(len(lengths), -1)[exists]])
        self.places = (first[:, None] + within).where(exists, 0)  # of the continuations' tokens, one in a line
        self.back = exists.flatten().nonzero().flatten()
        # added to scores: 0, or what makes a token's share 0
        self.causal, own = (torch.full((n, n), -torch.inf).triu(1) for n in (start, len(within)))
        self.mask = torch.cat([torch.zeros(len(within), start), own], dim=1)
        owner = torch.cat([torch.zeros(start), *(torch.full((n,), i + 1.0) for i, n in enumerate(lengths))])
        self.whole_mask = ((owner == 0) | (owner[:, None] == owner)).tril()[None, None]

    def attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        """What sdpa gives with `whole_mask` (1 x 1 x tokens x tokens), without what that hides."""
        text = [one[:, :, : self.start] for one in (query, key, value)]
        of_text = _mixed(text[0], text[1], text[2], self.causal, scale)
        if not len(self.back):
            return of_text
        query, key, value = (one[0][:, self.places].transpose(0, 1) for one in (query, key, value))
        keys, values = (
            torch.cat([before.expand(len(own), -1, -1, -1), own], dim=2)
            for before, own in ((text[1], key), (text[2], value))
        )
        of_branches = _mixed(query, keys, values, self.mask, scale)
        return torch.cat([of_text, of_branches.flatten(0, 1)[self.back][None]], dim=1)


def _mixed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention (rows x tokens x heads x size) by plain products, whose backward pass is faster than sdpa's."""
    rows, heads, length, size = query.shape
    groups = key.shape[1]
    together = query.reshape(rows, groups, -1, size)
    scores = (together @ key.transpose(2, 3)).view(rows, groups, -1, length, key.shape[2])
    shares = torch.softmax(torch.add(mask, scores, alpha=scale), dim=-1).to(value.dtype)
    mixed = shares.view(rows, groups, -1, key.shape[2]) @ value
    return mixed.view(rows, heads, length, -1).transpose(1, 2)


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    shared: Sequence[KeysAndValues] | None = None,
    seen: dict[int, KeysAndValues] | None = None,
    branches: Branches | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' sdpa, and for one new token the same without repeating the keys of grouped queries.

    What else models hand over (softcaps, sinks, windows) sdpa does not read either: a model that needs it is not one
    that transformers gives sdpa. Three more arguments of a model's `forward` reach it:

    Args:
        shared: for each layer keys and values (1 x heads x tokens x size) that stand before those of every row, and
            that all rows see: one product for all of them in the place of one each (Juravsky et al. 2024, "Hydragen",
            arXiv 2402.05099). For one new token only.
        seen: takes the keys and values of each layer that could read `shared`.
        branches: what the mask says in another way, by which less is computed.
    """
    batch, heads, length, size = query.shape
    is_plain = position_bias is None and not dropout
    if attention_mask is not None:
        is_plain = is_plain and attention_mask.dtype == torch.bool and attention_mask.shape[1] == 1
    if seen is not None and is_plain:
        seen[module.layer_idx] = key, value
    scale = size**-0.5 if scaling is None else scaling
    if branches and is_plain:
        return branches.attention(query, key, value, scale), None
    if length > 1 or query.requires_grad or not is_plain:
        settings: Any = {"scaling": scaling, "dropout": dropout, "position_bias": position_bias, **kwargs}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)  # type: ignore[return-value]
    groups = key.shape[1]
    query = query.reshape(batch, groups, heads // groups, size)
    hidden = torch.zeros(1)  # in float32, as the sums with it
    if attention_mask is not None:  # not -inf: a padded place that sees nothing must not become nan
        hidden = torch.zeros(attention_mask.shape).masked_fill_(~attention_mask, torch.finfo(torch.float32).min)
    scores = torch.add(hidden, query @ key.transpose(2, 3), alpha=scale)
    shares = torch.softmax(scores, dim=-1)
    mixed = shares.to(value.dtype) @ value
    if shared is not None:
        keys, values = (one[0] for one in shared[module.layer_idx])
        together = query.transpose(0, 1).reshape(groups, -1, size)  # the queries of all rows
        scores_before = torch.add(torch.zeros(1), together @ keys.transpose(1, 2), alpha=scale)
        shares_before = torch.softmax(scores_before, dim=-1)
        pair = shares_before.to(values.dtype) @ values, _log_total(scores_before, shares_before)
        before, total = (one.view(groups, batch, heads // groups, -1).transpose(0, 1) for one in pair)
        weight = torch.sigmoid(total - _log_total(scores, shares))
        mixed = (weight * before + (1 - weight) * mixed).to(mixed.dtype)
    return mixed.reshape(batch, 1, heads, value.shape[3]), None


def _log_total(scores: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum of the scores' exponentials, from their softmax."""
    return scores.amax(-1, keepdim=True) - shares.amax(-1, keepdim=True).log()


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@contextmanager
def packed_weights(model: torch.nn.Module) -> Iterator[None]:
    """In the block, products with a model's weights read copies of these, in the order in which they are read.

    That order is oneDNN's: otherwise it makes it anew for every product. To weights in float32 an adapter is added, so
    that it costs nothing; in bfloat16 it stays apart, as in `round_once`. What changes a weight in the block is not
    seen. For inference alone.
    """
    packed: dict[Any, Any] = {}  # what a layer's own `forward` was
    modules: list[Any] = list(model.modules())  # a layer with an adapter comes before the layer in it
    for module in modules:
        active = _active(module)
        layer = module.get_base_layer() if active else module
        if type(layer) is torch.nn.Linear and layer not in packed and layer.weight.dtype in _packable(layer):
            packed |= {one: vars(one).get("forward") for one in (module, layer)}
            vars(module)["forward"] = _packed_forward(layer, module, active)
    try:
        yield
    finally:
        for module, before in packed.items():
            vars(module).pop("forward", None)
            if before:
                vars(module)["forward"] = before


def round_once(model: torch.nn.Module) -> None:
    """Has a model in training add its adapter's update to the sums of each product, before these are rounded.

    PEFT adds it to the rounded product. In bfloat16 that loses what is below half a unit in the product's last place,
    most of a small update, and the policy that is trained would not be the one that `packed_weights` lets write.
    """
    modules: list[Any] = list(model.modules())
    for module in modules:
        if _active(module) and module.get_base_layer().weight.dtype in {torch.bfloat16} & _packable(module):
            vars(module)["forward"] = functools.partial(_forward_rounded_once, module)


def _active(module: Any) -> list[str]:
    """The adapters that a layer adds to its product, where they are plain LoRA."""
    is_plain = type(module) is LoraLinear and not (module.merged or module.disable_adapters or len(module.lora_variant))
    return [name for name in module.active_adapters if name in module.lora_A] if is_plain else []


def _packable(layer: torch.nn.Module) -> set[torch.dtype]:
    """The types of weights with which oneDNN computes fast on the layer's device."""
    if next(layer.parameters()).device.type != "cpu":
        return set()
    return {torch.float32, *[torch.bfloat16] * torch.ops.mkldnn._is_mkldnn_bf16_supported()}


def _packed_forward(layer: torch.nn.Linear, lora: Any, active: Sequence[str]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns what computes the product of a layer and of the active adapters of its `LoraLinear`."""
    weight, pack = layer.weight.detach(), torch.ops.mkldnn._reorder_linear_weight
    if weight.dtype == torch.float32 or not active:
        merged = sum((lora.get_delta_weight(name) for name in active), weight)
        return functools.partial(_product, pack(merged), layer.bias)
    thin = (
        torch.cat([lora.lora_A[name].weight for name in active]),
        torch.cat([lora.lora_B[name].weight * lora.scaling[name] for name in active], dim=1),
    )
    read, write = (pack(one.detach().to(weight.dtype)) for one in thin)
    weight = pack(weight)
    return lambda inputs: _sum(inputs, _product(write, None, _product(read, None, inputs)), weight, layer.bias)


def _forward_rounded_once(lora: Any, inputs: torch.Tensor) -> torch.Tensor:
    """What `LoraLinear` computes, rounded once."""
    if not (active := _active(lora)):
        return lora.get_base_layer()(inputs)
    read = inputs.to(lora.lora_A[active[0]].weight.dtype)
    parts = (
        lora.lora_B[name](lora.lora_A[name](lora.lora_dropout[name](read))) * lora.scaling[name] for name in active
    )
    layer = lora.get_base_layer()
    return _Sum.apply(inputs, sum(parts).to(inputs.dtype), layer.weight, layer.bias)  # type: ignore[union-attr]


class _Sum(torch.autograd.Function):
    """`_sum` with the gradients of inputs and update; the weights are frozen."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, update: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return _sum(inputs, update, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors
        return gradient @ weight if ctx.needs_input_grad[0] else None, gradient, None, None


def _product(weight: torch.Tensor, bias: torch.Tensor | None, inputs: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def _sum(inputs: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A product with the weights of a layer, its bias and an update, added up in float32 and rounded once."""
    return torch.ops.mkldnn._linear_pointwise.binary(inputs, update, weight, bias, "add")


def prepare(model: PreTrainedModel) -> None:
    """Makes a model fast here: its attention, if it is sdpa's, its output head, and the memory of the process."""
    # where the implementation is chosen by name in a table of the model's own, this one is not in it
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(ATTENTION)
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

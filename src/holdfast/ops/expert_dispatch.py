"""Reference path of the expert layer: sort pairs by expert, two grouped matrix products, and a weighted sum.

t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, h hidden width
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.dynamo import constant

_grouped_mm = getattr(F, "grouped_mm", None)  # torch 2.10 and later
_capability = functools.cache(torch.cuda.get_device_capability)
FeedForward = tuple[Tensor, Tensor | None, Tensor, Tensor | None]  # weights and biases, up and down


@dataclass(frozen=True, slots=True)
class SortedPairs:
    """Pairs of a token and an expert sorted by expert; unsorted, pairs are numbered by choice, then by token."""

    order: Tensor  # (s,) pair at each position
    position: Tensor  # (s,) position of each pair
    token: Tensor  # (s,) token at each position
    expert: Tensor  # (s,) expert at each position
    ends: Tensor  # (e,) int32, end of each expert's pairs
    within: Tensor | None = None  # (s,) by position, whether the pair is within the capacity; None: all are

    def load(self) -> Tensor:
        """Return each expert's share of the pairs (e,)."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)) / len(self.order)


def sort_pairs(
    chosen: Tensor, experts: int, *, first: Tensor | None = None, capacity: int | None = None
) -> SortedPairs:
    """Sort the pairs of `chosen` (t, k) by expert: first choices before second ones, tokens in the order `first` (t,).

    With a `capacity` an expert keeps that number of pairs, the first ones. No operation waits for the device.
    """
    t, k = chosen.shape
    expert = (chosen if first is None else chosen[first]).T.reshape(-1)  # (s,) by choice
    # sorting bytes takes one pass
    narrow = torch.uint8 if experts < 1 << 8 else torch.int16 if experts < 1 << 15 else torch.int64
    expert, order = expert.to(narrow).sort(stable=True)
    token = order if k == 1 else order % t
    if first is not None:
        order, token = order - token + first[token], first[token]
    position = torch.empty_like(order).scatter_(0, order, torch.arange(t * k, device=chosen.device))
    expert = expert.long()
    ends = torch.searchsorted(expert, torch.arange(experts, device=chosen.device), right=True, out_int32=True)
    within = None
    if capacity is not None:
        starts = F.pad(ends[:-1], (1, 0))
        within = torch.arange(t * k, device=chosen.device) - starts[expert] < capacity
    return SortedPairs(order, position, token, expert, ends, within)


def by_confidence(noisy: Tensor, mask: Tensor | None) -> Tensor:
    """Return tokens (t,) by decreasing probability of their first choice, padding last: late ones may be dropped."""
    best = noisy.detach().softmax(dim=-1).amax(dim=-1)
    if mask is not None:
        best = best.masked_fill(~mask, -1.0)
    return best.argsort(descending=True, stable=True)


def expert_capacity(tokens: int, experts: int, *, top: int, factor: float) -> int:
    """Return the number of pairs per expert, k int(factor ceil(t / e)), as in the code of GMoE."""
    return top * int(factor * math.ceil(tokens / experts))


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows x (s, i), sorted by expert, by the transposed weight (e, o, i) of their expert; returns (s, o)."""
    if supports_grouped_mm(x, weight):
        return grouped_mm(x, weight.transpose(-2, -1), ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([F.linear(rows, w) for rows, w in zip(x.split(sizes), weight.unbind(0), strict=True)])


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Call torch's grouped product, where `supports_grouped_mm`.

    Rows (s, i) times (e, i, o) give (s, o); columns (i, s) times rows (s, o) give (e, i, o), one product per expert.
    """
    assert _grouped_mm is not None
    return _grouped_mm(x, weight, offs=ends)


def supports_grouped_mm(x: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether torch has this product: bf16 on GPUs of compute capability 8.0, fp32 on CPUs, rows of 16 bytes.

    A compiled program has it in bf16 only, also on CPUs. `dtype` is the dtype of both, if not that of x.
    """
    if _grouped_mm is None or not len(x):
        return False
    dtype, compiled = dtype or x.dtype, torch.compiler.is_compiling()
    if x.is_cuda:
        supported = dtype == torch.bfloat16 and _device_has_grouped_mm(x.device)
    else:
        supported = x.device.type == "cpu" and dtype == (torch.bfloat16 if compiled else torch.float32)
    sizes = [weight.shape[-1] * dtype.itemsize, weight.shape[-2] * dtype.itemsize]
    if not compiled:  # tensors of a compiled program have no addresses yet; they will be aligned
        sizes += [x.data_ptr(), weight.data_ptr()]
    return supported and not any(size % 16 for size in sizes)


@constant
def _device_has_grouped_mm(device: torch.device) -> bool:
    return _capability(device) >= (8, 0)


def apply_experts(
    u: Tensor, gates: Tensor, pairs: SortedPairs, weights: FeedForward, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return sum_j gate_j E_j(u) over the chosen experts of each token (t, d), with gates (t, k).

    `activation` maps the hidden rows (s, h). Pairs beyond the capacity add nothing.
    """
    up, up_bias, down, down_bias = weights
    x = GatherPairs.apply(u, pairs.token, pairs.position)  # (s, d)
    if pairs.within is not None:
        gates = gates * pairs.within[pairs.position].view(gates.shape[1], -1).T
    # a compiler fuses an addition out of place with what follows
    out_of_place = torch.compiler.is_compiling() or up_bias is None
    one_hot = None if out_of_place else expert_one_hot(pairs.expert, len(up), x.dtype)
    hidden = _add_bias(grouped_linear(x, up, pairs.ends), up_bias, pairs.expert, one_hot)
    hidden = activation(hidden)  # (s, h)
    y = _add_bias(grouped_linear(hidden, down, pairs.ends), down_bias, pairs.expert, one_hot)  # (s, d)
    pair_gates = GatherPairs.apply(gates.T.reshape(-1), pairs.order, pairs.position)  # (s,), one position per pair
    return SumPairs.apply(y * pair_gates[:, None].to(y.dtype), pairs.token, pairs.position, len(u))


def apply_all_experts(
    u: Tensor, gates: Tensor, chosen: Tensor, weights: FeedForward, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the result of `apply_experts` by applying every expert to every token.

    It needs no sort and no data-dependent sizes, so an exported program can contain it.
    """
    up, up_bias, down, down_bias = weights
    none = torch.zeros(u.shape[0], up.shape[0], dtype=gates.dtype, device=u.device)
    dense = none.scatter(1, chosen, gates)  # (t, e)
    out = torch.zeros_like(u)
    for e, gate in enumerate(dense.to(u.dtype).unbind(1)):
        biases = (None if bias is None else bias[e].to(u.dtype) for bias in (up_bias, down_bias))
        hidden = activation(F.linear(u, up[e], next(biases)))
        out = out + gate[:, None] * F.linear(hidden, down[e], next(biases))
    return out


def _add_bias(y: Tensor, bias: Tensor | None, expert: Tensor, one_hot: Tensor | None) -> Tensor:
    """Add the bias of each row's expert; in place with `one_hot`, out of place the sum would first copy all of y."""
    if bias is None:
        return y
    if one_hot is None:
        return AddBias.apply(y, bias, expert)  # pyright: ignore[reportReturnType]
    return y.addmm_(one_hot, F.pad(bias.to(y.dtype), (0, 0, 0, one_hot.shape[1] - len(bias))))


def sum_pairs(y: Tensor, position: Tensor, tokens: int) -> Tensor:
    """Return the sum of the rows of pairs (s, ...) per token (t, ...), given the position of each pair."""
    if not tokens:
        return y.new_zeros(0, *y.shape[1:])
    rows = y.index_select(0, position).view(-1, tokens, *y.shape[1:])  # (k, t, ...)
    return rows[0] if len(rows) == 1 else rows.sum(dim=0)


class GatherPairs(torch.autograd.Function):
    """Rows of tokens (t, ...) at the positions of their pairs (s, ...); its backward pass is `SumPairs`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, position: Tensor) -> Tensor:
        ctx.save_for_backward(token, position)
        ctx.tokens = len(x)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        token, position = ctx.saved_tensors
        return SumPairs.apply(grads[0], token, position, ctx.tokens), None, None  # pyright: ignore[reportReturnType]


class SumPairs(torch.autograd.Function):
    """Sum of the rows of pairs (s, ...) per token (t, ...); its backward pass is `GatherPairs`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, token: Tensor, position: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(token, position)
        return sum_pairs(y, position, tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        rows = GatherPairs.apply(grads[0].contiguous(), *ctx.saved_tensors)
        return rows, None, None, None  # pyright: ignore[reportReturnType]


class AddBias(torch.autograd.Function):
    """y (s, d) plus the bias (e, d) of each row's expert; the bias gradient is a product, without atomic additions."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor, expert: Tensor) -> Tensor:
        ctx.save_for_backward(expert)
        ctx.shape, ctx.dtype = bias.shape, bias.dtype
        return y + bias.to(y.dtype).index_select(0, expert)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None]:
        (expert,) = ctx.saved_tensors
        by_bias = expert_one_hot(expert, ctx.shape[0], grads[0].dtype).T @ grads[0]
        return grads[0], by_bias[: ctx.shape[0]].to(ctx.dtype), None


def expert_one_hot(expert: Tensor, experts: int, dtype: torch.dtype) -> Tensor:
    """Return the one-hot expert of each row (s, e), padded to a multiple of 8 columns for fast products."""
    columns = -(-experts // 8) * 8
    return (expert[:, None] == torch.arange(columns, device=expert.device)).to(dtype)

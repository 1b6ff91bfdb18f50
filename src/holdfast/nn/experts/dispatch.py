"""Tokens to their experts and back: one sort by expert, two grouped matrix products, and a weighted sum.

t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, h hidden width
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_grouped_mm = getattr(F, "grouped_mm", None)  # torch from 2.10 on


@dataclass(frozen=True, slots=True)
class Places:
    """Where each pair lies when pairs stand expert after expert; pairs are numbered choice after choice."""

    order: Tensor  # (s,) the pair at each place
    place: Tensor  # (s,) the place of each pair
    token: Tensor  # (s,) the token at each place
    expert: Tensor  # (s,) the expert at each place
    ends: Tensor  # (e,) int32, where each expert's pairs end
    kept: Tensor | None = None  # (s,) by place, whether an expert had room; None where all are kept

    def load(self) -> Tensor:
        """(e,) which share of the pairs each expert has."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)) / len(self.order)


def place_pairs(chosen: Tensor, experts: int, *, first: Tensor | None = None, room: int | None = None) -> Places:
    """Sort the pairs of `chosen` (t, k) by expert: first choices before second ones, tokens in the order `first` (t,).

    With `room` an expert keeps so many pairs, those that come first. Nothing here waits for the device.
    """
    t, k = chosen.shape
    expert = (chosen if first is None else chosen[first]).T.reshape(-1)  # (s,) choice after choice
    # a sort of bytes takes one pass over them
    narrow = torch.uint8 if experts < 1 << 8 else torch.int16 if experts < 1 << 15 else torch.int64
    expert, order = expert.to(narrow).sort(stable=True)
    token = order if k == 1 else order % t
    if first is not None:
        order, token = order - token + first[token], first[token]
    place = torch.empty_like(order).scatter_(0, order, torch.arange(t * k, device=chosen.device))
    expert = expert.long()
    ends = torch.searchsorted(expert, torch.arange(experts, device=chosen.device), right=True, out_int32=True)
    kept = None
    if room is not None:
        starts = F.pad(ends[:-1], (1, 0))
        kept = torch.arange(t * k, device=chosen.device) - starts[expert] < room
    return Places(order, place, token, expert, ends, kept=kept)


def room_for(tokens: int, experts: int, *, top: int, factor: float) -> int:
    """How many pairs an expert takes: k int(factor ceil(t / e)), as in the code of GMoE."""
    return top * int(factor * math.ceil(tokens / experts))


def grouped(x: Tensor, weight: Tensor, ends: Tensor, *, loop: bool = False) -> Tensor:
    """x (s, i) times the transposed weight (e, o, i) of each row's expert, (s, o); rows stand expert after expert."""
    if not loop and fits(x, weight):
        return grouped_there(x, weight, ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    pieces = [F.linear(piece, own) for piece, own in zip(x.split(sizes), weight.unbind(0), strict=True)]
    return torch.cat(pieces)


def grouped_there(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The same, where it is known that the product fits."""
    assert _grouped_mm is not None
    return _grouped_mm(x, weight.transpose(-2, -1), offs=ends)


def grouped_back(grad: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """(s, i) what comes back to the rows of `grouped`, where the product fits."""
    assert _grouped_mm is not None
    return _grouped_mm(grad, weight, offs=ends)


def weight_back(grad: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """(e, o, i) what comes back to its weight."""
    assert _grouped_mm is not None
    return _grouped_mm(grad.T, x, offs=ends)


_capability = functools.cache(torch.cuda.get_device_capability)


def fits(x: Tensor, weight: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether torch has this product: bf16 on a GPU that knows it, fp32 on a CPU, rows of whole 16 bytes.

    A compiled program has it in bf16 alone, on a CPU too. `dtype` is the type that both will be in, if not that of x.
    """
    if _grouped_mm is None or not len(x):
        return False
    dtype, compiled = dtype or x.dtype, torch.compiler.is_compiling()
    if x.is_cuda:
        able = dtype == torch.bfloat16 and _new_enough(x.device)
    else:
        able = x.device.type == "cpu" and dtype == (torch.bfloat16 if compiled else torch.float32)
    sizes = [weight.shape[-1] * dtype.itemsize, weight.shape[-2] * dtype.itemsize]
    if not compiled:  # what is compiled has no addresses yet, and begins at even ones
        sizes += [x.data_ptr(), weight.data_ptr()]
    return able and not any(size % 16 for size in sizes)


def _new_enough(device: torch.device) -> bool:
    if torch.compiler.is_compiling():
        from holdfast.nn.experts.compiling import new_enough

        return new_enough(device)
    return _capability(device) >= (8, 0)


def without_waiting(device: torch.device) -> bool:
    """Whether grouped products leave the sizes of groups on this GPU; on others torch brings them to the host."""
    return device.type == "cuda" and _capability(device)[0] in (9, 10)


def through_experts(
    u: Tensor,
    gates: Tensor,
    at: Places,
    parts: tuple[Tensor, Tensor | None, Tensor, Tensor | None],
    between: Callable[[Tensor], Tensor],
    *,
    loop: bool = False,
) -> Tensor:
    """sum_j gate_j E_j(u) over the chosen experts of each token (t, d), with gates (t, k).

    `parts` are the weights and biases up and down, `between` the activation and what else lies between them. Pairs
    that were not kept add nothing. `loop` forces the way for shapes and versions without a grouped product.
    """
    up, up_bias, down, down_bias = parts
    x = Spread.apply(u, at.token, at.place)  # (s, d)
    if at.kept is not None:
        gates = gates * at.kept[at.place].view(gates.shape[1], -1).T
    # a compiler fuses what is added out of place with what comes next
    whole = torch.compiler.is_compiling() or up_bias is None
    member = None if whole else member_of(at.expert, len(up), x.dtype)
    hidden = between(_biased(grouped(x, up, at.ends, loop=loop), up_bias, at.expert, member))  # (s, h)
    y = _biased(grouped(hidden, down, at.ends, loop=loop), down_bias, at.expert, member)  # (s, d)
    weights = Spread.apply(gates.T.reshape(-1), at.order, at.place)  # (s,) a pair has one place
    return Collect.apply(y * weights[:, None].to(y.dtype), at.token, at.place, len(u))


def through_all(
    u: Tensor,
    gates: Tensor,
    chosen: Tensor,
    parts: tuple[Tensor, Tensor | None, Tensor, Tensor | None],
    between: Callable[[Tensor], Tensor],
) -> Tensor:
    """The same with every token through every expert: no sort and no counts, so that a recorded program can hold it."""
    up, up_bias, down, down_bias = parts
    none = torch.zeros(u.shape[0], up.shape[0], dtype=gates.dtype, device=u.device)
    spread = none.scatter(1, chosen, gates)  # (t, e)
    out = torch.zeros_like(u)
    for e, gate in enumerate(spread.to(u.dtype).unbind(1)):
        biases = (None if bias is None else bias[e].to(u.dtype) for bias in (up_bias, down_bias))
        hidden = between(F.linear(u, up[e], next(biases)))
        out = out + gate[:, None] * F.linear(hidden, down[e], next(biases))
    return out


def _biased(y: Tensor, bias: Tensor | None, expert: Tensor, member: Tensor | None) -> Tensor:
    """The bias of each row's expert added; with `member` in place, where the product would first copy all of y."""
    if bias is None:
        return y
    if member is None:
        return Biased.apply(y, bias, expert)  # pyright: ignore[reportReturnType]
    return y.addmm_(member, F.pad(bias.to(y.dtype), (0, 0, 0, member.shape[1] - len(bias))))


class Spread(torch.autograd.Function):
    """Rows of tokens (t, ...) to the places of their pairs (s, ...); the way back is `Collect`: both only gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(token, place)
        ctx.tokens = len(x)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        token, place = ctx.saved_tensors
        return Collect.apply(grads[0], token, place, ctx.tokens), None, None  # pyright: ignore[reportReturnType]


class Collect(torch.autograd.Function):
    """Rows at places (s, ...) added up by token (t, ...); the way back is `Spread`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, token: Tensor, place: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(token, place)
        if not tokens:
            return y.new_zeros(0, *y.shape[1:])
        pairs = y.index_select(0, place).view(-1, tokens, *y.shape[1:])  # (k, t, ...)
        return pairs[0] if len(pairs) == 1 else pairs.sum(dim=0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        token, place = ctx.saved_tensors
        return Spread.apply(grads[0].contiguous(), token, place), None, None, None  # pyright: ignore[reportReturnType]


class Biased(torch.autograd.Function):
    """y (s, d) plus the bias (e, d) of each row's expert; the way back is a product, which needs no atomics."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor, expert: Tensor) -> Tensor:
        ctx.save_for_backward(expert)
        ctx.shape, ctx.dtype = bias.shape, bias.dtype
        return y + bias.to(y.dtype).index_select(0, expert)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None]:
        (expert,) = ctx.saved_tensors
        by_bias = member_of(expert, ctx.shape[0], grads[0].dtype).T @ grads[0]
        return grads[0], by_bias[: ctx.shape[0]].to(ctx.dtype), None


def member_of(expert: Tensor, experts: int, dtype: torch.dtype) -> Tensor:
    """(s, e) one where a row is its expert's; whole 16 bytes a row make products with it quick."""
    wide = -(-experts // 8) * 8
    return (expert[:, None] == torch.arange(wide, device=expert.device)).to(dtype)

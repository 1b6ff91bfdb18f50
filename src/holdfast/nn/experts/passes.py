"""What rows go through around the products of experts: to their places, through bias and GELU, and back, weighted.

t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, h hidden width
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.kernels import kernels_unless_compiled, through_plain


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
        fast = kernels_unless_compiled("experts", y) if y.ndim == 2 and len(y) > tokens else None
        if fast is not None:
            return fast.combine(y.contiguous(), None, None, token, place, tokens)
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


class BiasedGelu(torch.autograd.Function):
    """GELU(x + bias of the row's expert) by kernels; x is (s, h), bias (e, h) or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, expert: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias, expert, ends)
        return kernels_unless_compiled("experts", x).gelu(x.contiguous(), bias, expert)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        x, bias, expert, ends = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone will differentiate this once more
            return *through_plain(_biased_gelu, (x, bias, expert), ctx.needs_input_grad[:3], grads), None
        fast = kernels_unless_compiled("experts", x)
        return *fast.gelu_back(x.contiguous(), bias, expert, ends, grads[0].contiguous()), None, None


class Combine(torch.autograd.Function):
    """sum_j gate_j (y_j + bias_j) over the pairs of each token, by kernels; y is (s, d), gates (t, k)."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, bias: Tensor | None, gates: Tensor, expert: Tensor, order: Tensor, place: Tensor,
        ends: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(y, bias, gates, expert, order, place, ends)
        fast = kernels_unless_compiled("experts", y)
        return fast.combine(y.contiguous(), bias, gates, expert, place, len(gates))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        y, bias, gates, expert, order, place, ends = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = through_plain(_combined, (y, bias, gates, expert, place), ctx.needs_input_grad[:5], grads)
            return *found, None, None
        fast = kernels_unless_compiled("experts", y)
        found = fast.combine_back(y.contiguous(), bias, gates, expert, order, ends, grads[0].contiguous())
        return *found, None, None, None, None


def _biased_gelu(x: Tensor, bias: Tensor | None, expert: Tensor) -> Tensor:
    return F.gelu(x if bias is None else Biased.apply(x, bias, expert))  # pyright: ignore[reportArgumentType]


def _combined(y: Tensor, bias: Tensor | None, gates: Tensor, expert: Tensor, place: Tensor) -> Tensor:
    if bias is not None:
        y = Biased.apply(y, bias, expert)  # pyright: ignore[reportAssignmentType]
    pairs = y.index_select(0, place).view(gates.shape[1], *gates.shape[:1], -1)  # (k, t, d)
    return (pairs * gates.T[..., None].to(y.dtype)).sum(dim=0)

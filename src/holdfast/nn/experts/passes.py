"""What rows go through around the products of experts: to their places, with a bias added, and back.

t tokens, k chosen, s = t k pairs of a token and an expert, e experts, d width, h hidden width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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

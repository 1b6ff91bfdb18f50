"""Softmax over slots with its sum over heads, for reads whose heads share their values.

h heads, b batch, m slots
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.core.exporting import exporting
from holdfast.nn.kernels import kernels

LEAST = 1 << 20  # scores; fewer are done sooner than a kernel of our own is called


def softmax_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(b, m) sum_h softmax_m(scores), and the weights (h, b, m); both can be differentiated."""
    many = not exporting() and scores.numel() >= LEAST  # a program is for any number of examples: it must not ask
    fast = kernels("heads", scores) if many else None
    if fast is not None and scores.shape[-1] <= fast.WIDEST:
        return _SoftmaxSum.apply(scores)  # pyright: ignore[reportReturnType]
    weights = scores.softmax(dim=-1)
    return weights.sum(dim=0), weights


class _SoftmaxSum(torch.autograd.Function):
    """The kernels; whatever they cannot differentiate goes through plain tensors."""

    @staticmethod
    def forward(scores: Tensor) -> tuple[Tensor, Tensor]:
        fast = kernels("heads", scores)
        assert fast is not None
        return fast.softmax_sum(scores.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[1])  # an output, so that a second derivative goes through it
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        (weights,) = ctx.saved_tensors
        by_total, by_weights = grads
        if by_weights is None and by_total is not None and not torch.is_grad_enabled():
            return kernels("heads", weights).gradient(weights, by_total.contiguous())
        if by_total is None and by_weights is None:
            return None
        if by_total is None:
            asked = by_weights
        else:
            asked = by_total.expand_as(weights) if by_weights is None else by_total + by_weights
        assert asked is not None
        return weights * (asked - (weights * asked).sum(dim=-1, keepdim=True))

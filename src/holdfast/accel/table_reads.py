"""Reads of large tables by kernels: sums of chosen rows, and the choice of product keys.

Shapes: b batch, h heads, m rows of the table, k chosen, d width, n half keys per side.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.accel.registry import kernels
from holdfast.ops import reads

MULTIPLY_BELOW = 64  # on a GPU, a table with at most this many rows per chosen row is multiplied as a matrix


def weighted_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Compute `ops.reads.weighted_rows`."""
    if table.is_cuda and len(table) <= MULTIPLY_BELOW * rows.shape[1]:
        dense = torch.zeros(len(rows), len(table), dtype=table.dtype, device=table.device)
        return dense.scatter_add(1, rows, weights.to(table.dtype)) @ table
    fast = kernels("memory", table)
    if fast is None or table.shape[1] > fast.MAX_WIDTH:
        return reads.weighted_rows(table, rows, weights)
    return _WeightedRows.apply(table.contiguous(), rows.contiguous(), weights.contiguous())  # pyright: ignore[reportReturnType]


class _WeightedRows(torch.autograd.Function):
    """Kernels for the forward pass and the gradient of the table, with that of the weights."""

    @staticmethod
    def forward(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        return kernels("memory", table).gather(table, rows, weights)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (table, rows, weights), (grad,) = ctx.saved_tensors, grads
        if ctx.needs_input_grad[0]:
            by_table, by_weights = kernels("memory", table).gradients(table, rows, weights, grad.contiguous())
            return by_table, None, by_weights.to(weights.dtype)
        with torch.enable_grad():  # a table that does not learn
            leaf = weights.detach().requires_grad_()
            content = reads.weighted_rows(table.detach(), rows, leaf)
        return None, None, torch.autograd.grad(content, leaf, grad)[0]


def select_pairs(scores: Tensor, k: int, *, heads: int) -> tuple[Tensor, Tensor]:
    """Compute `ops.reads.select_pairs`."""
    fast = kernels("memory", scores)
    if fast is None or max(scores.shape[-1], k * k) > fast.MAX_CANDIDATES:
        return reads.select_pairs(scores, k, heads=heads)
    return _Selection.apply(scores, k, heads)  # pyright: ignore[reportReturnType]


class _Selection(torch.autograd.Function):
    """Kernels for the forward and the backward pass."""

    @staticmethod
    def forward(scores: Tensor, k: int, heads: int) -> tuple[Tensor, Tensor]:
        return kernels("memory", scores).best_pairs(scores, k, heads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.n, ctx.dtype = inputs[0].shape[-1], inputs[0].dtype
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros for the slots
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weights, slots), (grad, _), n = ctx.saved_tensors, grads, ctx.n
        if grad is None:
            return None, None, None
        by_scores = kernels("memory", weights).best_pairs_gradient(weights, slots, grad, n, ctx.dtype)
        return by_scores, None, None

"""Weighted sums of a few rows of a large table, without a copy of the rows, forward or backward.

b batch, k rows chosen, m rows, d width
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.kernels import kernels

FEW = 64  # on a GPU a table of at most this many rows for each one chosen is multiplied as a whole


def weighted_rows(table: Tensor, rows: Tensor, weights: Tensor, *, sparse: bool = False) -> Tensor:
    """(b, d) sum_k weights_bk table[rows_bk], in the table's precision; rows and weights are (b, k).

    With `sparse` the table's gradient is a sparse tensor of the rows that were chosen.
    """
    if table.is_cuda and not sparse and len(table) <= FEW * rows.shape[1]:
        spread = torch.zeros(len(rows), len(table), dtype=table.dtype, device=table.device)
        return spread.scatter_add(1, rows, weights.to(table.dtype)) @ table
    return _WeightedRows.apply(table, rows, weights, sparse)  # pyright: ignore[reportReturnType]


class _WeightedRows(torch.autograd.Function):
    """A kernel on a GPU, torch's embedding bag elsewhere; a second derivative goes through plain tensors."""

    @staticmethod
    def forward(table: Tensor, rows: Tensor, weights: Tensor, sparse: bool) -> Tensor:
        fast = kernels("rows", table)
        if fast is not None and table.shape[1] <= fast.WIDEST:
            return fast.gather(table.contiguous(), rows.contiguous(), weights.contiguous())
        return F.embedding_bag(rows, table, mode="sum", per_sample_weights=weights.to(table.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        table, rows, weights, ctx.sparse = inputs
        ctx.save_for_backward(table, rows, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        table, rows, weights = ctx.saved_tensors
        (grad,), (learns, _, weighed, _) = grads, ctx.needs_input_grad
        fast = kernels("rows", table)
        if torch.is_grad_enabled():  # someone will differentiate this once more
            by_table, by_weights = _plain_gradients(table, rows, weights, grad)
        elif fast is not None and table.shape[1] <= fast.WIDEST:
            grad, table, rows, weights = grad.contiguous(), table.contiguous(), rows.contiguous(), weights.contiguous()
            if learns:
                by_table, by_weights = fast.gradients(table, rows, weights, grad, sparse=ctx.sparse)
            else:
                by_table, by_weights = None, fast.dots(table, rows, grad)
        else:
            by_table, by_weights = _bag_gradients(table, rows, weights, grad, learns=learns, sparse=ctx.sparse)
        return by_table if learns else None, None, by_weights.to(weights.dtype) if weighed else None, None


def _plain_gradients(table: Tensor, rows: Tensor, weights: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Both gradients as an expression that can itself be differentiated."""
    each = weights.to(grad.dtype)[..., None] * grad[:, None]  # (b, k, d)
    by_table = torch.zeros_like(table).index_add(0, rows.reshape(-1), each.flatten(0, 1))
    return by_table, torch.einsum("bkd,bd->bk", table[rows], grad)


def _bag_gradients(
    table: Tensor, rows: Tensor, weights: Tensor, grad: Tensor, *, learns: bool, sparse: bool
) -> tuple[Tensor | None, Tensor]:
    """What torch says the gradients of its embedding bag are."""
    with torch.enable_grad():
        table = table.detach().requires_grad_(learns)
        weights = weights.detach().to(table.dtype).requires_grad_()
        content = F.embedding_bag(rows, table, mode="sum", per_sample_weights=weights, sparse=sparse)
    by_weights, *rest = torch.autograd.grad(content, (weights, table) if learns else (weights,), grad)
    return rest[0] if learns else None, by_weights

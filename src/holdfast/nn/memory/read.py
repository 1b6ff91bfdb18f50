"""Memory interfaces and the read operation, which is pure: a forward pass never writes.

Shapes: b batch, h heads, m slots, k chosen slots, q key width, d width.
"""

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from holdfast.accel.registry import kernels
from holdfast.nn.engagement import overwritten

MULTIPLY_BELOW = 64  # on a GPU, a table with at most this many rows per chosen row is multiplied as a matrix


class Read(NamedTuple):
    """Result of a read: the content and the weight of each slot in it."""

    content: Tensor  # (b, d)
    weights: Tensor  # (b, h, m), or (b, h, k) where slots were chosen
    slots: Tensor | None = None  # (b, h, k) chosen slots; None: all of them, in order


@runtime_checkable
class Growable(Protocol):
    """A memory, or a network that contains one, that can add slots; `grow` returns the new parameters."""

    @property
    def slots(self) -> int: ...
    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]: ...


@runtime_checkable
class HasMemory(Protocol):
    """A module that reads a memory; `tape_name` is the tape entry of every read, empty if it is never read."""

    @property
    def tape_name(self) -> str: ...


def mean_values(values: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Replace the values of a memory by their mean over slots, and restore them afterwards.

    `values` are the segments (..., m, d) of the memory.
    """
    segments = list(values)
    mean = torch.cat(segments, dim=-2).detach().mean(dim=-2, keepdim=True)
    return overwritten(*((segment, mean) for segment in segments))


def effective_slots(weights: Tensor) -> Tensor:
    """Return the effective number of slots per read: the mean over reads of exp(entropy of the read's weights).

    The last dimension of `weights` is that of the slots, all others are reads.
    """
    return torch.special.entr(weights.float()).sum(-1).exp().mean()


def read(
    query: Tensor,  # (b, h, q)
    keys: Tensor,  # (h, m, q), or (m, q) shared by all heads
    values: Tensor,  # (m, d) shared by all heads, or (h, m, d)
    *,
    similarity: str = "dot",
    temperature: float = 1.0,
    top: int | None = None,
) -> Read:
    """Compute sum_h sum_m softmax_m(<query_h, key_hm>) value_m; with `top`, over the best slots of each head."""
    logits = scores(query, keys, similarity=similarity, temperature=temperature)  # (h, b, m)
    slots = None
    if top is not None and top < logits.shape[-1]:
        best, slots = logits.topk(top, dim=-1)  # (h, b, k)
        weights, slots = best.softmax(dim=-1).transpose(0, 1), slots.transpose(0, 1)  # (b, h, k)
        content = _read_chosen(weights, slots, values)
    else:
        content, weights = _read_all(logits, values)
    return Read(content, weights, slots)


def scores(query: Tensor, keys: Tensor, *, similarity: str = "dot", temperature: float = 1.0) -> Tensor:
    """Return the scores (h, b, m) of queries with keys; shared keys are not repeated for the heads."""
    if similarity == "cosine":
        query, keys = F.normalize(query, dim=-1), F.normalize(keys, dim=-1)
    scale = temperature * (math.sqrt(query.shape[-1]) if similarity == "scaled" else 1.0)
    if scale != 1.0:
        query = query / scale  # smaller than the scores
    by_head = query.transpose(0, 1)  # (h, b, q)
    return torch.bmm(by_head, keys.transpose(1, 2)) if keys.dim() == 3 else by_head @ keys.T


def _read_all(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    weights = logits.softmax(dim=-1)  # (h, b, m)
    if values.dim() == 2:
        return weights.sum(dim=0) @ values, weights.transpose(0, 1)  # one product: summed over heads first
    weights = weights.transpose(0, 1)  # (b, h, m)
    return weights.flatten(1) @ values.flatten(0, 1), weights


def _read_chosen(weights: Tensor, slots: Tensor, values: Tensor) -> Tensor:
    b, heads, k = slots.shape
    if values.dim() == 3:
        first = torch.arange(heads, device=slots.device)[:, None] * values.shape[1]  # first row of each head
        slots, values = slots + first, values.flatten(0, 1)
    return weighted_rows(values, slots.reshape(b, heads * k), weights.reshape(b, heads * k))


def weighted_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Return sum_k weights_bk table[rows_bk], (b, d), in the table's precision; rows and weights are (b, k)."""
    if table.is_cuda and len(table) <= MULTIPLY_BELOW * rows.shape[1]:
        dense = torch.zeros(len(rows), len(table), dtype=table.dtype, device=table.device)
        return dense.scatter_add(1, rows, weights.to(table.dtype)) @ table
    return _WeightedRows.apply(table, rows, weights)  # pyright: ignore[reportReturnType]


class _WeightedRows(torch.autograd.Function):
    """A kernel on a GPU, torch's embedding bag elsewhere."""

    @staticmethod
    def forward(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        fast = kernels("memory", table)
        if fast is not None and table.shape[1] <= fast.MAX_WIDTH:
            return fast.gather(table.contiguous(), rows.contiguous(), weights.contiguous())
        return F.embedding_bag(rows, table, mode="sum", per_sample_weights=weights.to(table.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        table, rows, weights = ctx.saved_tensors
        (grad,), (needs_table, _, needs_weights) = grads, ctx.needs_input_grad
        fast = kernels("memory", table)
        if fast is not None and table.shape[1] <= fast.MAX_WIDTH:
            grad, table, rows, weights = grad.contiguous(), table.contiguous(), rows.contiguous(), weights.contiguous()
            if needs_table:
                grad_table, grad_weights = fast.gradients(table, rows, weights, grad)
            else:
                grad_table, grad_weights = None, fast.weight_gradient(table, rows, grad)
        else:
            grad_table, grad_weights = _bag_gradients(table, rows, weights, grad, needs_table)
        grad_weights = grad_weights.to(weights.dtype) if needs_weights else None
        return grad_table if needs_table else None, None, grad_weights


def _bag_gradients(
    table: Tensor, rows: Tensor, weights: Tensor, grad: Tensor, needs_table: bool
) -> tuple[Tensor | None, Tensor]:
    """Compute both gradients with torch's embedding bag."""
    with torch.enable_grad():
        table = table.detach().requires_grad_(needs_table)
        weights = weights.detach().to(table.dtype).requires_grad_()
        content = F.embedding_bag(rows, table, mode="sum", per_sample_weights=weights)
    grad_weights, *rest = torch.autograd.grad(content, (weights, table) if needs_table else (weights,), grad)
    return rest[0] if needs_table else None, grad_weights

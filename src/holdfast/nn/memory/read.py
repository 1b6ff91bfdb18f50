"""What every memory is: something that can be read; some can also be written, some can grow.

b batch, h heads, m slots, k slots chosen, d width
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import unknown
from holdfast.core.tape import exporting
from holdfast.nn.kernels import kernels


class Read(NamedTuple):
    """What a read gives: the content, and the weight that each slot got in it."""

    content: Tensor  # (b, d)
    weights: Tensor  # (b, h, m), or (b, h, k) where slots were chosen
    slots: Tensor | None = None  # (b, h, k) which slots the weights belong to; None: all of them, in order


class Memory(Protocol):
    """Reading is pure: it changes nothing and keeps nothing."""

    def read(self, query: Tensor) -> Read: ...


@runtime_checkable
class HasMemory(Protocol):
    """A part with a memory: which name every read of it leaves on a tape; empty where it is not to be read."""

    @property
    def tape_name(self) -> str: ...


@runtime_checkable
class Writable(Protocol):
    """A memory that is written, explicitly and without gradient; a forward pass never does."""

    def write(self, key: Tensor, value: Tensor) -> None: ...


@runtime_checkable
class Growable(Protocol):
    """A memory, or a network around one, that takes more slots, each of which remembers the domain it came with."""

    @property
    def slots(self) -> int: ...

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """The new parameters, for an optimizer to adopt."""
        ...


SIMILARITIES = ("dot", "scaled", "cosine")


def read(
    query: Tensor,  # (b, h, q)
    keys: Tensor,  # (h, m, q), or (m, q) that all heads share
    values: Tensor,  # (m, d) that all heads share, or (h, m, d)
    *,
    similarity: str = "dot",
    temperature: float = 1.0,
    top: int | None = None,
    mean: bool = False,
    seen: Tensor | None = None,  # (m,) bool: slots that may be read
) -> Read:
    """sum_h sum_m softmax_m(<query_h, key_hm>) value_m; with `top` over the best slots of each head alone."""
    logits = scores(query, keys, similarity=similarity, temperature=temperature)  # (h, b, m)
    if seen is not None:
        logits = logits.masked_fill(~seen, -math.inf)
    if top is not None and top < logits.shape[-1]:
        best, slots = logits.topk(top, dim=-1)  # (h, b, k)
        weights, slots = best.softmax(dim=-1).transpose(0, 1), slots.transpose(0, 1)  # (b, h, k)
        content = _chosen(weights, slots, values)
        return Read(content / query.shape[1] if mean else content, weights, slots)
    content, weights = _all(logits, values)
    return Read(content / query.shape[1] if mean else content, weights.transpose(0, 1))


def scores(query: Tensor, keys: Tensor, *, similarity: str = "dot", temperature: float = 1.0) -> Tensor:
    """(h, b, m) how well each query meets each key; shared keys are never repeated for the heads."""
    if similarity not in SIMILARITIES:
        raise unknown("similarity", similarity, SIMILARITIES)
    if similarity == "cosine":
        query, keys = F.normalize(query, dim=-1), F.normalize(keys, dim=-1)
    scale = temperature * (math.sqrt(query.shape[-1]) if similarity == "scaled" else 1.0)
    if scale != 1.0:
        query = query / scale  # and not the scores, of which there are many more
    by_head = query.transpose(0, 1)  # (h, b, q)
    if keys.dim() == 3:
        return torch.bmm(by_head, keys.transpose(1, 2))
    return by_head @ keys.T


def _all(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    if values.dim() == 2:
        total, weights = softmax_sum(logits)
        return total @ values, weights  # one product: the heads meet before the values
    weights = logits.softmax(dim=-1)
    heads, b, m = weights.shape
    return weights.transpose(0, 1).reshape(b, heads * m) @ values.reshape(heads * m, -1), weights


def _chosen(weights: Tensor, slots: Tensor, values: Tensor) -> Tensor:
    b, heads, k = slots.shape
    if values.dim() == 3:
        first = torch.arange(heads, device=slots.device)[:, None] * values.shape[1]  # where each head's values begin
        slots, values = slots + first, values.flatten(0, 1)
    return weighted_rows(values, slots.reshape(b, heads * k), weights.reshape(b, heads * k))


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
        fast = kernels("memory", table)
        if fast is not None and table.shape[1] <= fast.MAX_WIDTH:
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
        fast = kernels("memory", table)
        if torch.is_grad_enabled():  # someone will differentiate this once more
            by_table, by_weights = _plain_gradients(table, rows, weights, grad)
        elif fast is not None and table.shape[1] <= fast.MAX_WIDTH:
            grad, table, rows, weights = grad.contiguous(), table.contiguous(), rows.contiguous(), weights.contiguous()
            if learns:
                by_table, by_weights = fast.gradients(table, rows, weights, grad, sparse=ctx.sparse)
            else:
                by_table, by_weights = None, fast.weight_gradient(table, rows, grad)
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


LEAST = 1 << 20  # scores; fewer are done sooner than a kernel of our own is called


def softmax_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """(b, m) sum_h softmax_m(scores), and the weights (h, b, m); both can be differentiated."""
    many = not exporting() and scores.numel() >= LEAST  # a program is for any number of examples: it must not ask
    fast = kernels("memory", scores) if many else None
    if fast is not None and scores.shape[-1] <= fast.MAX_SLOTS:
        return _SoftmaxSum.apply(scores)  # pyright: ignore[reportReturnType]
    weights = scores.softmax(dim=-1)
    return weights.sum(dim=0), weights


class _SoftmaxSum(torch.autograd.Function):
    """The kernels; whatever they cannot differentiate goes through plain tensors."""

    @staticmethod
    def forward(scores: Tensor) -> tuple[Tensor, Tensor]:
        fast = kernels("memory", scores)
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
            return kernels("memory", weights).softmax_sum_gradient(weights, by_total.contiguous())
        if by_total is None and by_weights is None:
            return None
        if by_total is None:
            asked = by_weights
        else:
            asked = by_total.expand_as(weights) if by_weights is None else by_total + by_weights
        assert asked is not None
        return weights * (asked - (weights * asked).sum(dim=-1, keepdim=True))

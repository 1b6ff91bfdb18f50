"""Memory interfaces and the read operation, which is pure: a forward pass never writes.

Shapes: b batch, h heads, m slots, k chosen slots, q key width, d width.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.accel.table_reads import weighted_rows
from holdfast.nn.engagement import overwritten
from holdfast.ops.reads import attend, scores


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
        content, weights = attend(logits, values)
    return Read(content, weights, slots)


def _read_chosen(weights: Tensor, slots: Tensor, values: Tensor) -> Tensor:
    b, heads, k = slots.shape
    if values.dim() == 3:
        first = torch.arange(heads, device=slots.device)[:, None] * values.shape[1]  # first row of each head
        slots, values = slots + first, values.flatten(0, 1)
    return weighted_rows(values, slots.reshape(b, heads * k), weights.reshape(b, heads * k))

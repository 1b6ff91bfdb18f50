"""The read that every memory shares: queries meet keys, and the weights of the slots gather their values.

b batch, h heads, m slots, k slots chosen, q width of a key, d width of a value
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.nn.memory.base import Read
from holdfast.nn.rows import weighted_rows
from holdfast.nn.softmax import softmax_sum

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

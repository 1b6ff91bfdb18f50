"""A pre-norm attention block whose queries look at rows that all of them share, at themselves, or at both.

b queries, m rows, h heads, q width of a head, d width
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown

RESIDUALS = ("identity", "linear")
SCALES = ("head", "full")


class Keys(NamedTuple):
    """What queries look at: rows as keys and values of every head."""

    keys: Tensor  # (h, m, q)
    values: Tensor  # (h, m, q)


class MemoryBlock(nn.Module):
    """H = R(x) + drop(concat_h softmax(Q K^T s) V), then H + FF(norm(H)) with FF: d -> 4d -> d (Qiu et al., 2023).

    Queries have a norm of their own, keys and values share one. `residual` is the map R, `scale` s is one over the
    root of a head's width or of the full one, `project` adds a learned map after the heads, which the paper lacks.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        residual: str = "identity",
        scale: str = "head",
        project: bool = False,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if residual not in RESIDUALS:
            raise unknown("residual", residual, RESIDUALS)
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        if heads < 1 or width % heads:
            raise BadInput(f"attention over {width} columns cannot be shared evenly by {heads} heads: set neck.heads")
        if not 0 <= dropout < 1:
            raise BadInput(f"dropout must be at least 0 and below 1, not {dropout}")
        self.width, self.heads, self.by_head = width, heads, (heads, width // heads)
        self.scale = 1 / math.sqrt(width if scale == "full" else width // heads)
        self.norm_query, self.norm_source, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.residual = nn.Linear(width, width) if residual == "linear" else nn.Identity()
        self.out = nn.Linear(width, width) if project else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def keys_values(self, rows: Tensor) -> Keys:
        """Rows (m, d) as keys and values, once for all queries."""
        both = self.key_value(self.norm_source(rows)).unflatten(-1, (2, *self.by_head))  # (m, 2, h, q)
        keys, values = both.permute(1, 2, 0, 3)
        return Keys(keys, values)

    def forward(
        self, x: Tensor, shared: Keys | None, *, with_self: bool, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(b, d) from queries (b, d) that see the shared rows and, with `own`, themselves; a bias (m,) hides rows.

        Also the weights (b, h, m), the query itself first where it sees itself; None where a fused kernel holds none.
        """
        query = self.query(self.norm_query(x)).unflatten(-1, self.by_head).transpose(0, 1)  # (h, b, q)
        mixed, weights = attend(
            query, shared, self.keys_values(x) if with_self else None, scale=self.scale, bias=bias, fused=self.training
        )
        state = self.residual(x) + self.dropout(self.out(mixed.transpose(0, 1).flatten(1)))  # (b, d)
        return state + self.feed(self.norm_out(state)), None if weights is None else weights.transpose(0, 1)


def attend(
    query: Tensor,  # (h, b, q)
    shared: Keys | None,
    own: Keys | None,  # of the queries themselves, row by row
    *,
    scale: float,
    bias: Tensor | None = None,  # (m,) added to the scores of the shared rows
    fused: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """(h, b, q) the values, weighted; the score of a query with itself is computed apart and joined."""
    if shared is None:
        assert own is not None, "a query needs something to look at"
        return own.values, query.new_ones(*query.shape[:2], 1)
    if fused and own is None and bias is None:  # then no scores need to be held
        keys, values = shared.keys[None], shared.values[None]
        return F.scaled_dot_product_attention(query[None], keys, values, scale=scale)[0], None
    query, reverse = query * scale, shared.keys.transpose(1, 2)  # (h, q, m)
    scores = torch.bmm(query, reverse) if bias is None else torch.baddbmm(bias.to(query.dtype), query, reverse)
    if own is None:
        weights = scores.softmax(-1)
        return torch.bmm(weights.to(query.dtype), shared.values), weights
    mine = (query * own.keys).sum(-1, keepdim=True)  # (h, b, 1)
    weights = torch.cat([mine, scores], dim=-1).softmax(-1)
    first, rest = weights.to(query.dtype).split([1, scores.shape[-1]], dim=-1)
    return torch.bmm(rest, shared.values) + first * own.values, weights


def joined(*parts: Keys | None) -> Keys | None:
    """Several lots of rows as one."""
    there = [part for part in parts if part is not None]
    if len(there) < 2:
        return there[0] if there else None
    return Keys(*(torch.cat(each, dim=1) for each in zip(*there, strict=True)))

"""Pre-norm attention block whose queries attend to shared rows, to themselves, or to both.

Shapes: b queries, m rows, h heads, q head width, d width.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, retired_settings, setting


@checked_settings
class BlockSettings:
    """Settings of an attention block."""

    heads: int = setting(4, least=1)
    dropout: float = setting(0.1, least=0, below=1)

    retired: ClassVar[Mapping[str, Any]] = retired_settings(residual="identity", scale="head", project=False)


class KeysValues(NamedTuple):
    """Rows that queries attend to, projected for every head."""

    keys: Tensor  # (h, m, q)
    values: Tensor  # (h, m, q)


class MemoryBlock(nn.Module):
    """H = x + drop(concat_h softmax(Q K^T s) V), then H + FF(norm(H)) with FF: d -> 4d -> d (Qiu et al., 2023)."""

    by_head: tuple[int, int]
    dropout: nn.Dropout
    feed: nn.Sequential
    heads: int
    key_value: nn.Linear
    norm_out: nn.LayerNorm
    norm_query: nn.LayerNorm
    norm_source: nn.LayerNorm
    query: nn.Linear
    scale: float
    width: int

    def __init__(self, width: int, settings: BlockSettings) -> None:
        super().__init__()
        heads, dropout = settings.heads, settings.dropout
        if width % heads:
            raise BadInput(f"neck.heads must divide the attention width {width}, got {heads}")
        self.width, self.heads, self.by_head = width, heads, (heads, width // heads)
        self.scale = 1 / math.sqrt(width // heads)
        self.norm_query, self.norm_source, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(dropout)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.feed = nn.Sequential(up, nn.GELU(), nn.Dropout(dropout), down, nn.Dropout(dropout))

    def keys_values(self, rows: Tensor) -> KeysValues:
        """Project rows (m, d) to keys and values that all queries share."""
        both = self.key_value(self.norm_source(rows)).unflatten(-1, (2, *self.by_head))  # (m, 2, h, q)
        keys, values = both.permute(1, 2, 0, 3)
        return KeysValues(keys, values)

    def queries(self, x: Tensor) -> Tensor:
        """Project rows (b, d) to queries (h, b, q)."""
        return self.query(self.norm_query(x)).unflatten(-1, self.by_head).transpose(0, 1)

    def forward(
        self,
        x: Tensor,
        shared: KeysValues | None,
        *,
        with_self: bool,
        bias: Tensor | None = None,
        self_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from queries (b, d) to shared rows and, with `with_self`, to themselves.

        `bias` (m,) is added to the scores of the shared rows and the scalar `self_bias` to that of the query itself;
        -inf hides a row. Returns the output (b, d) and the weights (b, h, m), the query itself first; the weights are
        None where a fused kernel does not return them.
        """
        itself = self.keys_values(x) if with_self else None
        mixed, weights = attend(
            self.queries(x), shared, itself, scale=self.scale, bias=bias, self_bias=self_bias, fused=self.training
        )
        state = x + self.dropout(mixed.transpose(0, 1).flatten(1))  # (b, d)
        return state + self.feed(self.norm_out(state)), None if weights is None else weights.transpose(0, 1)


def attend(
    query: Tensor,  # (h, b, q)
    shared: KeysValues | None,
    itself: KeysValues | None,  # of the queries, row by row
    *,
    scale: float,
    bias: Tensor | None = None,  # (m,)
    self_bias: Tensor | None = None,  # ()
    fused: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the weighted values (h, b, q) and the weights; a query's score with itself is computed separately."""
    if shared is None:
        assert itself is not None, "a query needs rows to attend to"
        return itself.values, query.new_ones(*query.shape[:2], 1)
    if fused and itself is None and bias is None:  # then no scores need to be stored
        keys, values = shared.keys[None], shared.values[None]
        return F.scaled_dot_product_attention(query[None], keys, values, scale=scale)[0], None
    query, transposed = query * scale, shared.keys.transpose(1, 2)  # (h, q, m)
    scores = torch.bmm(query, transposed) if bias is None else torch.baddbmm(bias.to(query.dtype), query, transposed)
    if itself is None:
        weights = scores.softmax(-1)
        return torch.bmm(weights.to(query.dtype), shared.values), weights
    diagonal = (query * itself.keys).sum(-1, keepdim=True)  # (h, b, 1)
    diagonal = diagonal if self_bias is None else diagonal + self_bias
    weights = torch.cat([diagonal, scores], dim=-1).softmax(-1)
    first, rest = weights.to(query.dtype).split([1, scores.shape[-1]], dim=-1)
    return torch.bmm(rest, shared.values) + first * itself.values, weights


def concatenate(*groups: KeysValues | None) -> KeysValues | None:
    """Concatenate groups of rows; None stands for an empty group."""
    present = [group for group in groups if group is not None]
    if len(present) < 2:
        return present[0] if present else None
    return KeysValues(*(torch.cat(tensors, dim=1) for tensors in zip(*present, strict=True)))

"""Pairs of texts: laid one after the other, taken apart for an encoder of single texts, and joined for a head.

b batch, t tokens, s width of a text's vector, d width
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.words import PAD
from holdfast.nn.widening import spread

PARTS = 4  # u, v, their product, their difference


def lay(examples: Any, ids: Callable[[str], list[int]], *, pairs: bool) -> TokenStore:
    """Single texts, or pairs whose texts lie one after the other, told apart by their types."""
    examples = list(examples)
    if not pairs:
        if not all(isinstance(example, str) for example in examples):
            raise BadInput("this encoder was built for single texts, but the data holds pairs of texts")
        return TokenStore.build([ids(text) for text in examples], pad=PAD)
    if any(isinstance(example, str) for example in examples):
        raise BadInput("this encoder was built for pairs of texts, but the data holds single texts")
    both = [(ids(first), ids(second)) for first, second in examples]
    types = [[0] * len(first) + [1] * len(second) for first, second in both]
    return TokenStore.build([first + second for first, second in both], pad=PAD, types=types)


def apart(x: Tokens) -> tuple[Tensor, Tensor]:
    """Words (2b, t) and lengths (2b,) of all first texts, then of all second ones, from pairs told apart by types."""
    assert x.types is not None
    first = (x.mask & (x.types == 0)).sum(1)  # (b,)
    second = x.mask.sum(1) - first
    lengths = torch.cat([first, second])
    reach = torch.arange(int(lengths.max()), device=first.device)
    at = (first[:, None] + reach).clamp(max=x.ids.shape[1] - 1)
    return torch.cat([x.ids[:, : len(reach)], x.ids.gather(1, at)]), lengths


class PairLayer(nn.Sequential):
    """drop(relu(W [u; v; u v; |u - v|] + b)) for vectors u, v of two texts."""

    def __init__(self, text: int, width: int, *, dropout: float) -> None:
        super().__init__(nn.Linear(PARTS * text, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, input: Tensor) -> Tensor:
        """(2b, s), all first texts and then all second ones, to (b, d)."""
        u, v = input.chunk(2)
        return super().forward(torch.cat([u, v, u * v, (u - v).abs()], -1))

    def widen(self, at: Tensor, text: int) -> None:
        """For vectors of width `text` in which the entries of before lie at `at` (s,)."""
        layer = self[0]
        assert isinstance(layer, nn.Linear)
        self[0] = spread(layer, torch.cat([at + part * text for part in range(PARTS)]), PARTS * text)

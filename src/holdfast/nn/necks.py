"""Plain necks: none, a learned layer, and the parameters alone that a memory is compared with.

b batch, d width
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import append_layer
from holdfast.nn.memory.block import MemoryBlock


class Projection(nn.Module):
    """A learned layer on the features: on a frozen backbone it is what a rule about features can move."""

    def __init__(self, width: int, *, hidden: int = 256) -> None:
        super().__init__()
        self.width = hidden
        self.layer = nn.Linear(width, hidden)

    def forward(self, z: Tensor) -> Tensor:
        return self.layer(z).relu()


class NoNeck(nn.Module):
    """The plain backbone: features pass as they are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, z: Tensor) -> Tensor:
        return z


class FeedForward(nn.Module):
    """norm(z + W2 gelu(W1 z)): one more feed-forward sub-layer of a transformer on the features."""

    def __init__(self, width: int, *, hidden: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.widen, self.narrow = nn.Linear(width, hidden or 4 * width), nn.Linear(hidden or 4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, z: Tensor) -> Tensor:
        return self.norm(z + self.narrow(F.gelu(self.widen(z))))


class ExtraLayer(nn.Module):
    """One more whole layer, self-attention and feed-forward, on top of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.attached = width, False

    def attach(self, backbone: Backbone) -> None:
        if not self.attached:
            append_layer(backbone)
            self.attached = True

    def forward(self, z: Tensor) -> Tensor:
        return z


class ParameterControl(nn.Module):
    """The two attention blocks of a heterogeneous memory with nothing to look at: each example sees itself alone."""

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
        self.width = width
        options = {"heads": heads, "residual": residual, "scale": scale, "project": project, "dropout": dropout}
        self.first, self.second = MemoryBlock(width, **options), MemoryBlock(width, **options)

    def forward(self, z: Tensor) -> Tensor:
        for block in (self.first, self.second):
            z, _ = block(z, None, with_self=True)
        return z

"""Plain necks: none, a learned layer, and controls with the parameters of a memory but no memory.

Shapes: b batch, d width.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import append_layer
from holdfast.nn.memory.block import BlockSettings, MemoryBlock


class NoNeck(nn.Module):
    """The plain backbone: returns the features unchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, z: Tensor) -> Tensor:
        return z


class Projection(nn.Module):
    """relu(W z + b): a trainable layer for methods that change features, also on a frozen backbone."""

    def __init__(self, width: int, *, hidden: int = 256) -> None:
        super().__init__()
        self.width = hidden
        self.layer = nn.Linear(width, hidden)

    def forward(self, z: Tensor) -> Tensor:
        return self.layer(z).relu()


class FeedForward(nn.Module):
    """norm(z + W2 gelu(W1 z)): an additional feed-forward sub-layer of a transformer on the features."""

    def __init__(self, width: int, *, hidden: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.widen, self.narrow = nn.Linear(width, hidden or 4 * width), nn.Linear(hidden or 4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, z: Tensor) -> Tensor:
        return self.norm(z + self.narrow(F.gelu(self.widen(z))))


class ExtraLayer(nn.Module):
    """An additional transformer layer, self-attention and feed-forward, on top of the backbone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.attached = width, False

    def attach(self, backbone: Backbone) -> None:
        """Append the layer to a transformer, once."""
        if not self.attached:
            append_layer(backbone)
            self.attached = True

    def forward(self, z: Tensor) -> Tensor:
        return z


class ParameterControl(nn.Module):
    """The two attention blocks of a heterogeneous memory without a memory: each example attends to itself."""

    Settings = BlockSettings

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__()
        self.width, options = width, BlockSettings(**settings)
        self.first, self.second = MemoryBlock(width, options), MemoryBlock(width, options)

    def forward(self, z: Tensor) -> Tensor:
        for block in (self.first, self.second):
            z, _ = block(z, None, with_self=True)
        return z

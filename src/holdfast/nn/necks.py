"""Plain necks: none, a learned layer, and controls with the parameters of a memory but no memory.

Shapes: b batch, d width.
"""

from dataclasses import asdict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.settings import keywords_of
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.graft.insert import InsertingNeck, append_layer
from holdfast.nn.memory.block import BlockSettings, MemoryBlock
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory, HeterogeneousSettings, join_label


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


class ExtraLayer(InsertingNeck):
    """An additional transformer layer, self-attention and feed-forward, on top of the backbone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def insert(self, backbone: Backbone) -> None:
        """Append the layer to a transformer."""
        append_layer(backbone)


class ParameterControl(nn.Module):
    """The two attention blocks of a heterogeneous memory without a memory: each example attends to itself."""

    Settings = BlockSettings

    @keywords_of(BlockSettings)
    def __init__(self, width: int, settings: BlockSettings) -> None:
        super().__init__()
        self.width = width
        self.first, self.second = MemoryBlock(width, settings), MemoryBlock(width, settings)

    def forward(self, z: Tensor) -> Tensor:
        for block in (self.first, self.second):
            z, _ = block(z, None, with_self=True)
        return z


class MatchedControl(nn.Module):
    """Residual layers with the parameters of a heterogeneous memory but no memory.

    z -> [z; learned vector], then per block of the memory x -> H = x + drop(V norm(x)), H + FF(norm(H)). The output has
    the same width, and the hidden layers of FF are as wide as the number of parameters of the memory requires: its
    label vectors, slots, query and key projections are replaced by parameters that act on single examples.

    Args:
        width: Width of the features.
        classes: Number of classes.
        **settings: Fields of `HeterogeneousSettings`; those without influence on the parameters have no effect.
    """

    Settings = HeterogeneousSettings

    @keywords_of(HeterogeneousSettings)
    def __init__(self, width: int, classes: int, settings: HeterogeneousSettings) -> None:
        super().__init__()
        with torch.device("meta"):
            memory = HeterogeneousMemory(width, classes, **asdict(settings))
        self.width, self.options = memory.width, memory.options
        inner, blocks = width + memory.labels.embedding_dim, (memory.first is not None) + (memory.second is not None)
        total = sum(p.numel() for p in memory.parameters()) - memory.labels.embedding_dim
        hidden = round((total / blocks - inner * (inner + 6)) / (2 * inner + 1))
        self.label = nn.Parameter(torch.randn(memory.labels.embedding_dim))
        drop = self.options.dropout
        self.values = nn.ModuleList(_normed(nn.Linear(inner, inner), nn.Dropout(drop)) for _ in range(blocks))
        self.feeds = nn.ModuleList(
            _normed(nn.Linear(inner, hidden), nn.GELU(), nn.Dropout(drop), nn.Linear(hidden, inner), nn.Dropout(drop))
            for _ in range(blocks)
        )

    def forward(self, z: Tensor) -> Tensor:
        x = join_label(z, self.label.expand(z.shape[0], -1), self.options.input_norm)
        for value, feed in zip(self.values, self.feeds, strict=True):
            x = x + value(x)
            x = x + feed(x)
        return x


def _normed(first: nn.Linear, *rest: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(first.in_features), first, *rest)

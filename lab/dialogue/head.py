"""Head of networks whose backbone generates the output.

Shapes: b batch, d width.
"""

from collections.abc import Sequence
from typing import Self

from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone


class NoHead(nn.Module):
    """Returns the features, for backbones whose features are the outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.outputs = width
        self.settings = {"width": width}

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone) -> Self:
        return cls(width)

    def last_layer(self) -> nn.Linear:
        raise BadInput("head=none has no layer: use head=linear or head=dense")

    def forward(self, z: Tensor) -> Tensor:
        return z

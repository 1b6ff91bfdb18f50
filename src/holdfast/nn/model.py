"""backbone -> neck -> head. A neck is where a memory or an expert layer sits.

b batch, d width, c classes
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from holdfast.core.inputs import Inputs
from holdfast.nn.tuning import rest_frozen


class Model(nn.Module):
    """A network in three parts; with precision `bf16` the first two run under autocast."""

    def __init__(self, backbone: nn.Module, neck: nn.Module, head: nn.Module, *, precision: str = "fp32") -> None:
        super().__init__()
        self.backbone, self.neck, self.head = backbone, neck, head
        self.precision = precision

    @property
    def width(self) -> int:
        """The width of the features, which the neck decides."""
        return int(self.neck.width)  # pyright: ignore[reportArgumentType]

    def features(self, x: Inputs) -> Tensor:
        if self.precision == "fp32":
            return self.neck(self.backbone(x))  # (b, d)
        device = next(self.head.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            return self.neck(self.backbone(x)).float()

    def forward(self, x: Inputs) -> Tensor:
        return self.head(self.features(x))  # (b, c)

    def learning(self) -> list[nn.Parameter]:
        """The parameters that an optimizer may touch."""
        return [p for p in self.parameters() if p.requires_grad]

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode:
            rest_frozen(self.backbone)
        return self


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

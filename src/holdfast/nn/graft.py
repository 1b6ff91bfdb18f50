"""Put a part into the stack of layers of a backbone: after a layer, or as a layer more.

b batch, t tokens, d width
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn

from holdfast.nn.backbones.base import Backbone


@runtime_checkable
class Attaching(Protocol):
    """A neck that also puts something into the backbone; a model lets it, once."""

    def attach(self, backbone: Backbone) -> None: ...


class Followed(nn.Module):
    """A layer whose states (b, t, d) pass through one more part."""

    def __init__(self, layer: nn.Module, part: nn.Module) -> None:
        super().__init__()
        self.layer, self.part = layer, part

    def forward(self, *args: Any, **named: Any) -> Any:
        out = self.layer(*args, **named)
        if isinstance(out, tuple):
            return (self.part(out[0]), *out[1:])
        return self.part(out)


def follow(backbone: Backbone, at: Sequence[int], make: Callable[[], nn.Module]) -> None:
    """Let a new part follow each of the layers at these places, counted from 0 or from the end."""
    layers = backbone.stack()
    for place in {i % len(layers) for i in at}:
        layers[place] = Followed(layers[place], make())


def lengthen(backbone: Backbone) -> None:
    """One more layer of the kind that the backbone ends with, with fresh weights."""
    layers = backbone.stack()
    fresh = copy.deepcopy(layers[-1])
    for part in fresh.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    fresh.requires_grad_(True)
    layers.append(fresh)

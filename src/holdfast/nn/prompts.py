"""Prompts of a vision transformer: learned tokens beside those of the picture, at the first layer or at every one.

b batch, t tokens, p prompts, d width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown

PLACES = ("none", "shallow", "deep")


class Prompted(nn.Module):
    """A layer that sees p learned tokens, drawn from N(0, 0.02^2), after the first one; they stay or are taken out."""

    def __init__(self, layer: nn.Module, prompts: int, width: int, *, stay: bool) -> None:
        super().__init__()
        self.layer, self.stay = layer, stay
        self.prompts = nn.Parameter(torch.empty(prompts, width).normal_(std=0.02))

    def forward(self, states: Tensor, *args: Any, **named: Any) -> Any:
        prompts = self.prompts.to(states.dtype).expand(len(states), -1, -1)  # (b, p, d)
        out = self.layer(torch.cat([states[:, :1], prompts, states[:, 1:]], dim=1), *args, **named)
        if isinstance(out, tuple):
            return (self._rest(out[0]), *out[1:])
        return self._rest(out)

    def _rest(self, states: Tensor) -> Tensor:
        if self.stay:
            return states
        return torch.cat([states[:, :1], states[:, 1 + len(self.prompts) :]], dim=1)  # (b, t, d)


def put_prompts(layers: nn.ModuleList, width: int, *, place: str, prompts: int) -> None:
    """`shallow`: tokens that join at the first layer and go through all; `deep`: fresh ones for every layer."""
    if place not in PLACES:
        raise unknown("place of prompts", place, PLACES)
    if prompts < 1:
        raise BadInput(f"prompts, the number of learned tokens, must be at least 1, not {prompts}")
    count = {"none": 0, "shallow": 1, "deep": len(layers)}[place]
    for i in range(count):
        layers[i] = Prompted(layers[i], prompts, width, stay=place == "shallow")


def prompts_of(module: nn.Module) -> list[nn.Parameter]:
    """The learned tokens of a network."""
    return [part.prompts for part in module.modules() if isinstance(part, Prompted)]

"""Put a part into the stack of layers of a backbone: after a layer, or as a layer more.

b batch, t tokens, d width
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.nn.backbones.base import Backbone


@runtime_checkable
class Attachable(Protocol):
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


def append_layer(backbone: Backbone) -> None:
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


# what a layer of transformers calls the last module of each branch, before it is added to what went around it
ENDS = (("drop_path",), ("dropout",), ("attention.output.dropout", "output.dropout"))


class DropBranch(nn.Module):
    """A branch (b, t, d) as it is, or in training nothing for a share of the examples and more of it for the others."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or not self.share:
            return branch
        kept = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.share
        return branch * (kept / (1 - self.share)).to(branch.dtype)


def add_drop_path(layers: nn.ModuleList, most: float) -> None:
    """Leave out none of the first layer's branches, a share of `most` of the last one's, and in between evenly more."""
    if not 0 <= most < 1:
        raise BadInput(f"drop_path, the share of branches that are left out, is at least 0 and below 1, not {most}")
    for i, layer in enumerate(layers if most else ()):
        names = {name for name, _ in layer.named_modules()}
        ends = next((ends for ends in ENDS if names.issuperset(ends)), None)
        if ends is None:
            raise BadInput(f"drop_path: {type(layer).__name__} has no branches of a known make: use a ViT or a DINOv2")
        share = most * i / max(1, len(layers) - 1)
        for end in ends:
            layer.set_submodule(end, nn.Sequential(layer.get_submodule(end), DropBranch(share)))


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


def insert_prompts(layers: nn.ModuleList, width: int, *, place: str, prompts: int) -> None:
    """`shallow`: tokens that join at the first layer and go through all; `deep`: fresh ones for every layer."""
    if place not in PLACES:
        raise unknown("place of prompts", place, PLACES)
    if prompts < 1:
        raise BadInput(f"prompts, the number of learned tokens, must be at least 1, not {prompts}")
    count = {"none": 0, "shallow": 1, "deep": len(layers)}[place]
    for i in range(count):
        layers[i] = Prompted(layers[i], prompts, width, stay=place == "shallow")


def prompt_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The learned tokens of a network."""
    return [part.prompts for part in module.modules() if isinstance(part, Prompted)]

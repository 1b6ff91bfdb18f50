"""Insert parts into the layer stack of a backbone: after a layer, as a further layer, or as prompts.

Shapes: b batch, t tokens, p prompts, d width.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone

# names of the last module of each residual branch, before the addition, in the layers of transformers
ENDS = (("drop_path",), ("dropout",), ("attention.output.dropout", "output.dropout"))


class InsertingNeck(nn.Module, ABC):
    """A neck that may insert parts into the backbone, when `Model` attaches it; by default it keeps the features."""

    attached = False
    trains_parts = False  # in every tuning mode
    width: int

    def attach(self, backbone: Backbone) -> None:
        """Insert the parts, once."""
        if not self.attached:
            self.insert(backbone)
            self.attached = True

    @abstractmethod
    def insert(self, backbone: Backbone) -> None: ...

    def forward(self, z: Tensor) -> Tensor:
        return z


def map_first(function: Callable[[Tensor], Tensor], out: Any) -> Any:
    """Apply a function to the states that a layer returns, alone or first in a tuple."""
    return (function(out[0]), *out[1:]) if isinstance(out, tuple) else function(out)


class FollowedLayer(nn.Module):
    """A layer whose states (b, t, d) pass through a further part."""

    def __init__(self, layer: nn.Module, part: nn.Module) -> None:
        super().__init__()
        self.layer, self.part = layer, part

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return map_first(self.part, self.layer(*args, **kwargs))


def insert_after(backbone: Backbone, at: Sequence[int], make: Callable[[], nn.Module]) -> None:
    """Insert a new part after each of these layers, counted from 0 or from the end."""
    layers = backbone.stack()
    for place in {i % len(layers) for i in at}:
        layers[place] = FollowedLayer(layers[place], make())


def append_layer(backbone: Backbone) -> None:
    """Append a randomly initialised layer of the same type as the last one."""
    layers = backbone.stack()
    fresh = copy.deepcopy(layers[-1])
    for module in fresh.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    fresh.requires_grad_(True)
    layers.append(fresh)


class DropPath(nn.Module):
    """Stochastic depth: in training, zero a residual branch (b, t, d) for a share of examples and scale the others."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or not self.share:
            return branch
        active = torch.rand(len(branch), *[1] * (branch.dim() - 1), device=branch.device) >= self.share
        return branch * (active / (1 - self.share)).to(branch.dtype)


def add_drop_path(layers: nn.ModuleList, most: float) -> None:
    """Add stochastic depth that increases linearly from 0 at the first layer to `most` at the last."""
    for i, layer in enumerate(layers if most else ()):
        names = {name for name, _ in layer.named_modules()}
        ends = next((ends for ends in ENDS if names.issuperset(ends)), None)
        if ends is None:
            raise BadInput(f"`drop_path` does not support {type(layer).__name__}: use a ViT or a DINOv2")
        share = most * i / max(1, len(layers) - 1)
        for end in ends:
            layer.set_submodule(end, nn.Sequential(layer.get_submodule(end), DropPath(share)))


class PromptedLayer(nn.Module):
    """A layer with p learned tokens, initialised from N(0, 0.02^2), after the first token.

    With `stay` the tokens remain in the output, otherwise they are removed.
    """

    def __init__(self, layer: nn.Module, prompts: int, width: int, *, stay: bool) -> None:
        super().__init__()
        self.layer, self.stay = layer, stay
        self.prompts = nn.Parameter(torch.empty(prompts, width).normal_(std=0.02))

    def forward(self, states: Tensor, *args: Any, **kwargs: Any) -> Any:
        prompts = self.prompts.to(states.dtype).expand(len(states), -1, -1)  # (b, p, d)
        out = self.layer(torch.cat([states[:, :1], prompts, states[:, 1:]], dim=1), *args, **kwargs)
        if self.stay:
            return out
        return map_first(lambda states: torch.cat([states[:, :1], states[:, 1 + len(self.prompts) :]], dim=1), out)


def insert_prompts(layers: nn.ModuleList, width: int, *, place: str, prompts: int) -> None:
    """Insert prompts: `shallow` at the first layer and kept in all others, `deep` new ones in every layer."""
    for i in range({"none": 0, "shallow": 1, "deep": len(layers)}[place]):
        layers[i] = PromptedLayer(layers[i], prompts, width, stay=place == "shallow")


def prompt_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the prompts of a network."""
    return [layer.prompts for layer in module.modules() if isinstance(layer, PromptedLayer)]

"""Replace feed-forward networks inside transformers: by expert layers, or by wider networks of the same size."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from holdfast.core.errors import BadInput, check_at_least, unknown
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE
from holdfast.nn.graft.insert import InsertingNeck

# submodule names of the up projection, the activation and the down projection in layers of `transformers`
FEED_FORWARD_NAMES = (
    ("mlp.fc1", "mlp.activation_fn", "mlp.fc2"),
    ("mlp.fc1", "mlp.activation", "mlp.fc2"),
    ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"),
    ("ffn.lin1", "ffn.activation", "ffn.lin2"),
)
LAYER_CHOICES = ("last-two", "every-two")


def insert_experts(
    layers: nn.ModuleList, settings: ExpertSettings, *, at: str | int | Sequence[int] = LAYER_CHOICES[0]
) -> None:
    """Replace the feed-forward networks of the layers `at` by experts that start as copies of them.

    With gates that sum to one the network computes the same function as before, up to router noise.
    """
    for index in layer_indices(at, len(layers)):
        layer = layers[index]
        names = feed_forward_names(layer)
        up, activation, down = cast(Any, [layer.get_submodule(name) for name in names])
        experts = SparseMoE.from_feed_forward(up, down, activation, settings)
        for name, module in zip(names, (experts, nn.Identity(), nn.Identity()), strict=True):
            layer.set_submodule(name, module)


def expert_layers(module: nn.Module) -> list[SparseMoE]:
    """Return the expert layers of a network, from input to output."""
    return [part for part in module.modules() if isinstance(part, SparseMoE)]


def describe_experts(module: nn.Module) -> dict[str, int] | None:
    """Return the number of experts, of experts per token and of expert layers; None for a network without experts."""
    layers = expert_layers(module)
    if not layers:
        return None
    return {"count": layers[0].settings.count, "top": layers[0].settings.top, "layers": len(layers)}


def layer_indices(at: str | int | Sequence[int], layers: int) -> list[int]:
    """Return sorted indices below `layers`.

    `last-two` selects every second of the last four layers (8 and 10 of 12), `every-two` selects 0, 2, 4 and so on.
    """
    if at == "last-two":
        return [i for i in (layers - 4, layers - 2) if i >= 0] or [0]
    if at == "every-two":
        return list(range(0, layers, 2))
    if isinstance(at, str):
        raise unknown("value of experts.at", at, LAYER_CHOICES)
    indices = [at] if isinstance(at, int) else list(at)
    if not indices or any(type(i) is not int or not -layers <= i < layers for i in indices):
        choices = " or ".join(LAYER_CHOICES)
        raise BadInput(f"`experts.at` must list layers from 0 to {layers - 1}, or be {choices}; got {indices}")
    return sorted({i % layers for i in indices})


def feed_forward_names(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of up projection, activation and down projection in a layer or in a layer that it wraps."""
    modules = dict(layer.named_modules())
    for suffixes in FEED_FORWARD_NAMES:
        for prefix in ("", *(f"{name}." for name in modules)):
            names = tuple(prefix + suffix for suffix in suffixes)
            up, activation, down = (modules.get(name) for name in names)
            if isinstance(up, nn.Linear) and activation is not None and isinstance(down, nn.Linear):
                return names
    if expert_layers(layer):
        raise BadInput("the encoder already has experts in this layer: insert them once")
    raise BadInput(
        f"{type(layer).__name__} has no feed-forward network of two linear layers that experts can replace: use a "
        "ViT, DeiT or DINOv2, or a text encoder such as BERT"
    )


class ExpertsNeck(InsertingNeck):
    """Insert GMoE's experts into the transformer below; the neck itself is the identity (Li et al., 2023)."""

    Settings = ExpertSettings
    trains_parts = True

    def __init__(self, width: int, *, at: str | Sequence[int] = "last-two", **settings: Any) -> None:
        super().__init__()
        self.width, self.at, self.settings = width, at, ExpertSettings(**settings)

    def insert(self, backbone: Backbone) -> None:
        insert_experts(backbone.stack(), self.settings, at=self.at)


def widen(up: nn.Linear, down: nn.Linear, *, times: int) -> tuple[nn.Linear, nn.Linear]:
    """Return a network of `times` the hidden units that computes the same function.

    Every hidden unit is copied and its outgoing weights are divided at random among the copies. Equal shares would give
    the copies equal gradients forever.
    """
    check_at_least(1, times=times)
    hidden, width = up.weight.shape
    wide, narrow = nn.Linear(width, times * hidden, bias=up.bias is not None), nn.Linear(times * hidden, width)
    shares = torch.rand(times, hidden) + 0.1
    shares = (shares / shares.sum(dim=0)).flatten().to(down.weight.device)  # (times hidden,), sums to one per unit
    with torch.no_grad():
        wide.weight.copy_(up.weight.repeat(times, 1))
        narrow.weight.copy_(down.weight.repeat(1, times) * shares)
        if up.bias is not None:
            wide.bias.copy_(up.bias.repeat(times))
        if down.bias is None:
            narrow.bias = None  # pyright: ignore[reportAttributeAccessIssue]
        else:
            narrow.bias.copy_(down.bias)
    return wide.to(up.weight.device), narrow.to(up.weight.device)


class WideNeck(InsertingNeck):
    """Widen feed-forward networks of the transformer below; the neck itself is the identity.

    `times=2` costs the compute of two experts per token; `times=6` has the number of parameters of six experts.
    """

    def __init__(self, width: int, *, times: int = 2, at: str | Sequence[int] = "last-two") -> None:
        super().__init__()
        self.width, self.times, self.at = width, times, at

    def insert(self, backbone: Backbone) -> None:
        layers = backbone.stack()
        for index in layer_indices(self.at, len(layers)):
            layer = layers[index]
            up_name, _, down_name = feed_forward_names(layer)
            up, down = cast(Any, [layer.get_submodule(name) for name in (up_name, down_name)])
            wide, narrow = widen(up, down, times=self.times)
            layer.set_submodule(up_name, wide)
            layer.set_submodule(down_name, narrow)

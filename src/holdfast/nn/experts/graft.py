"""Experts in the place of the feed-forward networks of a transformer's layers, and back while they are still copies.

L layers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.settings import type_error
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.layer import Options, SparseMoE

# the linear map up, the activation and the linear map down, as the layers of transformers call them
FEEDS = (
    ("mlp.fc1", "mlp.activation_fn", "mlp.fc2"),
    ("mlp.fc1", "mlp.activation", "mlp.fc2"),
    ("intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"),
    ("ffn.lin1", "ffn.activation", "ffn.lin2"),
)
NAMED = ("last-two", "every-two")
KEYS = ("at", *(field.name for field in fields(Options)))


def settled(given: int | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """All settings of experts from their number or from some settings, `at` included; None for none."""
    if given is not None and not isinstance(given, int | Mapping):
        raise BadInput(f"experts are a number of them or settings, not {given!r}")
    told: dict[str, Any] = {"count": given} if isinstance(given, int) else dict(given or {})
    if not told or told.get("count") == 0:
        return None
    for key in told:
        if key not in KEYS:
            raise unknown("setting of experts", key, KEYS)
    at = told.pop("at", NAMED[0])
    if wrong := type_error(Options, told):
        raise BadInput(f"experts: {wrong}")
    return {"at": at, **asdict(Options(**told))}


def put_experts(layers: nn.ModuleList, options: Options, *, at: str | int | Sequence[int] = NAMED[0]) -> None:
    """Let experts stand where the feed-forward networks of these layers stood, each a copy of the one before it.

    With gates that add up to one the network is what it was, noise apart.
    """
    for place in places(at, len(layers)):
        layer = layers[place]
        up, activation, down = feed_of(layer)
        found = [layer.get_submodule(name) for name in (up, activation, down)]
        assert isinstance(found[0], nn.Linear)
        assert isinstance(found[2], nn.Linear)
        layer.set_submodule(up, SparseMoE.of(found[0], found[2], found[1], options))
        layer.set_submodule(activation, nn.Identity())
        layer.set_submodule(down, nn.Identity())


def put_settled(layers: nn.ModuleList, given: int | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The same from what a user said; all settings come back, for a model folder."""
    found = settled(given)
    if found is not None:
        put_experts(layers, Options(**{k: v for k, v in found.items() if k != "at"}), at=found["at"])
    return found


def take_out(layers: nn.ModuleList) -> None:
    """The plain networks again: only while the experts of each layer are alike, for then it is the same function."""
    for layer in layers:
        feed = next((f for f in _feeds(layer) if isinstance(layer.get_submodule(f[0]), SparseMoE)), None)
        if feed is not None:
            experts = layer.get_submodule(feed[0])
            assert isinstance(experts, SparseMoE)
            up, down = experts.single()
            for name, part in zip(feed, (up, experts.act_fn, down), strict=True):
                layer.set_submodule(name, part)


def experts_in(module: nn.Module) -> list[SparseMoE]:
    """The layers of experts of a network, from input to output."""
    return [part for part in module.modules() if isinstance(part, SparseMoE)]


def told_of(module: nn.Module) -> dict[str, int] | None:
    """What somebody who runs a network should know of its experts: how many, how many a token goes to, in how many
    layers; None where it has none."""
    found = experts_in(module)
    return {"count": found[0].options.count, "top": found[0].options.top, "layers": len(found)} if found else None


def places(at: str | int | Sequence[int], layers: int) -> list[int]:
    """`last-two`: every second of the last four, 8 and 10 of 12; `every-two`: 0, 2, 4 and so on; else as listed."""
    if at == "last-two":
        return [i for i in (layers - 4, layers - 2) if i >= 0] or [0]
    if at == "every-two":
        return list(range(0, layers, 2))
    if isinstance(at, str):
        raise unknown("place of experts", at, NAMED)
    found = [at] if isinstance(at, int) else list(at)
    if not found or any(type(i) is not int or not -layers <= i < layers for i in found):
        raise BadInput(f"experts.at names layers from 0 to {layers - 1}, or {' or '.join(NAMED)}, not {found}")
    return sorted({i % layers for i in found})


def _feeds(layer: nn.Module) -> list[tuple[str, str, str]]:
    """The feed-forward networks that the layer, or one that it wraps, has by the names of transformers."""
    names = [name for name, _ in layer.named_modules()]
    found = []
    for feed in FEEDS:
        for name in names:
            inner = name.removesuffix(feed[0])
            if name.endswith(feed[0]) and inner in ("", *(f"{n}." for n in names)):
                all_three = (inner + feed[0], inner + feed[1], inner + feed[2])
                if all(each in names for each in all_three):
                    found.append(all_three)
    return found


def feed_of(layer: nn.Module) -> tuple[str, str, str]:
    """What a layer calls its linear map up, its activation and its linear map down."""
    for up, activation, down in _feeds(layer):
        pair = layer.get_submodule(up), layer.get_submodule(down)
        if all(isinstance(part, nn.Linear) for part in pair):
            return up, activation, down
    if experts_in(layer):
        raise BadInput(
            "the encoder already has experts in this layer: put them in once, by neck=experts or by its own setting"
        )
    raise BadInput(
        f"{type(layer).__name__} has no feed-forward network of two linear maps that experts could take the place of: "
        "use a ViT, a DeiT, a DINOv2 or a text encoder such as BERT"
    )


class ExpertsNeck(nn.Module):
    """Puts experts into the layers of the transformer below it, and does nothing itself."""

    def __init__(self, width: int, *, at: str | Sequence[int], options: Options) -> None:
        super().__init__()
        self.width, self.at, self.options, self.attached = width, at, options, False

    def attach(self, backbone: Backbone) -> None:
        if not self.attached:
            put_experts(backbone.stack(), self.options, at=self.at)
            self.attached = True

    def forward(self, z: Tensor) -> Tensor:
        return z


def experts(
    width: int,
    *,
    count: int = 6,
    at: str | Sequence[int] = "last-two",
    top: int = 2,
    renormalise: bool | None = None,
    router: str = "cosine",
    inner: int = 256,
    temperature: float = 0.5,
    temperature_learned: bool = True,
    noise: float = 1.0,
    balance: float = 0.01,
    form: str = "logit",
    threshold_learns: bool = True,
    capacity: float = 0.0,
    eval_capacity: float = 0.0,
    dropout: float = 0.0,
) -> ExpertsNeck:
    """GMoE's layers: what each setting means is said in `Options`."""
    options = Options(
        count=count,
        top=top,
        renormalise=renormalise,
        router=router,
        inner=inner,
        temperature=temperature,
        temperature_learned=temperature_learned,
        noise=noise,
        balance=balance,
        form=form,
        threshold_learns=threshold_learns,
        capacity=capacity,
        eval_capacity=eval_capacity,
        dropout=dropout,
    )
    return ExpertsNeck(width, at=at, options=options)


def widened(up: nn.Linear, down: nn.Linear, *, times: int) -> tuple[nn.Linear, nn.Linear]:
    """The same function with w h hidden units: copies of each unit, between which its way down is dealt by chance.

    Copies with equal ways down would get equal gradients for ever; shares that differ let them part.
    """
    if times < 1:
        raise BadInput(f"a feed-forward network is at least once as wide as it was, not {times} times")
    hidden, width = up.weight.shape
    wide, narrow = nn.Linear(width, times * hidden, bias=up.bias is not None), nn.Linear(times * hidden, width)
    shares = torch.rand(times, hidden) + 0.1
    shares = (shares / shares.sum(dim=0)).flatten().to(down.weight.device)  # (w h,) a unit's add up to one
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


def put_wide(layers: nn.ModuleList, *, times: int, at: str | int | Sequence[int]) -> None:
    """Let the feed-forward networks of these layers be wider; the whole stays the function that it was."""
    for place in places(at, len(layers)):
        layer = layers[place]
        names = feed_of(layer)
        up, down = layer.get_submodule(names[0]), layer.get_submodule(names[2])
        assert isinstance(up, nn.Linear)
        assert isinstance(down, nn.Linear)
        for name, part in zip((names[0], names[2]), widened(up, down, times=times), strict=True):
            layer.set_submodule(name, part)


class WideNeck(nn.Module):
    """Widens the feed-forward networks of the transformer below it, and does nothing itself.

    `times=2` computes what two experts a token compute; `times=6` has as many parameters as six experts.
    """

    def __init__(self, width: int, *, times: int = 2, at: str | Sequence[int] = "last-two") -> None:
        super().__init__()
        self.width, self.times, self.at, self.attached = width, times, at, False

    def attach(self, backbone: Backbone) -> None:
        if not self.attached:
            put_wide(backbone.stack(), times=self.times, at=self.at)
            self.attached = True

    def forward(self, z: Tensor) -> Tensor:
        return z

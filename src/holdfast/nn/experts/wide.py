"""One feed-forward network, as wide as several experts together: what their parameters are good for without a router.

w times wider, d width, h hidden width
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.graft import feed_of, places


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

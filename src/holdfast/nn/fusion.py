"""Two networks side by side, joined at their outputs: logits added, or probabilities; what a memory is compared with.

b batch, t tokens, d width of one network, c classes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Tokens
from holdfast.core.tape import record
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.companion import GeneralEncoder
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.heads import Dense, Linear

KINDS = ("dense", "linear")
ADDED = ("logits", "probabilities")


class ConcatenatedStates(nn.Module):
    """States (b, t, 2d): the network's own, then those of a second one; neither sees the other."""

    def __init__(self, width: int, second: GeneralEncoder) -> None:
        super().__init__()
        if second.width != width:
            raise BadInput(f"the general model is {second.width} wide and the domain's {width}: take two of one width")
        self.second, self.width = second, 2 * width
        self.settings: dict[str, Any] = {"frozen": second.frozen is not None, "digest": second.digest}

    def forward(self, run: Callable[[], Tensor], x: Tokens) -> Tensor:
        (other,) = self.second.states(x, [self.second.depth])
        own = run()
        return torch.cat([own, other.to(own.dtype)], dim=-1)

    def learned(self) -> nn.Module:
        return nn.ModuleList()

    def save(self, folder: Path) -> None:
        self.second.save(folder)


class Fusion(nn.Module):
    """A head on each half of the features, or one on both, whose outputs are added.

    logits: f(z) + g(z'). probabilities: log (p(z) + p'(z')) / 2; in training each half then has a risk of its own, as
    if it were trained alone: -log p(y) - log p'(y).
    """

    def __init__(
        self, width: int, outputs: int, *, kind: str, shared: bool, add: str, dropout: float, layers: int = 1
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise unknown("kind of head", kind, KINDS)
        if add not in ADDED:
            raise unknown("thing to add", add, ADDED)
        self.outputs, self.add = outputs, add
        self.settings = {
            "width": width, "outputs": outputs, "kind": kind, "shared": shared, "add": add, "dropout": dropout,
            "layers": layers,
        }  # fmt: skip
        half = width // 2
        heads = [
            Dense(half, outputs, dropout=dropout, layers=layers) if kind == "dense" else Linear(half, outputs)
            for _ in range(1 if shared else 2)
        ]
        self.heads = nn.ModuleList(heads)

    @classmethod
    def build(
        cls,
        width: int,
        classes: Sequence[str],
        encoder: Backbone,
        *,
        kind: str = "dense",
        shared: bool = True,
        add: str = "logits",
        dropout: float = 0.1,
        layers: int = 1,
    ) -> Self:
        if (
            not isinstance(encoder, TextEncoder)
            or not isinstance(encoder.companion, ConcatenatedStates)
            or width != encoder.width
        ):
            raise BadInput(
                "head 'fusion' joins two networks side by side: use --encoder gmap --set encoder.strategy=beside, "
                "and a neck that leaves the features as they are"
            )
        return cls(width, len(classes), kind=kind, shared=shared, add=add, dropout=dropout, layers=layers)

    def last_layer(self) -> nn.Linear:
        """The last layer of the first head: of the only one, or of the domain's."""
        first = self.heads[0]
        assert isinstance(first, Dense | Linear)
        return first.last_layer()

    def forward(self, z: Tensor) -> Tensor:
        first, second = self.heads[0], self.heads[-1]
        own, other = (f(half) for f, half in zip((first, second), z.chunk(2, dim=-1), strict=True))  # (b, c)
        if self.add == "logits":
            return own + other
        own, other = own.log_softmax(-1), other.log_softmax(-1)
        if not self.training:
            return torch.logaddexp(own, other) - torch.log(torch.tensor(2.0, device=z.device))
        # less its norm, the cross-entropy of the sum is the sum of the two cross-entropies
        record("loss/ensemble", -(own + other).logsumexp(-1).mean())
        return own + other

"""Late fusion of two networks, a baseline for memories: logits or probabilities are added.

Shapes: b batch, t tokens, d width of one network, c classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.core.tape import record
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.companion import GeneralEncoder
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.heads import Dense, DenseSettings, Linear


class ConcatenatedStates(nn.Module):
    """Concatenates the states of two independent networks, (b, t, 2d)."""

    def __init__(self, width: int, second: GeneralEncoder) -> None:
        super().__init__()
        second.check_width(width)
        self.second, self.width = second, 2 * width
        self.settings: dict[str, Any] = {"frozen": second.frozen is not None, "digest": second.digest}

    def forward(self, run: Callable[[], Tensor], x: Tokens) -> Tensor:
        (other,) = self.second.states(self.second.text_read(x), [self.second.depth])
        states = run()
        return torch.cat([states, other.to(states.dtype)], dim=-1)

    def learned(self) -> nn.Module:
        """Return the modules that are always trained: none."""
        return nn.ModuleList()

    def save(self, folder: Path) -> None:
        self.second.save(folder)


@checked_settings
class FusionSettings(DenseSettings):
    """Settings of a fusion head."""

    kind: str = setting("dense", choices=("dense", "linear"))
    shared: bool = True  # one head for both halves
    add: str = setting("logits", choices=("logits", "probabilities"))


class Fusion(nn.Module):
    """A head on each half of the features, or a shared one, whose outputs are added.

    logits: f(z) + g(z'). probabilities: log (p(z) + p'(z')) / 2; in training the risk is the sum of both risks, as if
    the halves were trained separately: -log p(y) - log p'(y).
    """

    Settings = FusionSettings

    @keywords_of(FusionSettings)
    def __init__(self, width: int, outputs: int, settings: FusionSettings) -> None:
        super().__init__()
        self.outputs, self.add = outputs, settings.add
        self.settings = {"width": width, "outputs": outputs, **asdict(settings)}
        half = width // 2
        self.heads = nn.ModuleList(
            Dense(half, outputs, dropout=settings.dropout, layers=settings.layers)
            if settings.kind == "dense"
            else Linear(half, outputs)
            for _ in range(1 if settings.shared else 2)
        )

    @classmethod
    def build(cls, width: int, classes: Sequence[str], encoder: Backbone, **settings: Any) -> Self:
        is_pair = isinstance(encoder, TextEncoder) and isinstance(encoder.companion, ConcatenatedStates)
        if not is_pair or width != encoder.width:
            raise BadInput(
                "head=fusion needs two networks: use --encoder gmap with `encoder.strategy=beside` and neck=none"
            )
        return cls(width, len(classes), **settings)

    def last_layer(self) -> nn.Linear:
        """Return the last layer of the first head: the shared one, or that of the domain network."""
        first = self.heads[0]
        assert isinstance(first, Dense | Linear)
        return first.last_layer()

    def forward(self, z: Tensor) -> Tensor:
        halves = zip((self.heads[0], self.heads[-1]), z.chunk(2, dim=-1), strict=True)
        domain, general = (head(half) for head, half in halves)  # (b, c)
        if self.add == "logits":
            return domain + general
        domain, general = domain.log_softmax(-1), general.log_softmax(-1)
        if not self.training:
            return torch.logaddexp(domain, general) - torch.log(torch.tensor(2.0, device=z.device))
        # without its normaliser, the cross-entropy of the sum is the sum of the two cross-entropies
        record("loss/ensemble", -(domain + general).logsumexp(-1).mean())
        return domain + general

"""MIRO: features that stay informative about those of the pretrained network.

Shapes: b batch, d width.
"""

import copy
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.settings import choice, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics


class MIRO(Method):
    """Minimise risk + weight * mean[log s + (z - z0)^2 / s] (Cha et al., 2022).

    z0 are the features before training and s is a learned variance per feature: a bound on the mutual information with
    the pretrained network. The published form adds intermediate layers; this one uses the backbone's output.
    """

    @dataclass(frozen=True)
    class Settings:
        weight: float = setting(0.1, search=choice(0.001, 0.01, 0.1, 1.0), help="weight of the penalty")
        start: float = setting(0.1, help="initial variance")

    def setup(self) -> None:
        self.oracle = copy.deepcopy(self.model.backbone).requires_grad_(False).eval()
        width = int(self.model.backbone.width)  # pyright: ignore[reportArgumentType]
        device = next(self.model.head.parameters()).device
        inverse = torch.tensor(self.settings.start).expm1().log().item()  # softplus(inverse) = start
        self.spread = nn.Parameter(torch.full((width,), inverse, device=device))  # (d,)
        self.optimizer = self.make_optimizer([*self.model.trainable_parameters(), self.spread])

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.oracle.eval()
        return self

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.backbone(batch.x)  # (b, d)
            output = self.model.head(self.model.neck(z))
        with torch.no_grad():
            anchor: Tensor = self.oracle(batch.x)
        risk = self.task.loss(output, batch.y)
        variance = F.softplus(self.spread) + 1e-5
        penalty = (variance.log() + (z - anchor).pow(2) / variance).mean()
        self.optimizer.minimize(with_auxiliary(risk + self.settings.weight * penalty, side))
        return {"risk": risk.detach(), "penalty": penalty.detach()}

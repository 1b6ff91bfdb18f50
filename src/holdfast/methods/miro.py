"""MIRO: stay informative about the features of the pretrained network.

b batch, d width
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class MIRO(Method):
    """risk + weight * mean[log s + (z - z0)^2 / s], z0 the features before training, s a learned variance

    of each feature: a bound on the mutual information with the pretrained network (Cha et al., 2022).
    The published form sums this over intermediate layers too; here it is at the backbone's features.
    """

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        weight: float = 0.1,
        start: float = 0.1,
    ) -> None:
        super().__init__()
        self.model, self.task, self.weight = model, task, weight
        self.oracle = copy.deepcopy(model.backbone).requires_grad_(False).eval()
        width = int(self.model.backbone.width)  # pyright: ignore[reportArgumentType]
        device = next(model.head.parameters()).device
        inverse = torch.tensor(start).expm1().log().item()  # softplus(inverse) = start
        self.spread = nn.Parameter(torch.full((width,), inverse, device=device))  # (d,)
        self.optimizer = optimizer([*model.trainable_parameters(), self.spread])

    def train(self, mode: bool = True) -> MIRO:
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
        loss, extra = risk + self.weight * penalty, auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        return {"risk": risk.detach(), "penalty": penalty.detach()}

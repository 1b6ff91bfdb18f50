"""Features from which a discriminator cannot tell the domain: DANN, and CDANN given the class.

b batch, n domains, d width, c classes
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.nn.heads import Head
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


def discriminator(width: int, hidden: int, outputs: int) -> nn.Sequential:
    """Three layers from features to domains."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class DANN(Method):
    """risk - weight * domain loss, while a critic descends the domain loss (Ganin et al., 2016).

    With `conditional` the critic also sees the class, and classes count alike (Li et al., 2018).
    One forward pass serves both players.
    """

    saved_attributes = ("optimizer", "critic")
    min_domains = 2

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        weight: float = 1.0,
        hidden: int = 256,
        critic_steps: int = 1,
        conditional: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.task, self.make_optimizer = model, task, optimizer
        self.weight, self.hidden, self.critic_steps, self.conditional = weight, hidden, critic_steps, conditional
        self.optimizer = optimizer(model.trainable_parameters())

    def begin_stage(self, info: StageInfo) -> None:
        width, device = self.model.width, next(self.model.parameters()).device
        self.judge = discriminator(width, self.hidden, len(info.train_domains)).to(device)
        self.classes = None
        if self.conditional:
            self.classes = nn.Embedding(cast(Head, self.model.head).outputs, width).to(device)
        judging = [*self.judge.parameters(), *(self.classes.parameters() if self.classes is not None else ())]
        self.critic = self.make_optimizer(judging)

    def step(self, batch: DomainBatch) -> Metrics:
        target = batch.positions()
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        for _ in range(self.critic_steps):
            self.critic.minimize(self._domain_loss(z.detach(), batch, target))
        risk = self.task.loss(self.model.head(z), batch.y)
        confusion = self._domain_loss(z, batch, target)
        loss, extra = risk - self.weight * confusion, auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        return {"risk": risk.detach(), "confusion": confusion.detach()}

    def _domain_loss(self, z: Tensor, batch: DomainBatch, target: Tensor) -> Tensor:
        if self.classes is None:
            return F.cross_entropy(self.judge(z), target)
        each = F.cross_entropy(self.judge(z + self.classes(batch.y)), target, reduction="none")  # (b,)
        counts = torch.bincount(batch.y, minlength=self.classes.num_embeddings)  # (c,)
        return (each / (counts[batch.y] * (counts > 0).sum())).sum()

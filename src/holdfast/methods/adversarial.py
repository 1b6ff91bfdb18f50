"""DANN and CDANN: features from which a domain critic cannot predict the domain.

Shapes: b batch, n domains, d width, c classes.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.settings import log, setting, whole
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.heads import Head


def discriminator(width: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build a critic of three layers that maps features (b, width) to logits (b, outputs)."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class DANN(Method):
    """Minimise risk - weight * domain loss, while a critic minimises the domain loss (Ganin et al., 2016).

    With `conditional` the critic also sees the class, and all classes have equal weight (Li et al., 2018). Both use the
    same forward pass.
    """

    @dataclass(frozen=True)
    class Settings:
        weight: float = setting(1.0, search=log(1e-2, 1e2), help="weight of the domain loss")
        hidden: int = setting(256, search=whole(64, 1024), help="hidden units of the critic")
        critic_steps: int = setting(1, search=whole(1, 8), help="updates of the critic per step")
        conditional: bool = False

    saved_attributes = ("optimizer", "critic_optimizer")
    min_domains = 2

    def begin_stage(self, info: StageInfo) -> None:
        width, device = self.model.width, next(self.model.parameters()).device
        self.critic = discriminator(width, self.settings.hidden, len(info.train_domains)).to(device)
        self.classes = None
        if self.settings.conditional:
            self.classes = nn.Embedding(cast(Head, self.model.head).outputs, width).to(device)
        embedding = self.classes.parameters() if self.classes is not None else ()
        self.critic_optimizer = self.make_optimizer([*self.critic.parameters(), *embedding])

    def step(self, batch: DomainBatch) -> Metrics:
        target = batch.positions()
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        for _ in range(self.settings.critic_steps):
            self.critic_optimizer.minimize(self._domain_loss(z.detach(), batch, target))
        risk = self.task.loss(self.model.head(z), batch.y)
        confusion = self._domain_loss(z, batch, target)
        self.optimizer.minimize(with_auxiliary(risk - self.settings.weight * confusion, side))
        return {"risk": risk.detach(), "confusion": confusion.detach()}

    def _domain_loss(self, z: Tensor, batch: DomainBatch, target: Tensor) -> Tensor:
        if self.classes is None:
            return F.cross_entropy(self.critic(z), target)
        losses = F.cross_entropy(self.critic(z + self.classes(batch.y)), target, reduction="none")  # (b,)
        counts = torch.bincount(batch.y, minlength=self.classes.num_embeddings)  # (c,)
        return (losses / (counts[batch.y] * (counts > 0).sum())).sum()

"""PDA: features and predictions of every class alike in every pair of domains.

b batch, n domains, d width, c classes
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.adversarial import discriminator
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.nn.heads import WordHead
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class PDA(Method):
    """risk + feature_weight * adversarial + prediction_weight * KL, both class by class over pairs of domains

    (prompt-based distribution alignment, Jia & Zhang, 2022). With `words` the KL is between distributions over the
    words of a head that says words, as published: the label words, or with head.full=true the vocabulary.
    """

    saved_attributes = ("optimizer", "critic")
    min_domains = 2

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        feature_weight: float = 0.1,
        prediction_weight: float = 0.1,
        hidden: int = 256,
        words: bool = False,
    ) -> None:
        super().__init__()
        if words and not isinstance(model.head, WordHead):
            raise BadInput("method.words aligns distributions over words: use --set head=words, or leave it out")
        self.words = words
        self.model, self.task, self.make_optimizer, self.hidden = model, task, optimizer, hidden
        self.feature_weight, self.prediction_weight = feature_weight, prediction_weight
        self.optimizer = optimizer(model.trainable_parameters())

    def begin_stage(self, info: StageInfo) -> None:
        width, device = self.model.width, next(self.model.parameters()).device
        pairs = combinations(range(len(info.train_domains)), 2)
        self.judges = nn.ModuleList(discriminator(width, self.hidden, 1) for _ in pairs).to(device)
        self.critic = self.make_optimizer(list(self.judges.parameters()))

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        output = self.model.head(z)
        risk = self.task.loss(output, batch.y)
        judged = self._told_apart(z.detach(), batch, flipped=False)
        if judged.requires_grad:  # a class that one domain alone shows has nothing to align
            self.critic.accumulate(judged)
        if parallel.all_max(int(judged.requires_grad))[0]:  # in some process, so that all take the step or none
            self.critic.step()
        confusion = self._told_apart(z, batch, flipped=True)
        gap = self._prediction_gap(self._said(z) if self.words else output, batch)
        loss = risk + self.feature_weight * confusion + self.prediction_weight * gap
        extra = auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        return {"risk": risk.detach(), "confusion": confusion.detach(), "gap": gap.detach()}

    def _said(self, z: Tensor) -> Tensor:
        return cast(WordHead, self.model.head).words(z)

    def _by_class(self, t: Tensor, batch: DomainBatch) -> list[list[Tensor]]:
        """For each class of the batch, its rows in each domain."""
        pieces = list(zip(batch.split(t), batch.split(batch.y), strict=True))
        return [[rows[y == c] for rows, y in pieces] for c in batch.y.unique().tolist()]

    def _told_apart(self, z: Tensor, batch: DomainBatch, *, flipped: bool) -> Tensor:
        losses = []
        for groups in self._by_class(z, batch):
            for judge, (a, b) in zip(self.judges, combinations(groups, 2), strict=True):
                if len(a) and len(b):
                    logits = judge(torch.cat([a, b]))[:, 0]
                    first = torch.cat([torch.ones(len(a)), torch.zeros(len(b))]).to(logits)
                    losses.append(F.binary_cross_entropy_with_logits(logits, 1 - first if flipped else first))
        return torch.stack(losses).mean() if losses else z.new_zeros(())

    def _prediction_gap(self, output: Tensor, batch: DomainBatch) -> Tensor:
        gaps = [output.sum() * 0.0]
        for groups in self._by_class(output.softmax(dim=-1), batch):
            means = [g.mean(dim=0) for g in groups if len(g)]  # (c,) each
            gaps += [F.kl_div(a.clamp(min=1e-8).log(), b, reduction="sum") for a, b in permutations(means, 2)]
        return torch.stack(gaps).sum() / max(1, len(gaps) - 1)

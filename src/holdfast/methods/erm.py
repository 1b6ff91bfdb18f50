"""Empirical risk minimisation: the baseline that every other rule has to beat."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import MakeOptimizer, Method, Metrics
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.memory.heterogeneous import Heterogeneous
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class ERM(Method):
    """Minimise the mean risk over all domains, plus the losses that modules left on the tape (Vapnik, 1998)."""

    follows_growth = "any"

    def __init__(self, model: Model, *, task: Task, optimizer: MakeOptimizer) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.optimizer = optimizer(model.learning())

    def step(self, batch: DomainBatch) -> Metrics:
        if self.pieces > 1:
            return self._in_pieces(batch)
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        if extra is None:
            self.optimizer.descend(risk)
            return {"risk": risk.detach()}
        self.optimizer.descend(risk + extra)
        return {"risk": risk.detach(), "auxiliary": extra.detach()}

    def _in_pieces(self, batch: DomainBatch) -> Metrics:
        """The mean over the batch is the sum of the means over its pieces, each by its share of what is counted."""
        risks, whole = [], self.task.counted(batch.y)
        for piece in batch.pieces(self.pieces):
            part = self.task.counted(piece.y)
            assert part is not None, "why_whole was not asked"
            assert whole is not None
            risk = self.task.loss(self.model(piece.x), piece.y) * (part / whole)
            self.optimizer.gather(risk)
            risks.append(risk.detach())
        self.optimizer.gathered()
        return {"risk": torch.stack(risks).sum()}

    def why_whole(self, batch: DomainBatch) -> str:
        if self.task.counted(batch.y) is None:
            return "the loss of this task is no mean over examples, so that a batch cannot be taken in pieces"
        for part in self.model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm | Heterogeneous | SparseMoE):
                return "this network looks at all examples of a batch together, so that it cannot be taken in pieces"
        return ""

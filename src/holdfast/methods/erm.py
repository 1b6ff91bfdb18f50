"""Empirical risk minimisation: the baseline that every other rule has to beat."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class ERM(Method):
    """Minimise the mean risk over all domains, plus the losses that modules left on the tape (Vapnik, 1998)."""

    supports_growth = "any"

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.optimizer = optimizer(model.trainable_parameters())

    def step(self, batch: DomainBatch) -> Metrics:
        if self.microbatches > 1:
            return self._in_pieces(batch)
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        if extra is None:
            self.optimizer.minimize(risk)
            return {"risk": risk.detach()}
        self.optimizer.minimize(risk + extra)
        return {"risk": risk.detach(), "auxiliary": extra.detach()}

    def _in_pieces(self, batch: DomainBatch) -> Metrics:
        """The mean over the batch is the sum of the means over its pieces, each by its share of what is counted."""
        risks, whole = [], self.task.loss_count(batch.y)
        for piece in batch.microbatches(self.microbatches):
            part = self.task.loss_count(piece.y)
            assert part is not None, "why_whole was not asked"
            assert whole is not None
            risk = self.task.loss(self.model(piece.x), piece.y) * (part / whole)
            self.optimizer.accumulate(risk)
            risks.append(risk.detach())
        self.optimizer.step()
        return {"risk": torch.stack(risks).sum()}

    def why_not_split(self, batch: DomainBatch) -> str:
        if self.task.loss_count(batch.y) is None:
            return "the loss of this task is no mean over examples, so that a batch cannot be taken in pieces"
        for part in self.model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm | HeterogeneousMemory | SparseMoE):
                return "this network looks at all examples of a batch together, so that it cannot be taken in pieces"
        return ""


class GroupDRO(Method):
    """Minimise sum_i q_i risk_i, with q_i multiplied by exp(eta * risk_i) at every step (Sagawa et al., 2020)."""

    q: Tensor  # (n,) one weight per training domain
    min_domains = 2

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory, eta: float = 0.01) -> None:
        super().__init__()
        self.model, self.task, self.eta = model, task, eta
        self.optimizer = optimizer(model.trainable_parameters())
        self.register_buffer("q", torch.ones(1))

    def begin_stage(self, info: StageInfo) -> None:
        n = len(info.train_domains)
        self.q = torch.full((n,), 1.0 / n, device=self.q.device)

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            output = self.model(batch.x)
        pairs = zip(batch.split(output), batch.split(batch.y), strict=True)
        risks = torch.stack([self.task.loss(o, y) for o, y in pairs])  # (n,)
        with torch.no_grad():
            self.q.mul_((self.eta * parallel.mean(risks)).exp())
            self.q.div_(self.q.sum())
        loss, extra = risks @ self.q, auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        return {"risk": risks.mean().detach(), "worst": risks.max().detach()}

"""GroupDRO: the domain with the highest risk gets the most weight."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import MakeOptimizer, Method, Metrics, StageInfo
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class GroupDRO(Method):
    """Minimise sum_i q_i risk_i, with q_i multiplied by exp(eta * risk_i) at every step (Sagawa et al., 2020)."""

    q: Tensor  # (n,) one weight per training domain
    min_domains = 2

    def __init__(self, model: Model, *, task: Task, optimizer: MakeOptimizer, eta: float = 0.01) -> None:
        super().__init__()
        self.model, self.task, self.eta = model, task, eta
        self.optimizer = optimizer(model.learning())
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
        self.optimizer.descend(loss if extra is None else loss + extra)
        return {"risk": risks.mean().detach(), "worst": risks.max().detach()}

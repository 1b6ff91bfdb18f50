"""Empirical risk minimisation: the baseline that every other rule has to beat."""

from __future__ import annotations

from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import MakeOptimizer, Method, Metrics
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
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        if extra is None:
            self.optimizer.descend(risk)
            return {"risk": risk.detach()}
        self.optimizer.descend(risk + extra)
        return {"risk": risk.detach(), "auxiliary": extra.detach()}

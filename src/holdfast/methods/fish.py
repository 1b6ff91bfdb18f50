"""Fish: walk through the domains one by one, then go part of the way."""

from __future__ import annotations

import torch

from holdfast.core.batch import DomainBatch
from holdfast.core.chance import shared_chance
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import MakeOptimizer, Method, Metrics
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Fish(Method):
    """p + meta_lr * (walk(p) - p), the walk one optimizer step per domain: inter-domain gradient matching

    to first order (Shi et al., 2021). The walk's optimizer state is kept between steps.
    """

    min_domains = 2

    def __init__(self, model: Model, *, task: Task, optimizer: MakeOptimizer, meta_lr: float = 0.5) -> None:
        super().__init__()
        self.model, self.task, self.meta_lr = model, task, meta_lr
        self.optimizer = optimizer(model.learning())

    def step(self, batch: DomainBatch) -> Metrics:
        moving = self.optimizer.parameters
        start = [p.detach().clone() for p in moving]
        parts, risks = batch.parts(), []
        with shared_chance():
            order = torch.randperm(len(parts)).tolist()
        for i in order:
            with tape() as side:
                risk = self.task.loss(self.model(parts[i].x), parts[i].y)
            extra = auxiliary(side)
            self.optimizer.descend(risk if extra is None else risk + extra)
            risks.append(risk.detach())
        with torch.no_grad():
            for p, old in zip(moving, start, strict=True):
                p.copy_(old.lerp(p, self.meta_lr))
        return {"risk": torch.stack(risks).mean()}

"""Mixup: examples of two domains blended, or features of any two, and their targets with them."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import use_shared_rng
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Mixup(Method):
    """Train on l*x_i + (1-l)*x_j of domains i and j, l ~ Beta(a, a) (Zhang et al., 2018; Yan et al., 2020).

    Tensors are blended as inputs; texts and graphs, which cannot be, as features.
    """

    min_domains = 2

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory, alpha: float = 0.2) -> None:
        super().__init__()
        self.model, self.task, self.alpha = model, task, alpha
        self.optimizer = optimizer(model.trainable_parameters())

    def step(self, batch: DomainBatch) -> Metrics:
        n = len(batch.sizes)
        with use_shared_rng():
            ring = torch.randperm(n).tolist()  # each domain is blended with the next of a random ring
            share = torch.distributions.Beta(self.alpha, self.alpha).sample((n,)).tolist()
        partner = {ring[i]: ring[(i + 1) % n] for i in range(n)}
        x, before = batch.x, isinstance(batch.x, Tensor)
        if isinstance(x, Tensor) and x.dtype == torch.uint8:
            x = x.float() / 255
        with tape() as side:
            whole = x if before else self.model.features(x)
            parts = batch.split(whole)
            least = [min(batch.sizes[i], batch.sizes[partner[i]]) for i in range(n)]
            mixed = torch.cat(
                [share[i] * parts[i][: least[i]] + (1 - share[i]) * parts[partner[i]][: least[i]] for i in range(n)]
            )
            output = self.model(mixed) if before else self.model.head(mixed)
        ys = batch.split(batch.y)
        risks = []
        for i, o in enumerate(output.split(least)):
            own, other = ys[i][: least[i]], ys[partner[i]][: least[i]]
            risks.append(share[i] * self.task.loss(o, own) + (1 - share[i]) * self.task.loss(o, other))
        risk, extra = torch.stack(risks).mean(), auxiliary(side)
        self.optimizer.minimize(risk if extra is None else risk + extra)
        return {"risk": risk.detach()}


class ManifoldMixup(Method):
    """Train on l*z_i + (1-l)*z_j of the features of any two examples, l ~ Beta(a, a) (Verma et al., 2019)."""

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory, alpha: float = 1.0) -> None:
        super().__init__()
        self.model, self.task, self.alpha = model, task, alpha
        self.optimizer = optimizer(model.trainable_parameters())

    def step(self, batch: DomainBatch) -> Metrics:
        with use_shared_rng():
            share = float(torch.distributions.Beta(self.alpha, self.alpha).sample())
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        other = torch.randperm(len(z)).to(z.device)
        output = self.model.head(share * z + (1 - share) * z[other])
        risk = share * self.task.loss(output, batch.y) + (1 - share) * self.task.loss(output, batch.y[other])
        extra = auxiliary(side)
        self.optimizer.minimize(risk if extra is None else risk + extra)
        return {"risk": risk.detach()}

"""MLDG: a step on some domains is good if it also lowers the risk on a domain left out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import use_shared_rng
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class MLDG(Method):
    """F(p) + beta * G(p - inner_lr * dF/dp): F on the seen domains, G on the one held out (Li et al., 2018).

    First order treats the inner gradient as a constant; `second_order` differentiates through it.
    """

    min_domains = 2

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        beta: float = 1.0,
        inner_lr: float = 0.01,
        second_order: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.beta, self.inner_lr, self.second_order = beta, inner_lr, second_order
        self.optimizer = optimizer(model.trainable_parameters())
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]

    def step(self, batch: DomainBatch) -> Metrics:
        with use_shared_rng():
            seen, held = batch.hold_out(int(torch.randint(len(batch.sizes), ())))
        now = self.optimizer.parameters
        inner = self._risk(dict(zip(self.names, now, strict=True)), seen)
        first = torch.autograd.grad(inner, now, create_graph=self.second_order, allow_unused=True)
        first = parallel.mean_gradients(first, now)
        ahead = [p if g is None else p - self.inner_lr * g for p, g in zip(now, first, strict=True)]
        if not self.second_order:
            ahead = [p.detach().requires_grad_() for p in ahead]
        outer = self._risk(dict(zip(self.names, ahead, strict=True)), held)
        if self.second_order:
            self.optimizer.minimize(inner + self.beta * outer)
        else:
            second = torch.autograd.grad(outer, ahead, allow_unused=True)
            self.optimizer.apply_gradients([self._sum(a, b) for a, b in zip(first, second, strict=True)])
        return {"risk": inner.detach(), "held": outer.detach()}

    def _sum(self, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None or second is None:
            return first if second is None else self.beta * second
        return first + self.beta * second

    def _risk(self, parameters: dict[str, Tensor], batch: DomainBatch) -> Tensor:
        with tape() as side:
            risk = self.task.loss(functional_call(self.model, parameters, (batch.x,)), batch.y)
        extra = auxiliary(side)
        return risk if extra is None else risk + extra


class Fish(Method):
    """p + meta_lr * (walk(p) - p), the walk one optimizer step per domain: inter-domain gradient matching

    to first order (Shi et al., 2021). The walk's optimizer state is kept between steps.
    """

    min_domains = 2

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory, meta_lr: float = 0.5) -> None:
        super().__init__()
        self.model, self.task, self.meta_lr = model, task, meta_lr
        self.optimizer = optimizer(model.trainable_parameters())

    def step(self, batch: DomainBatch) -> Metrics:
        moving = self.optimizer.parameters
        start = [p.detach().clone() for p in moving]
        parts, risks = batch.by_domain(), []
        with use_shared_rng():
            order = torch.randperm(len(parts)).tolist()
        for i in order:
            with tape() as side:
                risk = self.task.loss(self.model(parts[i].x), parts[i].y)
            extra = auxiliary(side)
            self.optimizer.minimize(risk if extra is None else risk + extra)
            risks.append(risk.detach())
        with torch.no_grad():
            for p, old in zip(moving, start, strict=True):
                p.copy_(old.lerp(p, self.meta_lr))
        return {"risk": torch.stack(risks).mean()}

"""MLDG and Fish: meta-learning over the domains of a batch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import use_shared_rng
from holdfast.core.settings import choice, log, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics


class MLDG(Method):
    """Minimise F(p) + beta * G(p - inner_lr * dF/dp), F on the other domains, G on a held-out one (Li et al., 2018).

    First order treats the inner gradient as a constant; `second_order` differentiates through it.
    """

    @dataclass(frozen=True)
    class Settings:
        beta: float = setting(1.0, search=log(0.1, 10), help="weight of the loss on the held-out domain")
        inner_lr: float = setting(0.01, search=log(1e-3, 1e-1), help="learning rate of the inner step")
        second_order: bool = setting(False, help="differentiate through the inner step")

    min_domains = 2

    def setup(self) -> None:
        self.names = [name for name, p in self.model.named_parameters() if p.requires_grad]

    def step(self, batch: DomainBatch) -> Metrics:
        settings = self.settings
        with use_shared_rng():
            train, held_out = batch.hold_out(int(torch.randint(len(batch.sizes), ())))
        now = self.optimizer.parameters
        inner = self._loss(now, train)
        first = torch.autograd.grad(inner, now, create_graph=settings.second_order, allow_unused=True)
        first = parallel.mean_gradients(first, now)
        ahead = [p if g is None else p - settings.inner_lr * g for p, g in zip(now, first, strict=True)]
        if not settings.second_order:
            ahead = [p.detach().requires_grad_() for p in ahead]
        outer = self._loss(ahead, held_out)
        if settings.second_order:
            self.optimizer.minimize(inner + settings.beta * outer)
        else:
            second = torch.autograd.grad(outer, ahead, allow_unused=True)
            self.optimizer.apply_gradients([self._sum(a, b) for a, b in zip(first, second, strict=True)])
        return {"risk": inner.detach(), "held": outer.detach()}

    def _sum(self, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None or second is None:
            return first if second is None else self.settings.beta * second
        return first + self.settings.beta * second

    def _loss(self, parameters: list[Any], batch: DomainBatch) -> Tensor:
        named = dict(zip(self.names, parameters, strict=True))
        with tape() as side:
            risk = self.task.loss(functional_call(self.model, named, (batch.x,)), batch.y)
        return with_auxiliary(risk, side)


class Fish(Method):
    """Update p to p + meta_lr * (walk(p) - p), where the walk is one optimizer step per domain (Shi et al., 2021).

    This matches the gradients of the domains to first order. The optimizer state of the walk is kept between steps.
    """

    @dataclass(frozen=True)
    class Settings:
        meta_lr: float = setting(0.5, search=choice(0.05, 0.1, 0.5), help="share of the walk that is taken")

    min_domains = 2

    def step(self, batch: DomainBatch) -> Metrics:
        trained = self.optimizer.parameters
        start = [p.detach().clone() for p in trained]
        domains, risks = batch.by_domain(), []
        with use_shared_rng():
            order = torch.randperm(len(domains)).tolist()
        for count, i in enumerate(order, 1):
            with tape() as side:
                risk = self.task.loss(self.model(domains[i].x), domains[i].y)
            self.optimizer.minimize(with_auxiliary(risk, side), ends_step=count == len(order))
            risks.append(risk.detach())
        with torch.no_grad():
            for p, old in zip(trained, start, strict=True):
                p.copy_(old.lerp(p, self.settings.meta_lr))
        return {"risk": torch.stack(risks).mean()}

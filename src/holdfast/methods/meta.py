"""MLDG and Fish: meta-learning over the domains of a batch."""

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, check_at_least, check_known
from holdfast.core.seeds import use_shared_rng
from holdfast.core.settings import choice, log, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics

INNER = ("sgd", "adam")
SPLITS = ("one", "pairs")


class MLDG(Method):
    """Minimise F(p) + beta * G(step(p, dF/dp)), F on some domains, G on held-out ones (Li et al., 2018).

    step(p, g) is p - inner_lr g, or a first step of Adam. First order treats the inner gradient as a constant;
    `second_order` differentiates through it. With `splits=one`, F is the risk of all domains but a random one; with
    `splits=pairs` it is that of one domain at a time, paired with one of the `held_out` random domains. DomainBed has
    inner=adam, inner_lr=null, splits=pairs and held_out=2.
    """

    @dataclass(frozen=True)
    class Settings:
        beta: float = setting(1.0, search=log(0.1, 10), help="weight of the loss on the held-out domain")
        inner_lr: float | None = setting(
            0.01, search=log(1e-3, 1e-1), help="learning rate of the inner step; null for that of the run"
        )
        second_order: bool = setting(False, help="differentiate through the inner step")
        inner: str = setting("sgd", help="optimizer of the inner step: sgd, or adam without history")
        splits: str = setting("one", help="what is held out: one random domain, or pairs of domains")
        held_out: int = setting(1, help="held-out domains with splits=pairs")

        def __post_init__(self) -> None:
            check_known("inner optimizer", self.inner, INNER)
            check_known("value of splits", self.splits, SPLITS)
            check_at_least(1, held_out=self.held_out)
            if self.inner == "adam" and self.second_order:
                raise BadInput("second_order needs inner=sgd, since the step of Adam has almost no derivative")

    min_domains = 2

    def setup(self) -> None:
        self.names = [name for name, p in self.model.named_parameters() if p.requires_grad]

    def step(self, batch: DomainBatch) -> Metrics:
        settings, now = self.settings, self.optimizer.parameters
        pairs, losses, sums = self._pairs(batch), [], [None] * len(now)
        for train, held_out in pairs:
            inner = self._loss(now, train)
            first = torch.autograd.grad(inner, now, create_graph=settings.second_order, allow_unused=True)
            first = parallel.mean_gradients(first, now)
            ahead = [p if g is None else p - self._inner_step(g) for p, g in zip(now, first, strict=True)]
            if not settings.second_order:
                ahead = [p.detach().requires_grad_() for p in ahead]
            outer = self._loss(ahead, held_out)
            if settings.second_order:
                self.optimizer.accumulate((inner + settings.beta * outer) / len(pairs))
            else:
                second = torch.autograd.grad(outer, ahead, allow_unused=True)
                both = [_sum(a, b, settings.beta) for a, b in zip(first, second, strict=True)]
                sums = [_sum(a, b) for a, b in zip(sums, both, strict=True)]
            losses.append(torch.stack([inner.detach(), outer.detach()]))
        if settings.second_order:
            self.optimizer.step()
        else:
            self.optimizer.apply_gradients([None if g is None else g / len(pairs) for g in sums])
        risk, held = torch.stack(losses).mean(dim=0)
        return {"risk": risk, "held": held}

    def _pairs(self, batch: DomainBatch) -> list[tuple[DomainBatch, DomainBatch]]:
        """Return (domains of the inner step, held-out domain) for every term of the loss."""
        count = len(batch.sizes)
        with use_shared_rng():
            if self.settings.splits == "one":
                return [batch.hold_out(int(torch.randint(count, ())))]
            order = torch.randperm(count).tolist()
        if self.settings.held_out >= count:
            raise BadInput(f"held_out={self.settings.held_out} leaves none of {count} domains: use at most {count - 1}")
        domains, split = batch.by_domain(), count - self.settings.held_out
        return [(domains[i], domains[j]) for i, j in zip(order[:split], cycle(order[split:]), strict=False)]

    def _inner_step(self, grad: Tensor) -> Tensor:
        """Return the change of a parameter; the first step of Adam divides the gradient by its absolute value."""
        lr = self.optimizer.settings.lr if self.settings.inner_lr is None else self.settings.inner_lr
        return lr * (grad if self.settings.inner == "sgd" else grad / (grad.abs() + 1e-8))

    def _loss(self, parameters: list[Any], batch: DomainBatch) -> Tensor:
        named = dict(zip(self.names, parameters, strict=True))
        with tape() as side:
            risk = self.task.loss(functional_call(self.model, named, (batch.x,)), batch.y)
        return with_auxiliary(risk, side)


def _sum(a: Tensor | None, b: Tensor | None, factor: float = 1.0) -> Tensor | None:
    """Return a + factor * b, where None is zero."""
    if a is None or b is None:
        return a if b is None else factor * b
    return a + factor * b


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

"""MLDG and Fish: meta-learning over the domains of a batch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import use_shared_rng
from holdfast.core.settings import checked_settings, choice, log, retired_settings, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics

Parameters = Sequence[Tensor]
Loss = Callable[[Parameters], Tensor]
Gradients = Sequence[Tensor | None]


class MLDG(Method):
    """Minimise F(p) + beta * G(p - inner_lr dF/dp), F on all domains but a random one, G on that one (Li et al., 2018).

    The inner gradient is treated as a constant.
    """

    @checked_settings
    class Settings:
        beta: float = setting(1.0, search=log(0.1, 10), help="weight of the loss on the held-out domain")
        inner_lr: float | None = setting(
            0.01, search=log(1e-3, 1e-1), help="learning rate of the inner step; null for that of the run"
        )

        retired = retired_settings(second_order=False, inner="sgd", splits="one", held_out=1)

    min_domains = 2

    def setup(self) -> None:
        self.names = [name for name, p in self.model.named_parameters() if p.requires_grad]

    def step(self, batch: DomainBatch) -> Metrics:
        beta, now = self.settings.beta, self.optimizer.parameters
        lr = self.optimizer.settings.lr if self.settings.inner_lr is None else self.settings.inner_lr
        with use_shared_rng():
            train, held_out = batch.hold_out(int(torch.randint(len(batch.sizes), ())))
        inner, first, ahead = look_ahead(lambda parameters: self._loss(parameters, train), now, lr=lr)
        outer = self._loss(ahead, held_out)
        second = torch.autograd.grad(outer, ahead, allow_unused=True)
        self.optimizer.apply_gradients([_sum(a, b, beta) for a, b in zip(first, second, strict=True)])
        return {"risk": inner, "held": outer.detach()}

    def _loss(self, parameters: Parameters, batch: DomainBatch) -> Tensor:
        named = dict(zip(self.names, parameters, strict=True))
        with tape() as side:
            risk = self.task.loss(functional_call(self.model, named, (batch.x,)), batch.y)
        return with_auxiliary(risk, side)


def look_ahead(inner: Loss, now: Parameters, *, lr: float) -> tuple[Tensor, Gradients, Parameters]:
    """Return (inner loss, its gradient, theta' after one step)."""
    loss = inner(now)
    grads = parallel.mean_gradients(torch.autograd.grad(loss, now, allow_unused=True), now)
    ahead = [p if g is None else p - lr * g for p, g in zip(now, grads, strict=True)]
    return loss.detach(), grads, [p.detach().requires_grad_() for p in ahead]


def _sum(a: Tensor | None, b: Tensor | None, factor: float) -> Tensor | None:
    """Return a + factor * b, where None is zero."""
    if a is None or b is None:
        return a if b is None else factor * b
    return a + factor * b


class Fish(Method):
    """Update p to p + meta_lr * (walk(p) - p), where the walk is one optimizer step per domain (Shi et al., 2021).

    This matches the gradients of the domains to first order. The optimizer state of the walk is kept between steps.
    """

    @checked_settings
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
            risk, side = self.risk_of(domains[i])
            self.optimizer.minimize(with_auxiliary(risk, side), ends_step=count == len(order))
            risks.append(risk.detach())
        with torch.no_grad():
            for p, old in zip(trained, start, strict=True):
                p.copy_(old.lerp(p, self.settings.meta_lr))
        return {"risk": torch.stack(risks).mean()}

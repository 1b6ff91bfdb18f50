"""Mixup: convex combinations of examples from two domains, or of the features of any two examples.

Shapes: n domains, b batch, d width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import use_shared_rng
from holdfast.core.settings import log, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics


class Mixup(Method):
    """Train on l*x_i + (1-l)*x_j of domains i and j, l ~ Beta(alpha, alpha) (Zhang et al., 2018; Yan et al., 2020).

    Tensors are mixed as inputs; texts and graphs, which cannot be, as features.
    """

    @dataclass(frozen=True)
    class Settings:
        alpha: float = setting(0.2, search=log(0.1, 10), help="parameter of the Beta distribution")

    min_domains = 2

    def step(self, batch: DomainBatch) -> Metrics:
        n, alpha = len(batch.sizes), self.settings.alpha
        with use_shared_rng():
            ring = torch.randperm(n).tolist()  # each domain is mixed with the next one in a random ring
            share = torch.distributions.Beta(alpha, alpha).sample((n,)).tolist()
        partner = {ring[i]: ring[(i + 1) % n] for i in range(n)}
        x, mixes_inputs = batch.x, isinstance(batch.x, Tensor)
        if isinstance(x, Tensor) and x.dtype == torch.uint8:
            x = x.float() / 255
        with tape() as side:
            groups = batch.split(x if mixes_inputs else self.model.features(x))
            sizes = [min(batch.sizes[i], batch.sizes[partner[i]]) for i in range(n)]
            mixed = torch.cat(
                [share[i] * groups[i][: sizes[i]] + (1 - share[i]) * groups[partner[i]][: sizes[i]] for i in range(n)]
            )
            output = self.model(mixed) if mixes_inputs else self.model.head(mixed)
        ys, risks = batch.split(batch.y), []
        for i, o in enumerate(output.split(sizes)):
            y, other = ys[i][: sizes[i]], ys[partner[i]][: sizes[i]]
            risks.append(share[i] * self.task.loss(o, y) + (1 - share[i]) * self.task.loss(o, other))
        risk = torch.stack(risks).mean()
        self.optimizer.minimize(with_auxiliary(risk, side))
        return {"risk": risk.detach()}


class ManifoldMixup(Method):
    """Train on l*z_i + (1-l)*z_j of the features of any two examples, l ~ Beta(alpha, alpha) (Verma et al., 2019)."""

    @dataclass(frozen=True)
    class Settings:
        alpha: float = setting(1.0, search=log(0.1, 10), help="parameter of the Beta distribution")

    def step(self, batch: DomainBatch) -> Metrics:
        with use_shared_rng():
            share = float(torch.distributions.Beta(self.settings.alpha, self.settings.alpha).sample())
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        other = torch.randperm(len(z)).to(z.device)
        output = self.model.head(share * z + (1 - share) * z[other])
        risk = share * self.task.loss(output, batch.y) + (1 - share) * self.task.loss(output, batch.y[other])
        self.optimizer.minimize(with_auxiliary(risk, side))
        return {"risk": risk.detach()}

"""CORAL, MMD, IRM, V-REx, IB-ERM, IB-IRM and Fishr: the loss plus a penalty across the domains of a batch.

Shapes: b batch, n domains, d width, c classes, p parameters of the last layer of the head.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, even, log, setting, unlabelled_setting
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.heads import Head

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> mean loss
Penalty = Callable[[Tensor, Tensor, DomainBatch, Loss], Tensor]  # (features (b, d), outputs (b, c), batch, loss)

GAMMAS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def coral(z: Tensor, output: Tensor, batch: DomainBatch, loss: Loss) -> Tensor:
    """Distance of means and covariances, averaged over pairs of domains (Sun & Saenko, 2016)."""
    groups, d = batch.split(z), z.shape[1]
    means = torch.stack([rows.mean(dim=0) for rows in groups])  # (n, d)
    scaled = [(rows - mean) / (len(rows) - 1) ** 0.5 for rows, mean in zip(groups, means, strict=True)]
    inner, n = _covariance_products(scaled), len(groups)
    # the mean squared difference over pairs is twice the variance
    spread = (n * inner.diagonal().sum() - inner.sum()) / (n * (n - 1))
    return 2 * (means.var(dim=0).mean() + spread / d**2)


def _covariance_products(scaled: Sequence[Tensor]) -> Tensor:
    """Return (n, n) the inner products of the covariances s's of the domains, without a (d, d) matrix if d > b."""
    joint = torch.cat(list(scaled))  # (b, d)
    if len(joint) > joint.shape[1]:
        covariances = torch.stack([(s.T @ s).flatten() for s in scaled])  # (n, d * d)
        return covariances @ covariances.T
    sizes = [len(s) for s in scaled]
    squares = (joint @ joint.T).pow(2)  # (b, b): the product of s's and t't is the sum of squares of st'
    rows = torch.stack([block.sum(dim=0) for block in squares.split(sizes)])  # (n, b)
    return torch.stack([block.sum(dim=1) for block in rows.split(sizes, dim=1)])


def mmd(z: Tensor, output: Tensor, batch: DomainBatch, loss: Loss) -> Tensor:
    """Maximum mean discrepancy with a sum of Gaussian kernels, averaged over pairs of domains (Li et al., 2018)."""
    square = z.pow(2).sum(dim=1)
    distance = (square[:, None] + square - 2 * z @ z.T).clamp(min=1e-30)  # (b, b)
    kernel = torch.stack([(-gamma * distance).exp() for gamma in GAMMAS]).sum(dim=0)
    blocks = [row.split(list(batch.sizes), dim=1) for row in kernel.split(list(batch.sizes))]
    mean = torch.stack([torch.stack([block.mean() for block in row]) for row in blocks])  # (n, n)
    pairs = combinations(range(len(batch.sizes)), 2)
    return torch.stack([mean[i, i] + mean[j, j] - 2 * mean[i, j] for i, j in pairs]).mean()


def irm(z: Tensor, output: Tensor, batch: DomainBatch, loss: Loss) -> Tensor:
    """Squared gradient of the risk per domain in a dummy scale, unbiased by two halves (Arjovsky et al., 2019)."""
    scale = output.new_ones((), requires_grad=True)

    def slope(output: Tensor, y: Tensor) -> Tensor:
        return torch.autograd.grad(loss(output * scale, y), scale, create_graph=True)[0]

    pairs = zip(batch.split(output), batch.split(batch.y), strict=True)
    return torch.stack([slope(o[::2], y[::2]) * slope(o[1::2], y[1::2]) for o, y in pairs]).mean()


def vrex(z: Tensor, output: Tensor, batch: DomainBatch, loss: Loss) -> Tensor:
    """Variance of the risks across domains (Krueger et al., 2020)."""
    pairs = zip(batch.split(output), batch.split(batch.y), strict=True)
    return torch.stack([loss(o, y) for o, y in pairs]).var(unbiased=False)


def bottleneck(z: Tensor, output: Tensor, batch: DomainBatch, loss: Loss) -> Tensor:
    """Variance of the features within each domain: an information bottleneck (Ahuja et al., 2021)."""
    return torch.stack([rows.var(dim=0).mean() for rows in batch.split(z)]).mean()


ALIGNING = ("coral", "mmd")  # penalties of features alone, which need no labels
PENALTIES: dict[str, Penalty] = {"coral": coral, "mmd": mmd, "irm": irm, "vrex": vrex, "bottleneck": bottleneck}


class Annealed(Method):
    """Base of methods whose penalty takes effect at the step `anneal`, or at that fraction of all steps."""

    saved_attributes = ("optimizer", "steps")
    min_domains = 2
    capturable = True

    def setup(self) -> None:
        self.anneal, self.steps = self.optimizer.settings.step_at(self.settings.anneal), 0

    @property
    def takes_effect(self) -> bool:
        """Whether the penalty begins after other steps: the jump of the loss invalidates the optimizer's moments."""
        return self.steps == self.anneal > 0

    def capture_key(self) -> Hashable | None:
        return None if self.takes_effect else (self.steps >= self.anneal,)


class Penalized(Annealed):
    """Minimise risk + weight * penalty (+ bottleneck * variance of the features).

    Up to `anneal` the weight is `before` and there is no bottleneck term.
    """

    @checked_settings
    class Settings:
        penalty: str  # a name in PENALTIES
        weight: float = setting(1.0, help="weight of the penalty")
        bottleneck: float = setting(0.0, help="weight of the variance of the features")
        anneal: float = setting(0.0, help="step at which the weight takes effect, or a fraction of all steps")
        before: float = setting(1.0, help="weight of the penalty before that step")
        unlabelled: str = unlabelled_setting()

    def setup(self) -> None:
        super().setup()
        self.penalty = PENALTIES[self.settings.penalty]
        self.unlabelled = 0  # groups

    @property
    def uses_unlabelled(self) -> bool:
        return self.settings.penalty in ALIGNING and self.settings.unlabelled != "none"

    def begin_stage(self, info: StageInfo) -> None:
        self.unlabelled = info.unlabelled

    def capture_key(self) -> Hashable | None:
        draws = self.unlabelled and self.settings.unlabelled == "source"  # on the CPU
        return None if draws else super().capture_key()

    def step(self, batch: DomainBatch) -> Metrics:
        settings, annealed = self.settings, self.steps >= self.anneal
        count = batch.labelled_count(self.unlabelled)
        batch = batch.with_control(self.unlabelled, settings.unlabelled)
        if self.takes_effect:
            self.optimizer.reset_moments()
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        output = self.model.head(z)
        risk = self.task.loss(output[:count], batch.y[:count])
        penalty = self.penalty(z, output, batch, self.task.loss)
        loss = risk + (settings.weight if annealed else settings.before) * penalty
        if settings.bottleneck and annealed:
            loss = loss + settings.bottleneck * bottleneck(z, output, batch, self.task.loss)
        metrics = self.minimize(loss, side, risk=risk, penalty=penalty)
        self.steps += 1
        return metrics


class Fishr(Annealed):
    """Minimise risk + weight * mean_i |v_i - mean v|^2 (Rame et al., 2022).

    v_i is the variance over the examples of domain i of the gradient of the last layer, smoothed over the steps that
    have the domain. The averages start at zero; those of domains with fewer steps are scaled to the longest of a batch.
    """

    @checked_settings
    class Settings:
        weight: float = setting(1000.0, search=log(10, 1e4), help="weight of the penalty")
        anneal: float = setting(0.3, search=even(0.0, 0.9), help="step from which it is used, or a fraction of all")
        ema: float = setting(0.95, search=even(0.9, 0.99), help="decay of the moving average of the variances")

    average: Tensor  # (n, p) smoothed variances
    visits: Tensor  # (n,) steps that had the domain

    def setup(self) -> None:
        super().setup()
        self.register_buffer("average", torch.zeros(0))
        self.register_buffer("visits", torch.zeros(0))

    def begin_stage(self, info: StageInfo) -> None:
        size = sum(p.numel() for p in self._last_layer().values())
        self.average = torch.zeros(len(info.train_domains), size, device=self.device)
        self.visits = torch.zeros(len(info.train_domains), device=self.device)

    def _last_layer(self) -> dict[str, Tensor]:
        """Return the parameters of the head's last layer by their names in the head."""
        head = cast(Head, self.model.head)
        last = set(head.last_layer().parameters())
        return {name: p for name, p in head.named_parameters() if p in last}

    def step(self, batch: DomainBatch) -> Metrics:
        if self.takes_effect:
            self.optimizer.reset_moments()
        ema = self.settings.ema
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        risk = self.task.loss(self.model.head(z), batch.y)
        places = batch.places()  # of the k domains of the batch
        smooth = ema * self.average[places] + (1 - ema) * self.variance(z, batch)  # (k, p)
        with torch.no_grad():
            self.average.index_copy_(0, places, parallel.mean(smooth))
            self.visits.index_add_(0, places, self.visits.new_ones(len(places)))
            filled = 1 - ema ** self.visits[places]  # (k,) what an average that starts at zero has of its limit
        # undo the factor 1 - ema on the gradient of the newest variance
        scaled = smooth / (1 - ema) * (filled.max() / filled)[:, None]
        penalty = (scaled - scaled.mean(dim=0)).pow(2).mean(dim=1).mean()
        weight = self.settings.weight if self.steps >= self.anneal else 0.0
        metrics = self.minimize(risk + weight * penalty, side, risk=risk, penalty=penalty)
        self.steps += 1
        return metrics

    def variance(self, z: Tensor, batch: DomainBatch) -> Tensor:
        """Return (n, p) the variance of the per-example gradients of the last layer, per domain."""
        head = self.model.head

        def risk(parameters: Mapping[str, Tensor], z: Tensor, y: Tensor) -> Tensor:
            return self.task.loss(functional_call(head, dict(parameters), (z[None],)), y[None])

        # dropout inside the head is drawn per example
        per_example = vmap(grad(risk), in_dims=(None, 0, 0), randomness="different")
        grads = per_example(self._last_layer(), z, batch.y)  # name -> (b, ...)
        flat = torch.cat([g.flatten(1) for g in grads.values()], dim=1)  # (b, p)
        return torch.stack([g.var(dim=0, unbiased=False) for g in batch.split(flat)])

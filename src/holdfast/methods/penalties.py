"""CORAL, MMD, IRM, V-REx, IB-ERM and IB-IRM: the loss plus a penalty across the domains of a batch.

Shapes: b batch, n domains, d width, c classes.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, setting, unlabelled_setting
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics, StageInfo

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


class Penalized(Method):
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

    saved_attributes = ("optimizer", "steps")
    min_domains = 2
    capturable = True

    def setup(self) -> None:
        self.penalty = PENALTIES[self.settings.penalty]
        self.anneal, self.steps = self.optimizer.settings.step_at(self.settings.anneal), 0
        self.unlabelled = 0  # groups

    @property
    def uses_unlabelled(self) -> bool:
        return self.settings.penalty in ALIGNING and self.settings.unlabelled != "none"

    def begin_stage(self, info: StageInfo) -> None:
        self.unlabelled = info.unlabelled

    def capture_key(self) -> Hashable | None:
        resets = self.anneal and self.steps == self.anneal
        draws = self.unlabelled and self.settings.unlabelled == "source"  # on the CPU
        return None if resets or draws else (self.steps >= self.anneal,)

    def step(self, batch: DomainBatch) -> Metrics:
        settings, annealed = self.settings, self.steps >= self.anneal
        count = batch.labelled_count(self.unlabelled)
        batch = batch.with_control(self.unlabelled, settings.unlabelled)
        if self.anneal and self.steps == self.anneal:
            self.optimizer.reset_moments()  # the jump of the loss invalidates them
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

"""Fishr: equal variance of the classifier's gradients in all domains.

Shapes: b batch, n domains, p parameters of the last layer of the head.
"""

from collections.abc import Hashable, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, even, log, setting
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.heads import Head


class Fishr(Method):
    """Minimise risk + weight * mean_i |v_i - mean v|^2 (Rame et al., 2022).

    v_i is the variance over the examples of domain i of the gradient of the last layer, smoothed over the steps that
    have the domain. The averages start at zero; those of domains with fewer steps are scaled to the longest of a batch.
    """

    @checked_settings
    class Settings:
        weight: float = setting(1000.0, search=log(10, 1e4), help="weight of the penalty")
        anneal: float = setting(0.3, search=even(0.0, 0.9), help="step from which it is used, or a fraction of all")
        ema: float = setting(0.95, search=even(0.9, 0.99), help="decay of the moving average of the variances")

    saved_attributes = ("optimizer", "steps")
    min_domains = 2
    capturable = True
    average: Tensor  # (n, p) smoothed variances
    visits: Tensor  # (n,) steps that had the domain

    def setup(self) -> None:
        self.anneal, self.steps = self.optimizer.settings.step_at(self.settings.anneal), 0
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

    def capture_key(self) -> Hashable | None:
        return None if self.anneal and self.steps == self.anneal else (self.steps >= self.anneal,)

    def step(self, batch: DomainBatch) -> Metrics:
        if self.anneal and self.steps == self.anneal:
            self.optimizer.reset_moments()  # the jump of the loss invalidates them
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

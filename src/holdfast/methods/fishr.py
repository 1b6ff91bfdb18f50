"""Fishr: the gradients of the classifier vary alike in every domain.

b batch, n domains, p parameters of the head's last layer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.nn.heads import Head
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Fishr(Method):
    """risk + weight * mean_i |v_i - mean v|^2, v_i the variance over examples of the last layer's gradient in domain i,

    smoothed over steps with `ema`; the weight is 0 up to `anneal`, a step or a share of them (Rame et al., 2022).
    """

    saved_attributes = ("optimizer", "steps")
    min_domains = 2
    average: Tensor  # (n, p) smoothed variances

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        weight: float = 1000.0,
        anneal: float = 0.3,
        ema: float = 0.95,
    ) -> None:
        super().__init__()
        self.model, self.task, self.make_optimizer = model, task, optimizer
        self.weight, self.ema = weight, ema
        self.optimizer = optimizer(model.trainable_parameters())
        self.anneal = self.optimizer.settings.step_at(anneal)
        self.steps = 0
        self.register_buffer("average", torch.zeros(0))

    def begin_stage(self, info: StageInfo) -> None:
        size = sum(p.numel() for p in self._last().values())
        device = next(self.model.head.parameters()).device
        self.average = torch.zeros(len(info.train_domains), size, device=device)

    def _last(self) -> dict[str, Tensor]:
        """The parameters of the head's last layer, by their names in the head."""
        head = cast(Head, self.model.head)
        own = set(head.last_layer().parameters())
        return {name: p for name, p in head.named_parameters() if p in own}

    def step(self, batch: DomainBatch) -> Metrics:
        if self.anneal and self.steps == self.anneal:
            self.optimizer = self.make_optimizer(
                self.model.trainable_parameters()
            )  # Adam's moments do not fit the jump
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        risk = self.task.loss(self.model.head(z), batch.y)
        variance = self.variance(z, batch)  # (n, p)
        smooth = self.ema * self.average + (1 - self.ema) * variance
        with torch.no_grad():
            self.average.copy_(parallel.mean(smooth))
        # as if the average had been one of many steps from the start: its gradient does not shrink with 1 - ema
        scaled = smooth / (1 - self.ema)
        penalty = (scaled - scaled.mean(dim=0)).pow(2).mean(dim=1).mean()
        weight = self.weight if self.steps >= self.anneal else 0.0
        loss, extra = risk + weight * penalty, auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        self.steps += 1
        return {"risk": risk.detach(), "penalty": penalty.detach()}

    def variance(self, z: Tensor, batch: DomainBatch) -> Tensor:
        """(n, p) the variance over the examples of each domain of the last layer's single-example gradients."""
        head = self.model.head

        def risk(parameters: Mapping[str, Tensor], z: Tensor, y: Tensor) -> Tensor:
            return self.task.loss(functional_call(head, dict(parameters), (z[None],)), y[None])

        # dropout inside the head, if there is any, is drawn for each example
        each = vmap(grad(risk), in_dims=(None, 0, 0), randomness="different")
        single = each(self._last(), z, batch.y)  # name -> (b, ...)
        flat = torch.cat([g.flatten(1) for g in single.values()], dim=1)  # (b, p)
        return torch.stack([g.var(dim=0, unbiased=False) for g in batch.split(flat)])

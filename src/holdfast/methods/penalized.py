"""Risk plus a penalty across domains, annealed in: CORAL, MMD, IRM, V-REx, IB-ERM and IB-IRM are settings of it."""

from __future__ import annotations

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import unknown
from holdfast.core.tape import auxiliary, tape
from holdfast.methods import penalties
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Penalized(Method):
    """risk + weight * penalty (+ bottleneck * variance).

    The weight is `before` up to `anneal`, a step or a share of all steps.
    """

    saved_attributes = ("optimizer", "steps")
    min_domains = 2

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        penalty: str,
        weight: float = 1.0,
        bottleneck: float = 0.0,
        anneal: float = 0.0,
        before: float = 1.0,
    ) -> None:
        super().__init__()
        if penalty not in penalties.PENALTIES:
            raise unknown("penalty", penalty, penalties.PENALTIES)
        self.model, self.task, self.penalty = model, task, penalties.PENALTIES[penalty]
        self.weight, self.bottleneck, self.before = weight, bottleneck, before
        self.make_optimizer = optimizer
        self.optimizer = optimizer(model.trainable_parameters())
        self.anneal = self.optimizer.settings.step_at(anneal)
        self.steps = 0

    def step(self, batch: DomainBatch) -> Metrics:
        grown = self.steps >= self.anneal
        if self.anneal and self.steps == self.anneal:
            self.optimizer = self.make_optimizer(
                self.model.trainable_parameters()
            )  # Adam's moments do not fit the jump
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        output = self.model.head(z)
        risk = self.task.loss(output, batch.y)
        penalty = self.penalty(z, output, batch, self.task.loss)
        loss = risk + (self.weight if grown else self.before) * penalty
        if self.bottleneck and grown:
            loss = loss + self.bottleneck * penalties.bottleneck(z, output, batch, self.task.loss)
        extra = auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        self.steps += 1
        return {"risk": risk.detach(), "penalty": penalty.detach()}

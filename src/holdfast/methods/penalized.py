"""CORAL, MMD, IRM, V-REx, IB-ERM and IB-IRM: the loss plus a penalty across domains."""

from dataclasses import dataclass

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import unknown
from holdfast.core.settings import setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods import penalties
from holdfast.methods.base import Method, Metrics


class Penalized(Method):
    """Minimise risk + weight * penalty (+ bottleneck * variance of the features).

    Up to `anneal` the weight is `before` and there is no bottleneck term.
    """

    @dataclass(frozen=True)
    class Settings:
        penalty: str  # a name in PENALTIES
        weight: float = setting(1.0, help="weight of the penalty")
        bottleneck: float = setting(0.0, help="weight of the variance of the features")
        anneal: float = setting(0.0, help="step at which the weight takes effect, or a fraction of all steps")
        before: float = setting(1.0, help="weight of the penalty before that step")

        def __post_init__(self) -> None:
            if self.penalty not in penalties.PENALTIES:
                raise unknown("penalty", self.penalty, penalties.PENALTIES)

    saved_attributes = ("optimizer", "steps")
    min_domains = 2

    def setup(self) -> None:
        self.penalty = penalties.PENALTIES[self.settings.penalty]
        self.anneal, self.steps = self.optimizer.settings.step_at(self.settings.anneal), 0

    def step(self, batch: DomainBatch) -> Metrics:
        settings, annealed = self.settings, self.steps >= self.anneal
        if self.anneal and self.steps == self.anneal:
            self.optimizer = self.make_optimizer(
                self.model.trainable_parameters()
            )  # the jump invalidates Adam's moments
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        output = self.model.head(z)
        risk = self.task.loss(output, batch.y)
        penalty = self.penalty(z, output, batch, self.task.loss)
        loss = risk + (settings.weight if annealed else settings.before) * penalty
        if settings.bottleneck and annealed:
            loss = loss + settings.bottleneck * penalties.bottleneck(z, output, batch, self.task.loss)
        self.optimizer.minimize(with_auxiliary(loss, side))
        self.steps += 1
        return {"risk": risk.detach(), "penalty": penalty.detach()}

"""Learning without forgetting and MIRO: a frozen copy of the network is the teacher.

Shapes: b batch, c classes, d width.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, choice, log, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.model import Model


class Distillation(Method):
    """Minimise risk + weight * T^2 * KL(teacher / T || student / T) with one shared head (Li & Hoiem, 2016).

    The teacher is a frozen copy of the model at the end of the previous stage, in evaluation mode.
    """

    @checked_settings
    class Settings:
        weight: float = setting(1.0, least=0, search=log(0.1, 10.0), help="weight of the distillation loss")
        temperature: float = setting(
            2.0, above=0, search=choice(1.0, 2.0, 4.0), help="temperature of both distributions"
        )

    teacher: Model | None

    def setup(self) -> None:
        self.register_module("teacher", None)

    def begin_stage(self, info: StageInfo) -> None:
        # on resume this creates a teacher of the right shape, whose weights are loaded afterwards
        if info.index > 0:
            self.teacher = copy.deepcopy(self.deployed).requires_grad_(False).eval()
            self.teacher.zero_grad()

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            output = self.model(batch.x)
        risk = self.task.loss(output, batch.y)
        loss = with_auxiliary(risk, side)
        distance = torch.zeros_like(risk)
        if self.teacher is not None:
            with torch.no_grad():
                target = self.teacher(batch.x)
            distance = divergence(target, output, self.settings.temperature)
            loss = loss + self.settings.weight * distance
        self.optimizer.minimize(loss)
        return {"risk": risk.detach(), "distillation": distance.detach()}


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), averaged over examples; outputs are (b, c)."""
    p = (teacher / temperature).log_softmax(-1)
    q = (student / temperature).log_softmax(-1)
    return temperature**2 * (p.exp() * (p - q)).sum(-1).mean()


class MIRO(Method):
    """Minimise risk + weight * mean[log s + (z - z0)^2 / s] / 2 (Cha et al., 2022).

    z0 are the features before training and s is a learned variance per feature: a bound on the mutual information with
    the pretrained network. The published form adds intermediate layers; this one uses the backbone's output.
    """

    @checked_settings
    class Settings:
        weight: float = setting(0.1, search=choice(0.001, 0.01, 0.1, 1.0), help="weight of the penalty")
        start: float = setting(0.1, help="initial variance")
        rate: float = setting(10.0, help="multiple of the learning rate for the variances")

    def setup(self) -> None:
        self.oracle = copy.deepcopy(self.model.backbone).requires_grad_(False).eval()
        width = int(self.model.backbone.width)  # pyright: ignore[reportArgumentType]
        inverse = torch.tensor(self.settings.start).expm1().log().item()  # softplus(inverse) = start
        self.spread = nn.Parameter(torch.full((width,), inverse, device=self.device))  # (d,)
        parameters = [*self.model.trainable_parameters(), self.spread]
        rates = {**self.optimizer.settings.rates, "variance": self.settings.rate}
        self.optimizer = self.make_optimizer(parameters, part="variance", rates=rates)

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.encode(batch.x)  # (b, d)
            output = self.model.head(self.model.apply_neck(z))
        with torch.no_grad():
            anchor = self.model.encode(batch.x, backbone=self.oracle)
        risk = self.task.loss(output, batch.y)
        variance = F.softplus(self.spread) + 1e-5
        penalty = (variance.log() + (z.float() - anchor.float()).pow(2) / variance).mean() / 2
        return self.minimize(risk + self.settings.weight * penalty, side, risk=risk, penalty=penalty)

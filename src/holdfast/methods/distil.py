"""Learning without forgetting: the model of the earlier domains teaches the new one on the new domain's inputs.

b batch, c classes
"""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Distillation(Method):
    """risk + weight * T^2 * KL(teacher / T || student / T) with one shared head (Li & Hoiem, 2016).

    The teacher is the model as the stage before left it: frozen, in evaluation mode, in no optimizer.
    """

    teacher: Model | None

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        weight: float = 1.0,
        temperature: float = 2.0,
    ) -> None:
        super().__init__()
        if weight < 0 or not temperature > 0:
            raise BadInput(f"weight must not be negative and temperature above 0, not {weight} and {temperature}")
        self.model, self.task = model, task
        self.weight, self.temperature = weight, temperature
        self.register_module("teacher", None)
        self.optimizer = optimizer(model.trainable_parameters())

    def begin_stage(self, info: StageInfo) -> None:
        # a run that is taken up again comes here too: it gets a teacher of this shape, then its saved weights
        if info.index > 0:
            self.teacher = copy.deepcopy(self.deployed).requires_grad_(False).eval()
            self.teacher.zero_grad()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            output = self.model(batch.x)
        risk = self.task.loss(output, batch.y)
        apart = self._apart(output, batch.x)
        extra = auxiliary(side)
        loss = risk if extra is None else risk + extra
        self.optimizer.minimize(loss if apart is None else loss + self.weight * apart)
        return {"risk": risk.detach(), "distillation": torch.zeros_like(risk) if apart is None else apart.detach()}

    def _apart(self, output: Tensor, x: Inputs) -> Tensor | None:
        if self.teacher is None:
            return None
        with torch.no_grad():
            taught = self.teacher(x)
        return divergence(taught, output, self.temperature)


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over examples; outputs are (b, c)."""
    p = (teacher / temperature).log_softmax(-1)
    q = (student / temperature).log_softmax(-1)
    return temperature**2 * (p.exp() * (p - q)).sum(-1).mean()

"""Synaptic intelligence: parameters that brought the earlier risks down are held near where they were.

p parameters, all together
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class SynapticIntelligence(Method):
    """risk + strength * sum_i omega_i (theta_i - start_i)^2 (Zenke et al., 2017).

    omega_i grows at the end of each stage by path_i / ((theta_i - start_i)^2 + xi), where path_i sums
    -gradient_i * change_i over the stage's steps; as in the authors' code it never falls below 0.  Strength and
    xi are theirs for permuted MNIST, which is a stream of domains too.
    """

    needs_past = "path"

    omega: Tensor  # (p,) importance for the stages before
    start: Tensor  # (p,) the parameters when the stage began
    path: Tensor  # (p,) what each parameter has taken off the risk in this stage
    pending: Tensor  # (p,) gradient of the risk that has not moved anything yet

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        strength: float = 0.1,
        xi: float = 0.1,
    ) -> None:
        super().__init__()
        if strength < 0 or not xi > 0:
            raise BadInput(f"strength must not be negative and xi above 0, not {strength} and {xi}")
        self.model, self.task = model, task
        self.strength, self.xi = strength, xi
        self.optimizer = optimizer(model.trainable_parameters())
        theta = self._theta()
        self.register_buffer("start", theta)
        for name in ("omega", "path", "pending"):
            self.register_buffer(name, torch.zeros_like(theta))

    def begin_stage(self, info: StageInfo) -> None:
        self.start = self._theta()
        self.path, self.pending = torch.zeros_like(self.start), torch.zeros_like(self.start)
        self.omega = pad(self.omega, (0, len(self.start) - len(self.omega)))  # grown parameters have none yet

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        parameters, before = self.optimizer.parameters, self._theta()
        grads = torch.autograd.grad(risk if extra is None else risk + extra, parameters, allow_unused=True)
        grads = parallel.mean_gradients(grads, parameters)
        away = before - self.start
        pull = 2 * self.strength * self.omega * away  # the penalty's gradient
        pieces = pull.split([p.numel() for p in parameters])
        self.optimizer.apply_gradients(
            [None if g is None else g + d.view_as(g) for g, d in zip(grads, pieces, strict=True)]
        )
        self._follow(grads, before)
        return {"risk": risk.detach(), "penalty": 0.5 * pull @ away}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        gained = self.path / ((self._theta() - self.start) ** 2 + self.xi)
        self.omega = (self.omega + gained).clamp(min=0.0)

    def _follow(self, grads: Sequence[Tensor | None], before: Tensor) -> None:
        """Add this step to the path; gradients that wait for an update are counted with the update they make."""
        pairs = zip(grads, self.optimizer.parameters, strict=True)
        flat = torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in pairs])
        self.pending += flat / self.optimizer.settings.accumulate
        if self.optimizer.calls % self.optimizer.settings.accumulate == 0:
            self.path -= self.pending * (self._theta() - before)
            self.pending.zero_()

    def _theta(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.optimizer.parameters])

"""Synaptic intelligence: a penalty on changes of parameters that lowered the risk of earlier domains.

Shapes: p parameters, concatenated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.settings import log, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics, StageInfo


class SynapticIntelligence(Method):
    """Minimise risk + strength * sum_i omega_i (theta_i - start_i)^2 (Zenke et al., 2017).

    At the end of a stage omega_i grows by path_i / ((theta_i - start_i)^2 + xi), where path_i is the sum of
    -gradient_i * change_i over the steps of the stage; as in the authors' code it never falls below 0. The defaults are
    theirs for permuted MNIST.
    """

    @dataclass(frozen=True)
    class Settings:
        strength: float = setting(0.1, search=log(0.01, 100.0), help="weight of the penalty")
        xi: float = setting(0.1, search=log(1e-3, 1.0), help="damping of the importance")

        def __post_init__(self) -> None:
            if self.strength < 0 or not self.xi > 0:
                raise BadInput(f"strength must be at least 0 and xi above 0, got {self.strength} and {self.xi}")

    needs_past = "path"

    omega: Tensor  # (p,) importance for earlier stages
    start: Tensor  # (p,) parameters at the start of the stage
    path: Tensor  # (p,) decrease of the risk in this stage, per parameter
    pending: Tensor  # (p,) gradient of the risk since the last update

    def setup(self) -> None:
        theta = self._theta()
        self.register_buffer("start", theta)
        for name in ("omega", "path", "pending"):
            self.register_buffer(name, torch.zeros_like(theta))

    def begin_stage(self, info: StageInfo) -> None:
        self.start = self._theta()
        self.path, self.pending = torch.zeros_like(self.start), torch.zeros_like(self.start)
        self.omega = pad(self.omega, (0, len(self.start) - len(self.omega)))  # none for new parameters

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        parameters, before = self.optimizer.parameters, self._theta()
        grads = torch.autograd.grad(with_auxiliary(risk, side), parameters, allow_unused=True)
        grads = parallel.mean_gradients(grads, parameters)
        change = before - self.start
        pull = 2 * self.settings.strength * self.omega * change  # gradient of the penalty
        pieces = pull.split([p.numel() for p in parameters])
        self.optimizer.apply_gradients(
            [None if g is None else g + d.view_as(g) for g, d in zip(grads, pieces, strict=True)]
        )
        self._add_to_path(grads, before)
        return {"risk": risk.detach(), "penalty": 0.5 * pull @ change}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        gain = self.path / ((self._theta() - self.start) ** 2 + self.settings.xi)
        self.omega = (self.omega + gain).clamp(min=0.0)

    def _add_to_path(self, grads: Sequence[Tensor | None], before: Tensor) -> None:
        """Add this step to the path; accumulated gradients count with the update they lead to."""
        pairs = zip(grads, self.optimizer.parameters, strict=True)
        flat = torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in pairs])
        self.pending += flat / self.optimizer.settings.accumulate
        if self.optimizer.calls % self.optimizer.settings.accumulate == 0:
            self.path -= self.pending * (self._theta() - before)
            self.pending.zero_()

    def _theta(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.optimizer.parameters])

"""Elastic weight consolidation: parameters the earlier domains depend on are held near where those left them.

p parameters, all together; c classes
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory, StageInfo
from holdfast.methods.replay import Reservoir
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class Anchor(nn.Module):
    """Where the parameters were, and how much each mattered there."""

    theta: Tensor  # (p,)
    fisher: Tensor  # (p,)

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        self.register_buffer("theta", theta)
        self.register_buffer("fisher", torch.zeros_like(theta))

    def forward(self, theta: Tensor) -> Tensor:
        """sum_i F_i (theta_i - theta*_i)^2; parameters that were grown since come after and cost nothing."""
        return (self.fisher * (theta[: len(self.theta)] - self.theta) ** 2).sum()


class EWC(Method):
    """risk + weight / 2 * sum over earlier domains of sum_i F_i (theta_i - theta*_i)^2 (Kirkpatrick et al., 2017).

    F is the diagonal Fisher information at theta*, the mean over `samples` single examples of the squared gradient
    of log p(y | x), with y drawn from the model's own prediction, or the true label if `empirical`.  Of a response,
    which the outputs do not tell how to draw, it is always the true one, and the mean over its words.  The weight of
    400 is the paper's for Atari; it names none for MNIST.  `online` keeps one anchor, the newest, and one running
    F <- decay * F + F_new (Schwarz et al., 2018; their factor before the penalty is left to `weight`).
    """

    saved_attributes = ("optimizer", "learned")
    supports_growth = "added"
    needs_past = "examples"

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        weight: float = 400.0,
        samples: int = 200,
        empirical: bool = False,
        online: bool = False,
        decay: float = 0.95,
    ) -> None:
        super().__init__()
        if weight < 0 or samples < 1 or not 0 <= decay <= 1:
            raise BadInput(
                "weight must not be negative, samples at least 1 and decay from 0 to 1, "
                f"not {weight}, {samples} and {decay}"
            )
        self.model, self.task = model, task
        self.weight, self.samples, self.empirical = weight, samples, empirical
        self.online, self.decay = online, decay
        self.optimizer = optimizer(model.trainable_parameters())
        self.anchors, self.learned = nn.ModuleList(), 0  # stages that have ended

    def begin_stage(self, info: StageInfo) -> None:
        # made before it is needed, so that a run that is taken up again has room for what was saved
        fresh = Anchor(self._theta().detach())
        if self.online and len(self.anchors):
            before = self._newest()
            fresh.theta[: len(before.theta)] = before.theta
            fresh.fisher = pad(before.fisher, (0, len(fresh.theta) - len(before.fisher)))
            self.anchors[-1] = fresh
        else:
            self.anchors.append(fresh)

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        extra = auxiliary(side)
        loss = risk if extra is None else risk + extra
        penalty = self.penalty()
        self.optimizer.minimize(loss if penalty is None else loss + penalty)
        return {"risk": risk.detach(), "penalty": torch.zeros_like(risk) if penalty is None else penalty.detach()}

    def penalty(self) -> Tensor | None:
        """What is added to the risk once a stage has ended."""
        if not self.learned:
            return None
        theta = self._theta()
        return self.weight / 2 * torch.stack([anchor(theta) for anchor in self.anchors[: self.learned]]).sum()

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        chosen = Reservoir(self.samples)
        chosen.fill(batches)
        anchor = self._newest()
        anchor.theta = self._theta().detach()
        anchor.fisher = self.decay * anchor.fisher + self.fisher(chosen)  # before the first there is nothing to decay
        self.learned += 1

    def fisher(self, chosen: Reservoir) -> Tensor:
        """(p,) the mean squared gradient of the log-likelihood of single examples, without dropout."""
        training, parameters = self.training, self.optimizer.parameters
        total = torch.zeros_like(self._theta().detach())
        self.eval()
        # cuDNN has no backward pass for recurrent layers in evaluation mode
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for one in chosen.singles(total.device):
                output = self.model(one.x)
                y = one.y if self.empirical else self.task.sample_targets(output.detach(), one.y)
                grads = torch.autograd.grad(self.task.loss(output, y), parameters, allow_unused=True)
                pairs = zip(grads, parameters, strict=True)
                total += torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in pairs]) ** 2
        self.train(training)
        return total / len(chosen)

    def _newest(self) -> Anchor:
        newest = self.anchors[-1]
        assert isinstance(newest, Anchor)
        return newest

    def _theta(self) -> Tensor:
        return torch.cat([p.flatten() for p in self.optimizer.parameters])

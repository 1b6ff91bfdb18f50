"""Elastic weight consolidation: a quadratic penalty on changes of parameters that mattered in earlier domains.

Shapes: p parameters, concatenated.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.settings import log, setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.methods.replay import Reservoir


class Anchor(nn.Module):
    """Parameters at the end of a stage and their Fisher information."""

    theta: Tensor  # (p,)
    fisher: Tensor  # (p,)

    def __init__(self, theta: Tensor) -> None:
        super().__init__()
        self.register_buffer("theta", theta)
        self.register_buffer("fisher", torch.zeros_like(theta))

    def forward(self, theta: Tensor) -> Tensor:
        """sum_i F_i (theta_i - theta*_i)^2; parameters added since are at the end and not penalised."""
        return (self.fisher * (theta[: len(self.theta)] - self.theta) ** 2).sum()


class EWC(Method):
    """Minimise risk + weight / 2 * sum over stages of sum_i F_i (theta_i - theta*_i)^2 (Kirkpatrick et al., 2017).

    F is the diagonal Fisher information at theta*: the mean over `samples` examples of the squared gradient of
    log p(y | x), with y drawn from the prediction, or the true label with `empirical` and for tasks whose outputs
    cannot be sampled. The default weight is that of the paper for Atari; it has none for MNIST. With `online` there is
    one anchor, the newest, and one running F <- decay * F + F_new (Schwarz et al., 2018; their factor before the
    penalty is part of `weight`).
    """

    @dataclass(frozen=True)
    class Settings:
        weight: float = setting(400.0, search=log(1.0, 1e5), help="weight of the penalty")
        samples: int = setting(200, help="examples per stage for the Fisher information")
        empirical: bool = setting(False, help="use true labels instead of sampled ones")
        online: bool = False
        decay: float = setting(0.95, help="decay of the running Fisher information")

        def __post_init__(self) -> None:
            if self.weight < 0 or self.samples < 1 or not 0 <= self.decay <= 1:
                raise BadInput(
                    "weight must be at least 0, samples at least 1 and decay from 0 to 1, "
                    f"got {self.weight}, {self.samples} and {self.decay}"
                )

    saved_attributes = ("optimizer", "learned")
    supports_growth = "added"
    needs_past = "examples"

    def setup(self) -> None:
        self.anchors, self.learned = nn.ModuleList(), 0  # stages that have ended

    def begin_stage(self, info: StageInfo) -> None:
        # created before it is used, so that a checkpoint can be loaded into it
        fresh = Anchor(self._theta().detach())
        if self.settings.online and len(self.anchors):
            before = self._newest()
            fresh.theta[: len(before.theta)] = before.theta
            fresh.fisher = pad(before.fisher, (0, len(fresh.theta) - len(before.fisher)))
            self.anchors[-1] = fresh
        else:
            self.anchors.append(fresh)

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            risk = self.task.loss(self.model(batch.x), batch.y)
        loss, penalty = with_auxiliary(risk, side), self.penalty()
        self.optimizer.minimize(loss if penalty is None else loss + penalty)
        return {"risk": risk.detach(), "penalty": torch.zeros_like(risk) if penalty is None else penalty.detach()}

    def penalty(self) -> Tensor | None:
        """Return the penalty, or None in the first stage."""
        if not self.learned:
            return None
        theta = self._theta()
        return self.settings.weight / 2 * torch.stack([anchor(theta) for anchor in self.anchors[: self.learned]]).sum()

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        chosen = Reservoir(self.settings.samples)
        chosen.fill(batches)
        anchor = self._newest()
        anchor.theta = self._theta().detach()
        anchor.fisher = self.settings.decay * anchor.fisher + self.fisher(chosen)  # a new anchor's F is zero
        self.learned += 1

    def fisher(self, chosen: Reservoir) -> Tensor:
        """Return (p,) the mean squared gradient of the log-likelihood of single examples, without dropout."""
        training, parameters = self.training, self.optimizer.parameters
        total = torch.zeros_like(self._theta().detach())
        self.eval()
        # cuDNN has no backward pass for recurrent layers in evaluation mode
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for one in chosen.singles(total.device):
                output = self.model(one.x)
                y = one.y if self.settings.empirical else self.task.sample_targets(output.detach(), one.y)
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

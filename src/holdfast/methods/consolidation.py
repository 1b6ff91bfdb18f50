"""EWC and synaptic intelligence: penalties on changes of parameters that mattered in earlier domains.

Shapes: p parameters, concatenated.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, log, retired_settings, setting
from holdfast.core.tape import with_auxiliary
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.methods.optim import Optimizer
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
    log p(y | x), with y drawn from the prediction, or the true label for tasks whose outputs cannot be sampled. The
    default weight is that of the paper for Atari; it has none for MNIST. With `online` there is one anchor, the newest,
    and one running F <- decay * F + F_new (Schwarz et al., 2018; their factor before the penalty is part of `weight`).
    """

    @checked_settings
    class Settings:
        weight: float = setting(400.0, least=0, search=log(1.0, 1e5), help="weight of the penalty")
        samples: int = setting(200, least=1, help="examples per stage for the Fisher information")
        online: bool = False
        decay: float = setting(0.95, least=0, most=1, help="decay of the running Fisher information")

        retired = retired_settings(empirical=False)

    saved_attributes = ("optimizer", "learned")
    supports_growth = "added"
    needs_past = "examples"

    def setup(self) -> None:
        self.anchors, self.learned = nn.ModuleList(), 0  # stages that have ended

    def begin_stage(self, info: StageInfo) -> None:
        # created before it is used, so that a checkpoint can be loaded into it
        fresh = Anchor(_theta(self.optimizer).detach())
        if self.settings.online and len(self.anchors):
            before = cast(Anchor, self.anchors[-1])
            fresh.theta[: len(before.theta)] = before.theta
            fresh.fisher = pad(before.fisher, (0, len(fresh.theta) - len(before.fisher)))
            self.anchors[-1] = fresh
        else:
            self.anchors.append(fresh)

    def step(self, batch: DomainBatch) -> Metrics:
        (risk, side), penalty = self.risk_of(batch), self.penalty()
        self.optimizer.minimize(with_auxiliary(risk, side) + penalty)
        return {"risk": risk.detach(), "penalty": penalty.detach()}

    def penalty(self) -> Tensor:
        """Return the penalty, which is 0 in the first stage."""
        theta = _theta(self.optimizer)
        penalties = [anchor(theta) for anchor in self.anchors[: self.learned]]
        return self.settings.weight / 2 * torch.stack([theta.new_zeros(()), *penalties]).sum()

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        chosen = Reservoir(self.settings.samples)
        chosen.fill(batches)
        anchor = cast(Anchor, self.anchors[-1])
        anchor.theta = _theta(self.optimizer).detach()
        anchor.fisher = self.settings.decay * anchor.fisher + self.fisher(chosen)  # a new anchor's F is zero
        self.learned += 1

    def fisher(self, chosen: Reservoir) -> Tensor:
        """Return (p,) the mean squared gradient of the log-likelihood of single examples, without dropout."""
        training, parameters = self.training, self.optimizer.parameters
        total = torch.zeros_like(_theta(self.optimizer).detach())
        self.eval()
        # cuDNN has no backward pass for recurrent layers in evaluation mode
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for one in chosen.singles(total.device):
                output = self.model(one.x)
                y = self.task.sample_targets(output.detach(), one.y)
                grads = torch.autograd.grad(self.task.loss(output, y), parameters, allow_unused=True)
                total += _concatenated(grads, parameters) ** 2
        self.train(training)
        return total / len(chosen)


class SynapticIntelligence(Method):
    """Minimise risk + strength * sum_i omega_i (theta_i - start_i)^2 (Zenke et al., 2017).

    At the end of a stage omega_i grows by path_i / ((theta_i - start_i)^2 + xi), where path_i is the sum of
    -gradient_i * change_i over the steps of the stage; as in the authors' code it never falls below 0. The defaults are
    theirs for permuted MNIST.
    """

    @checked_settings
    class Settings:
        strength: float = setting(0.1, least=0, search=log(0.01, 100.0), help="weight of the penalty")
        xi: float = setting(0.1, above=0, search=log(1e-3, 1.0), help="damping of the importance")

    needs_past = "path"

    omega: Tensor  # (p,) importance for earlier stages
    start: Tensor  # (p,) parameters at the start of the stage
    path: Tensor  # (p,) decrease of the risk in this stage, per parameter
    pending: Tensor  # (p,) gradient of the risk since the last update

    def setup(self) -> None:
        theta = _theta(self.optimizer).detach()
        self.register_buffer("start", theta)
        for name in ("omega", "path", "pending"):
            self.register_buffer(name, torch.zeros_like(theta))

    def begin_stage(self, info: StageInfo) -> None:
        self.start = _theta(self.optimizer).detach()
        self.path, self.pending = torch.zeros_like(self.start), torch.zeros_like(self.start)
        self.omega = pad(self.omega, (0, len(self.start) - len(self.omega)))  # none for new parameters

    def step(self, batch: DomainBatch) -> Metrics:
        risk, side = self.risk_of(batch)
        parameters, before = self.optimizer.parameters, _theta(self.optimizer).detach()
        grads = torch.autograd.grad(with_auxiliary(risk, side), parameters, allow_unused=True)
        grads = parallel.mean_gradients(grads, parameters)
        change = before - self.start
        pull = 2 * self.settings.strength * self.omega * change  # gradient of the penalty
        pieces = pull.split([p.numel() for p in parameters])
        pulled = [None if g is None else g + d.view_as(g) for g, d in zip(grads, pieces, strict=True)]
        self.optimizer.apply_gradients(pulled)
        self._add_to_path(grads, before)
        return {"risk": risk.detach(), "penalty": 0.5 * pull @ change}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        gain = self.path / ((_theta(self.optimizer).detach() - self.start) ** 2 + self.settings.xi)
        self.omega = (self.omega + gain).clamp(min=0.0)

    def _add_to_path(self, grads: Sequence[Tensor | None], before: Tensor) -> None:
        """Add this step to the path; accumulated gradients count with the update they lead to."""
        self.pending += _concatenated(grads, self.optimizer.parameters) / self.optimizer.settings.accumulate
        if self.optimizer.calls % self.optimizer.settings.accumulate == 0:
            self.path -= self.pending * (_theta(self.optimizer).detach() - before)
            self.pending.zero_()


def _concatenated(tensors: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """Return (p,) one tensor per parameter, flattened; zeros for None."""
    pairs = zip(tensors, parameters, strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if t is None else t.flatten() for t, p in pairs])


def _theta(optimizer: Optimizer) -> Tensor:
    """Return (p,) the trained parameters."""
    return torch.cat([p.flatten() for p in optimizer.parameters])

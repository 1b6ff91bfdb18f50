"""Optimizer of a method: torch optimizer, learning-rate schedule, gradient clipping and accumulation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_at_least, check_known
from holdfast.core.parallel import average_gradients

OPTIMIZERS = ("adamw", "adam", "sgd")
SCHEDULES = ("constant", "linear", "cosine", "halving")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Settings of an optimizer; `warmup` and the end of the schedule are counted in updates."""

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: int = 0
    steps: int = 1000
    clip: float = 0.0  # maximum norm of the gradient; 0 disables clipping
    accumulate: int = 1  # losses per update

    def __post_init__(self) -> None:
        check_known("optimizer", self.optimizer, OPTIMIZERS)
        check_known("schedule", self.schedule, SCHEDULES)
        if not self.lr > 0:
            raise BadInput(f"lr must be above 0, got {self.lr:g}: set another --lr, such as 0.001")
        check_at_least(1, accumulate=self.accumulate)
        check_at_least(0, warmup=self.warmup, clip=self.clip, weight_decay=self.weight_decay, momentum=self.momentum)

    def step_at(self, position: float) -> int:
        """Return a step of the run; a position below 1 is a fraction of all steps."""
        return int(position * self.steps) if position < 1 else int(position)

    def factor(self, update: int) -> float:
        """Return the factor of the learning rate at an update, counted from 0."""
        if update < self.warmup:
            return (update + 1) / self.warmup
        end = math.ceil(self.steps / self.accumulate)
        done = min(1.0, (update - self.warmup) / max(1, end - self.warmup))
        match self.schedule:
            case "linear":
                return 1.0 - done
            case "cosine":
                return 0.5 * (1.0 + math.cos(math.pi * done))
            case "halving":  # after every eighth of the steps
                return 0.5 ** min(7, int(8 * done))
        return 1.0


class Optimizer:
    """Minimise losses with respect to a fixed list of parameters.

    Gradients are computed for these parameters only and are cleared after the update, so several optimizers of one
    network do not interfere and `zero_grad` is not needed.
    """

    def __init__(self, settings: OptimizerSettings, parameters: Sequence[nn.Parameter]) -> None:
        self.settings, self.calls, self.start = settings, 0, 0  # losses so far; losses before the schedule began
        self.optimizer = _torch_optimizer(settings, list(parameters))
        self.parameters = list(parameters)

    def add_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Train additional parameters from now on."""
        self.optimizer.add_param_group({"params": list(parameters), "lr": self.settings.lr})
        self.parameters += list(parameters)

    def minimize(self, loss: Tensor) -> None:
        """Add the gradient of a loss; update after every `accumulate` losses."""
        self.accumulate(loss)
        self.step()

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of a term of a loss; call `step` after the last term."""
        share = loss if self.settings.accumulate == 1 else loss / self.settings.accumulate
        share.backward(inputs=self.parameters)

    def apply_gradients(self, grads: Sequence[Tensor | None]) -> None:
        """Add given gradients instead of those of a loss; update after every `accumulate` calls."""
        for parameter, grad in zip(self.parameters, grads, strict=True):
            if grad is not None:
                # copy to the memory layout of the parameter: autograd may return expanded or shared gradients, which
                # fused optimizers and in-place clipping do not handle
                copied = torch.empty_like(parameter).copy_(grad).div_(self.settings.accumulate)
                parameter.grad = copied if parameter.grad is None else parameter.grad + copied
        self.step()

    def step(self) -> None:
        """Count one loss; update after every `accumulate` losses."""
        settings = self.settings
        calls = self.calls + 1  # stored at the end, so that a step that fails does not count
        if calls % settings.accumulate:
            self.calls = calls
            return
        average_gradients(self.parameters)
        if settings.clip > 0:
            nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        if settings.warmup or settings.schedule != "constant":
            factor = settings.factor((calls - self.start) // settings.accumulate - 1)
            for group in self.optimizer.param_groups:
                group["lr"] = settings.lr * factor
        self._fill_momentum()
        self.optimizer.step()
        self._clear()
        self.calls = calls

    def _fill_momentum(self) -> None:
        """Give new parameters a zero momentum buffer: fused SGD needs one for all parameters or for none."""
        if not isinstance(self.optimizer, torch.optim.SGD) or not self.settings.momentum:
            return
        state, moving = self.optimizer.state, [p for p in self.parameters if p.grad is not None]
        fresh = [p for p in moving if state[p].get("momentum_buffer") is None]
        if len(fresh) < len(moving):
            for p in fresh:
                state[p]["momentum_buffer"] = torch.zeros_like(p)

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def discard_gradients(self) -> None:
        """Return to the state before a step that failed."""
        if self.calls % self.settings.accumulate:
            raise BadInput("the device ran out of memory in one update: use a smaller --batch and larger accumulate")
        self._clear()

    def restart(self) -> None:
        """Restart the schedule for a new stage or phase and drop accumulated gradients."""
        self.calls -= self.calls % self.settings.accumulate
        self.start = self.calls
        self._clear()

    def pending_gradients(self) -> list[Tensor | None]:
        """Return the gradients accumulated since the last update; they differ between processes."""
        return [p.grad for p in self.parameters] if self.calls % self.settings.accumulate else []

    def set_pending_gradients(self, grads: Sequence[Tensor | None]) -> None:
        """Restore gradients returned by `pending_gradients`."""
        self._clear()
        for parameter, grad in zip(self.parameters, grads, strict=False):
            parameter.grad = None if grad is None else grad.to(parameter.device)

    def state_dict(self) -> dict[str, Any]:
        state = {"optimizer": self.optimizer.state_dict(), "calls": self.calls, "began": self.start}
        return {**state, "grads": self.pending_gradients()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.calls, self.start = state["calls"], state["began"]
        self.set_pending_gradients(state["grads"])


def _torch_optimizer(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Build the optimizer; scalars, such as the temperature of a router, get no weight decay."""
    if not parameters:
        raise BadInput("no parameter is left to train, since the complete network is frozen: use --tune full")
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": True}
    groups: list[dict[str, Any]] = [{"params": parameters}]
    scalars = [p for p in parameters if p.dim() == 0]
    if settings.weight_decay and 0 < len(scalars) < len(parameters):
        groups = [{"params": [p for p in parameters if p.dim()]}, {"params": scalars, "weight_decay": 0.0}]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=settings.momentum, **common)
    return (torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam)(groups, **common)

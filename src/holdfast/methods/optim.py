"""One optimizer with its schedule, clipping and accumulation: what a method calls to go down a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.parallel import average_gradients

OPTIMIZERS = ("adamw", "adam", "sgd")
SCHEDULES = ("constant", "linear", "cosine", "halving")


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How to descend; `warmup` and the end of the schedule are counted in optimizer updates."""

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    momentum: float = 0.9
    schedule: str = "constant"
    warmup: int = 0
    steps: int = 1000
    clip: float = 0.0  # largest norm of the gradient; 0 leaves it as it is
    accumulate: int = 1  # losses whose mean makes one update

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        if not self.lr > 0:
            raise BadInput(f"lr must be above 0, not {self.lr:g}: give another --lr, such as 0.001")
        for name, least in {"accumulate": 1, "warmup": 0, "clip": 0, "weight_decay": 0, "momentum": 0}.items():
            if getattr(self, name) < least:
                raise BadInput(f"{name} must be at least {least}, not {getattr(self, name):g}")

    def step_at(self, place: float) -> int:
        """A step of the run, or below 1 a share of all its steps."""
        return int(place * self.steps) if place < 1 else int(place)

    def factor(self, update: int) -> float:
        """What the learning rate is multiplied with at this update, counted from 0."""
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
    """Takes gradients of a loss for its own parameters alone, so that two of them never mix; none is left behind."""

    def __init__(self, settings: OptimizerSettings, parameters: Sequence[nn.Parameter]) -> None:
        self.settings, self.calls, self.start = settings, 0, 0
        self.optimizer = _optimizer(settings, list(parameters))
        self.parameters = list(parameters)

    def add_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adopt parameters that were grown after the start."""
        self.optimizer.add_param_group({"params": list(parameters), "lr": self.settings.lr})
        self.parameters += list(parameters)

    def minimize(self, loss: Tensor) -> None:
        """Go down the gradient of this loss; move when `accumulate` of them are in."""
        self.accumulate(loss)
        self.step()

    def accumulate(self, loss: Tensor) -> None:
        """Add the gradient of a part of a loss to what is gathered; `gathered` comes when all parts are in."""
        share = loss if self.settings.accumulate == 1 else loss / self.settings.accumulate
        share.backward(inputs=self.parameters)

    def apply_gradients(self, grads: Sequence[Tensor | None]) -> None:
        """The same for a gradient that was made elsewhere."""
        for parameter, grad in zip(self.parameters, grads, strict=True):
            if grad is not None:
                # a copy that lies as the parameter does: autograd may return expanded or shared gradients, which
                # fused optimizers would read, and clipping would scale, wrongly
                own = torch.empty_like(parameter).copy_(grad).div_(self.settings.accumulate)
                parameter.grad = own if parameter.grad is None else parameter.grad + own
        self.step()

    def step(self) -> None:
        """One loss is in; move when `accumulate` of them are."""
        settings = self.settings
        calls = self.calls + 1  # counted at the end, so that a step which fails has not been
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
        self._even_momentum()
        self.optimizer.step()
        self._clear()
        self.calls = calls

    def _even_momentum(self) -> None:
        """A fused SGD takes parameters with a past or without, not both: a past of zeros is the same as none."""
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
        """Be as before a step that failed half-way."""
        if self.calls % self.settings.accumulate:
            raise BadInput(
                "the device ran out of memory between two of the batches that make one update: use a smaller --batch "
                "and a larger accumulate"
            )
        self._clear()

    def restart(self) -> None:
        """Begin the schedule anew, as for a new stage or phase; gradients gathered by half are dropped."""
        self.calls -= self.calls % self.settings.accumulate
        self.start = self.calls
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        state = {"optimizer": self.optimizer.state_dict(), "calls": self.calls, "began": self.start}
        return {**state, "grads": self.pending_gradients()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(self._regrouped(state["optimizer"]))
        self.calls, self.start = state["calls"], state["began"]
        self.set_pending_gradients(state["grads"])

    def _regrouped(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state from before lone numbers had a group of their own, as the two groups that they are now."""
        (first, *more), mine = state["param_groups"], self.optimizer.param_groups
        count = len(first["params"])
        if len(mine) != len(more) + 2 or count != len(mine[0]["params"]) + len(mine[1]["params"]):
            return state
        order = sorted(range(count), key=lambda at: _lone(self.parameters[at]))
        cut, moved = len(mine[0]["params"]), {old: new for new, old in enumerate(order)}
        rest = {**first, "params": list(range(cut))}
        lone = {**first, "params": list(range(cut, count)), "weight_decay": 0.0}
        each = {moved.get(at, at): held for at, held in state["state"].items()}
        return {**state, "state": each, "param_groups": [rest, lone, *more]}

    def pending_gradients(self) -> list[Tensor | None]:
        """Gradients gathered since the last update, part of the state; each of several processes has its own."""
        return [p.grad for p in self.parameters] if self.calls % self.settings.accumulate else []

    def set_pending_gradients(self, grads: Sequence[Tensor | None]) -> None:
        self._clear()
        for parameter, grad in zip(self.parameters, grads, strict=False):
            parameter.grad = None if grad is None else grad.to(parameter.device)


def _optimizer(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if not parameters:
        raise BadInput("nothing is left to train: the whole network is frozen")
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": True}
    groups: list[dict[str, Any]] = [{"params": parameters}]
    lone = [p for p in parameters if _lone(p)]
    if settings.weight_decay and 0 < len(lone) < len(parameters):
        groups = [{"params": [p for p in parameters if not _lone(p)]}, {"params": lone, "weight_decay": 0.0}]
    match settings.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, **common)
        case "adam":
            return torch.optim.Adam(groups, **common)
    return torch.optim.SGD(groups, momentum=settings.momentum, **common)


def _lone(parameter: nn.Parameter) -> bool:
    """One number, such as a router's temperature: decay would pull it to a value that means something else."""
    return parameter.dim() == 0

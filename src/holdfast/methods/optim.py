"""Optimizer of a method: torch optimizer, learning-rate schedule, gradient clipping and accumulation."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.dynamo import skip_dynamo, step_without_dynamo
from holdfast.core.errors import BadInput
from holdfast.core.parallel import average_gradients
from holdfast.core.settings import checked_settings, setting

EPS = 1e-6  # added to the norm of a gradient, as in torch
DIVISOR = "grad_scale"  # attribute of a fused optimizer of torch, which divides gradients by it


@checked_settings
class OptimizerSettings:
    """Settings of an optimizer.

    `warmup` is counted in updates and `steps` in steps of the method; an update takes `accumulate` steps.
    """

    optimizer: str = setting("adamw", choices=("adamw", "adam", "sgd"))
    lr: float = setting(1e-3, above=0)
    weight_decay: float = setting(0.01, least=0)
    momentum: float = setting(0.9, least=0)
    schedule: str = setting("constant", choices=("constant", "linear", "cosine", "halving"))
    warmup: int = setting(0, least=0)
    steps: int = 1000
    clip: float = setting(0.0, least=0)  # maximum norm of the gradient; 0 disables clipping
    accumulate: int = setting(1, least=1)  # losses per update
    decay: str = setting("all", choices=("all", "weights"))  # all but scalars, or neither biases nor norms
    rates: Mapping[str, float] = field(default_factory=dict)  # part of the network -> multiple of the learning rate

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

    The learning rate follows the steps of the method: if a step makes several updates, all calls except the last have
    `ends_step=False` and all updates have the same rate.

    Args:
        part_names: the part that each parameter belongs to, for `settings.rates`; by default all are `encoder`.
        undecayed: ids of parameters that get no weight decay with `decay=weights`, besides vectors and scalars.
        changes: settings that replace those in `settings`.
    """

    calls: int
    finished: int
    is_capturing: bool
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    rates: list[float]
    rates_on_device: bool
    settings: OptimizerSettings
    version: int

    def __init__(
        self, settings: OptimizerSettings, parameters: Sequence[nn.Parameter],
        *, part_names: Sequence[str] = (), undecayed: Collection[int] = (), **changes: Any,
    ) -> None:  # fmt: skip
        self.settings = replace(settings, **changes) if changes else settings
        self.calls, self.finished = 0, 0  # losses so far; finished steps of the method since the schedule began
        self.parameters = list(parameters)
        groups = _groups(self.settings, self.parameters, part_names, undecayed)
        self.optimizer, self.rates = _torch_optimizer(self.settings, groups), [rate for rate, _ in groups]
        self.version = 0  # changes when tensors of the optimizer's state are replaced
        self.rates_on_device, self.is_capturing = False, False

    def minimize(self, loss: Tensor, *, ends_step: bool = True) -> None:
        """Add the gradient of a loss; update after every `accumulate` losses."""
        self.accumulate(loss)
        self.step(ends_step=ends_step)

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

    def step(self, *, ends_step: bool = True) -> None:
        """Count one loss; update after every `accumulate` losses."""
        settings = self.settings
        calls = self.calls + 1  # stored at the end, so that a step that fails does not count
        if calls % settings.accumulate == 0:
            average_gradients(self.parameters)
            divisor = clip_gradients(self.parameters, settings.clip) if settings.clip > 0 else None
            if not self.is_capturing:  # a captured update reads them from tensors
                self.set_rates()
            self._fill_momentum()
            vars(self.optimizer)[DIVISOR] = divisor
            step_without_dynamo(self.optimizer)
            vars(self.optimizer)[DIVISOR] = None
            self._clear()
        self.calls = calls
        if ends_step:
            self.end_step()

    def set_rates(self) -> None:
        """Set the learning rates of the next update."""
        settings = self.settings
        if not settings.warmup and settings.schedule == "constant":
            return
        factor = settings.factor(self.finished // settings.accumulate)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if self.rates_on_device:
                group["lr"].fill_(settings.lr * factor * rate)
            else:
                group["lr"] = settings.lr * factor * rate

    def keep_rates(self, *, on_device: bool) -> None:
        """Keep the learning rates in tensors, from which a captured update reads them, or as numbers."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            lr = self.settings.lr * rate
            group["lr"] = torch.tensor(lr, device=group["params"][0].device) if on_device else lr
        self.rates_on_device = on_device
        self.set_rates()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Update inside in the form that a CUDA graph can capture."""
        groups = [group for group in self.optimizer.param_groups if "capturable" in group]
        self.is_capturing = True
        for group in groups:
            group["capturable"] = True
        try:
            yield
        finally:
            self.is_capturing = False
            for group in groups:
                group["capturable"] = False

    def state_tensors(self) -> list[Tensor]:
        """Return momentum and moments of all parameters."""
        states = (self.optimizer.state.get(parameter, {}) for parameter in self.parameters)
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def _replaced(self) -> None:
        self.version += 1
        self.keep_rates(on_device=self.rates_on_device)

    def end_step(self) -> None:
        """Count a step of the method, for the schedule; `step` does so unless `ends_step` is false."""
        self.finished += 1

    def reset_moments(self) -> None:
        """Drop momentum and moments, after a jump of the loss; the schedule continues."""
        self.optimizer.state.clear()
        self._replaced()

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
        self.finished = 0
        self._clear()

    def _follow_layout(self) -> None:
        """Store moments in the memory layout of their parameters, as fused updates need; files have another one."""
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

    def pending_gradients(self) -> list[Tensor | None]:
        """Return the gradients accumulated since the last update; they differ between processes."""
        return [p.grad for p in self.parameters] if self.calls % self.settings.accumulate else []

    def set_pending_gradients(self, grads: Sequence[Tensor | None]) -> None:
        """Restore gradients returned by `pending_gradients`."""
        self._clear()
        for parameter, grad in zip(self.parameters, grads, strict=False):
            parameter.grad = None if grad is None else grad.to(parameter.device)

    def state_dict(self) -> dict[str, Any]:
        state = {"optimizer": self._torch_state(), "calls": self.calls, "finished": self.finished}
        return {**state, "grads": self.pending_gradients()}

    def _torch_state(self) -> dict[str, Any]:
        state = self.optimizer.state_dict()
        if self.rates_on_device:  # checkpoints have numbers
            for group, rate in zip(state["param_groups"], self.rates, strict=True):
                group["lr"] = self.settings.lr * rate
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._follow_layout()
        self._replaced()
        self.calls = state["calls"]
        # checkpoints of earlier versions count the losses before the schedule began
        self.finished = state["finished"] if "finished" in state else state["calls"] - state["began"]
        self.set_pending_gradients(state["grads"])


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], most: float) -> Tensor | None:
    """Scale all gradients so that their joint norm is at most `most`.

    Gradients on a GPU stay as they are: a fused update divides them by the returned tensor, in the same pass.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    if grads and _on_gpu(grads):
        return ((nn.utils.get_total_norm(grads) + EPS) / most).clamp(min=1.0)
    nn.utils.clip_grad_norm_(parameters, most)
    return None


def _on_gpu(grads: Sequence[Tensor]) -> bool:
    return all(grad.is_cuda for grad in grads)


Groups = list[tuple[float, dict[str, Any]]]  # (multiple of the learning rate, parameter group of torch)


def _groups(
    settings: OptimizerSettings, parameters: list[nn.Parameter], part_names: Sequence[str], undecayed: Collection[int]
) -> Groups:
    """Return one group per rate and weight decay, the fastest first."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter, part in zip(parameters, part_names or ["encoder"] * len(parameters), strict=True):
        rate = float(settings.rates.get(part, 1.0))
        decays = parameter.dim() > (0 if settings.decay == "all" else 1)
        if settings.decay != "all" and id(parameter) in undecayed:
            decays = False
        groups.setdefault((rate, decays or not settings.weight_decay), []).append(parameter)
    return [
        (rate, {"params": members, "lr": settings.lr * rate} | ({} if decays else {"weight_decay": 0.0}))
        for (rate, decays), members in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]


def _torch_optimizer(settings: OptimizerSettings, groups: Groups) -> torch.optim.Optimizer:
    if not groups:
        raise BadInput("no parameter is left to train, since the complete network is frozen: use --tune full")
    base = torch.optim.Optimizer
    skip_dynamo([base.add_param_group, base.state_dict, base.load_state_dict, base.zero_grad])
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "fused": True}
    tensors = [group for _, group in groups]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(tensors, momentum=settings.momentum, **common)
    return (torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam)(tensors, **common)

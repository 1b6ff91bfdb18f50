"""The training loop: the only one in the library. It is handed batches and a validation, and cannot reach test data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.seeds import chance_state, set_chance_state
from holdfast.data.batches import Batches
from holdfast.methods.base import Method, Metrics
from holdfast.protocols.resume import Saver
from holdfast.protocols.select import Check, Choose, should_stop

Validate = Callable[[], tuple[dict[str, float], dict[str, float]]]  # by domain: score (higher is better), risk


class Diverged(BadInput):
    """A risk is no longer a number: the settings, not the data, are to be mended."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What a training left: the step that was kept and all that was seen on the way."""

    step: int
    checks: list[Check]
    history: list[dict[str, Any]]  # per check: phase, step, metrics of that step, valid scores and risks


@dataclass(slots=True)
class _State:
    phase: int = 0
    step: int = 0
    checks: list[Check] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    snapshot: dict[str, Any] | None = None


def fit(
    method: Method,
    batches: Batches,
    validate: Validate,
    *,
    steps: int,
    every: int,
    choose: Choose,
    patience: int = 0,
    saver: Saver | None = None,
    saved: dict[str, Any] | None = None,
    tick: Callable[[Metrics], None] | None = None,
) -> Fit:
    """Train `steps` in each phase, validate every `every`, and end each phase as it was at its chosen step."""
    state = _State()
    if saved is not None:
        for name in method.phases[: saved["phase"] + 1]:
            method.begin_phase(name)
        _restore(state, saved, method, batches)
    for number in range(state.phase, len(method.phases)):
        if saved is None or number != state.phase:
            state = _State(phase=number, history=state.history)
            method.begin_phase(method.phases[number])
            method.restart_schedules()
        method.train()  # here, because a phase may freeze parts, which then rest
        while state.step < steps:
            metrics = method.step(next(batches))
            state.step += 1
            if tick is not None:
                tick(metrics)
            if state.step % every == 0 or state.step == steps:
                _check(state, method, metrics, validate)
                if choose(state.checks) == len(state.checks) - 1:
                    state.snapshot = copy.deepcopy(method.state_dict())
                if should_stop(state.checks, choose, patience):
                    break
            if saver is not None and saver.due():
                saver.save(_pack(state, method, batches))
        assert state.snapshot is not None, "no step was validated"
        method.load_state_dict(state.snapshot)
    return Fit(state.checks[choose(state.checks)].step, state.checks, state.history)


def _check(state: _State, method: Method, metrics: Metrics, validate: Validate) -> None:
    seen = {name: float(value) for name, value in metrics.items()}
    _must_be_finite(seen, state.step)
    scores, losses = validate()
    _must_be_finite(losses, state.step)
    method.on_valid(state.step, scores, losses)
    state.checks.append(Check(state.step, scores))
    phase = method.phases[state.phase]
    state.history.append({"phase": phase, "step": state.step, **seen, "valid": scores, "loss": losses})


def _must_be_finite(values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise Diverged(f"training diverged: {name} is {value} at step {step}; lower --lr or set clip")


def _pack(state: _State, method: Method, batches: Batches) -> dict[str, Any]:
    return {
        "phase": state.phase,
        "step": state.step,
        "checks": [[check.step, check.scores] for check in state.checks],
        "history": state.history,
        "snapshot": state.snapshot,
        "method": method.state_dict(),
        "batches": batches.state_dict(),
        "chance": chance_state(),
    }


def _restore(state: _State, saved: dict[str, Any], method: Method, batches: Batches) -> None:
    state.phase, state.step = saved["phase"], saved["step"]
    state.checks = [Check(step, scores) for step, scores in saved["checks"]]
    state.history, state.snapshot = saved["history"], saved["snapshot"]
    method.load_state_dict(saved["method"])
    batches.load_state_dict(saved["batches"])
    set_chance_state(saved["chance"])

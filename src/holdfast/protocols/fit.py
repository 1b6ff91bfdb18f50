"""The training loop: the only one in the library. It is handed batches and a validation, and cannot reach test data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.seeds import process_rng_state, rng_state, set_process_rng_state, set_rng_state
from holdfast.data.batches import Batches
from holdfast.methods.base import Method, Metrics
from holdfast.protocols.microbatch import optimizers_of, set_microbatches, train_step
from holdfast.protocols.resume import Interrupted, Saver
from holdfast.protocols.select import Choose, Validation, should_stop

Validate = Callable[[], tuple[dict[str, float], dict[str, float]]]  # by domain: score (higher is better), risk


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a training left: the step that was kept and all that was seen on the way."""

    step: int
    checks: list[Validation]
    history: list[dict[str, Any]]  # per check: phase, step, metrics of that step, valid scores and risks
    microbatches: int = 1  # in how many a batch was taken at last, so that it fitted into the device's memory


@dataclass(slots=True)
class _State:
    phase: int = 0
    step: int = 0
    checks: list[Validation] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    snapshot: dict[str, Any] | None = None
    unchecked: dict[str, float] | None = None  # what the newest step said, while it waits to be validated


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
) -> FitResult:
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
        recent = Recent()
        while state.step < steps or state.unchecked is not None:
            if state.unchecked is None:
                metrics = train_step(method, next(batches))
                state.step += 1
                recent.add(state.step, metrics, batches)
                if tick is not None:
                    tick(metrics)
                if state.step % every == 0 or state.step == steps:
                    recent.look()
                    state.unchecked = _told(metrics)
            if state.unchecked is not None:
                try:
                    _check(state, method, validate)
                except Interrupted:  # the validation is done again, and finds what it would have found
                    if saver is not None:
                        saver.save(_pack(state, method, batches))
                    raise
                if choose(state.checks) == len(state.checks) - 1:
                    state.snapshot = copy.deepcopy(method.state_dict())
                if should_stop(state.checks, choose, patience):
                    break
            if saver is not None and saver.due():
                recent.look()  # what is saved is good
                saver.save(_pack(state, method, batches))
        state.step = steps  # an early end is the end
        if saver is not None and saver.worth():
            saver.save(_pack(state, method, batches))
        assert state.snapshot is not None, "no step was validated"
        method.load_state_dict(state.snapshot)
    return FitResult(state.checks[choose(state.checks)].step, state.checks, state.history, method.microbatches)


def _told(metrics: Metrics) -> dict[str, float]:
    """Numbers of a step, the mean over the processes that took it."""
    if parallel.active() and metrics:
        device = next(iter(metrics.values())).device
        values = parallel.mean(torch.stack([value.detach().float().to(device) for value in metrics.values()]))
        return dict(zip(metrics, values.tolist(), strict=True))
    return {name: float(value) for name, value in metrics.items()}


def _check(state: _State, method: Method, validate: Validate) -> None:
    scores, losses = validate()
    must_be_finite(losses, state.step)
    method.on_valid(state.step, scores, losses)
    state.checks.append(Validation(state.step, scores))
    phase, seen = method.phases[state.phase], state.unchecked or {}
    state.history.append({"phase": phase, "step": state.step, **seen, "valid": scores, "loss": losses})
    state.unchecked = None


def _pack(state: _State, method: Method, batches: Batches) -> dict[str, Any]:
    return {
        "phase": state.phase,
        "step": state.step,
        "checks": [[check.step, check.scores] for check in state.checks],
        "history": state.history,
        "snapshot": state.snapshot,
        "unchecked": state.unchecked,
        "pieces": method.microbatches,
        "method": method.state_dict(),
        "batches": batches.state_dict(),
        "chance": rng_state(),
        "own": parallel.all_gather(_own(method, batches)),
    }


def _own(method: Method, batches: Batches) -> dict[str, Any]:
    """What differs between the processes of a run; nothing when alone."""
    if not parallel.active():
        return {}
    waiting = [[None if g is None else g.cpu() for g in each.pending_gradients()] for each in optimizers_of(method)]
    return {"chance": process_rng_state(), "changes": batches.transform_generator.get_state(), "grads": waiting}


def _restore(state: _State, saved: dict[str, Any], method: Method, batches: Batches) -> None:
    state.phase, state.step = saved["phase"], saved["step"]
    state.checks = [Validation(step, scores) for step, scores in saved["checks"]]
    state.history, state.snapshot, state.unchecked = saved["history"], saved["snapshot"], saved["unchecked"]
    set_microbatches(method, saved["pieces"])
    method.load_state_dict(saved["method"])
    batches.load_state_dict(saved["batches"])
    set_rng_state(saved["chance"])
    own = saved["own"][parallel.rank()] if parallel.active() else {}
    if own:
        set_process_rng_state(own["chance"])
        batches.transform_generator.set_state(own["changes"])
        for each, grads in zip(optimizers_of(method), own["grads"], strict=True):
            each.set_pending_gradients(grads)


NAMED = 20  # rows of a batch that a sentence names


class Diverged(BadInput):
    """A risk is no longer a number: the settings, not the data, are to be mended."""

    rows: tuple[int, ...] = ()  # of the data, in the batch of the first such step
    step: int = 0

    def naming(self, ids: Sequence[str] | None) -> Diverged:
        """The same with the ids of the batch's rows, or their numbers where the data has no ids."""
        if not self.rows:
            return self
        named = [str(row + 1) if ids is None else ids[row] for row in self.rows]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        what = "rows" if ids is None else "ids"
        told = f"{self}; the batch of that step held {what} {', '.join(named[:NAMED])}{more}"
        return diverged(told, self.step, self.rows)


def diverged(sentence: str, step: int, rows: Sequence[int] = ()) -> Diverged:
    """Made in two steps, so that it travels between processes as any exception does."""
    made = Diverged(sentence)
    made.step, made.rows = step, tuple(rows)
    return made


class Recent:
    """What the steps since the last look said; nothing waits for the device until someone looks."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Metrics, Tensor]] = []
        self.batches: Batches | None = None

    def add(self, step: int, metrics: Metrics, batches: Batches) -> None:
        self.batches = batches
        self.seen.append((step, metrics, batches.drawn))

    def look(self) -> None:
        """Raise at the first step that said something that is no number."""
        seen, self.seen = self.seen, []
        if not seen or self.batches is None:
            return
        values = [value.detach().float() for _, metrics, _ in seen for value in metrics.values()]
        if all(bool(torch.stack(some).isfinite().all()) for some in by_device(values).values()):
            return
        for step, metrics, rows in seen:
            found = self.batches.examples.origins(rows).unique()
            must_be_finite({name: float(value) for name, value in metrics.items()}, step, found.tolist())


def by_device(values: Sequence[Tensor]) -> dict[torch.device, list[Tensor]]:
    """A method may count on the host what it learns on the device; each place is asked once."""
    found: dict[torch.device, list[Tensor]] = {}
    for value in values:
        found.setdefault(value.device, []).append(value)
    return found


def must_be_finite(values: dict[str, float], step: int, rows: Sequence[int] = ()) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            said = f"training diverged: {name} is {value} at step {step}; lower --lr or set clip"
            raise diverged(said, step, rows)

"""The training loop, and the selection of a step. It gets batches and a validation function, and no test data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput, warn
from holdfast.core.seeds import process_rng_state, rng_state, set_process_rng_state, set_rng_state, use_process_rng
from holdfast.core.stopping import Interrupted
from holdfast.core.tape import collect_shares, mean_shares
from holdfast.data.batches import Batches
from holdfast.data.splits import Part
from holdfast.defaults import FEW_DOMAINS
from holdfast.methods.base import Method, Metrics
from holdfast.methods.captured import captured_steps, release_captures
from holdfast.train.plans import balanced_groups
from holdfast.train.resume import Saver

Validate = Callable[[], tuple[dict[str, float], dict[str, float]]]  # score (higher is better) and loss, per domain
NAMED_ROWS = 20  # rows of a batch that an error names
EARLIER_KEYS = {  # of checkpoints that an earlier version wrote
    "checks": "validations", "unchecked": "unvalidated", "pieces": "microbatches", "chance": "random",
    "own": "processes", "changes": "augmentation",
}  # fmt: skip
MEASURED_ROWS = 256  # examples per domain that a method may measure after a phase


@dataclass(frozen=True, slots=True)
class FitResult:
    """Outcome of a training: the selected step and the history."""

    step: int
    validations: list[Validation]
    history: list[dict[str, Any]]  # per validation: phase, step, metrics of that step, scores and losses
    microbatches: int = 1  # per batch, at the end
    compiled: str = ""  # how steps on a GPU were computed: captured, or why they were not


@dataclass(slots=True)
class _State:
    phase: int = 0
    step: int = 0
    validations: list[Validation] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    snapshot: dict[str, Any] | None = None  # of the method at the selected step
    unvalidated: dict[str, float] | None = None  # metrics of the newest step until it is validated


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
    compile: str = "auto",
) -> FitResult:
    """Train `steps` steps per phase, validate every `every` steps, and restore the selected step after each phase.

    With `compile="auto"`, steps on a GPU are captured as CUDA graphs where the method supports it.
    """
    state, compiled = _State(), ""
    # resume: phases that had begun may have frozen or added parameters, which must happen before the state is loaded
    if saved is not None:
        for name in method.phases[: saved["phase"] + 1]:
            method.begin_phase(name)
        _restore(state, saved, method, batches)
    for number in range(state.phase, len(method.phases)):
        # every phase but a resumed one starts with an empty state and a new schedule; the history goes on
        if saved is None or number != state.phase:
            state = _State(phase=number, history=state.history)
            method.begin_phase(method.phases[number])
            for optimizer in method.optimizers():
                optimizer.restart()
        method.train()  # after begin_phase, which may freeze modules
        pick = newest if method.phases[number] in method.keeps_last else choose
        recent = RecentMetrics()
        with captured_steps(method, compile=compile) as capture:
            # A pass of this loop is one step, and a validation after every `every`-th one. `unvalidated` holds the
            # metrics of a step between the two, so that a run that stops there validates first when it is resumed.
            while state.step < steps or state.unvalidated is not None:
                if state.unvalidated is None:
                    metrics = (
                        method.solve(batches.one_pass()) if method.full_batch else train_step(method, next(batches))
                    )
                    state.step += 1
                    recent.add(state.step, metrics, batches)
                    if tick is not None:
                        tick(metrics)
                    # metrics are looked at here only: reading one makes the CPU wait for the GPU
                    if state.step % every == 0 or state.step == steps:
                        recent.check()
                        state.unvalidated = _to_floats(metrics)
                if state.unvalidated is not None:
                    try:
                        _validate(state, method, validate)
                    except Interrupted:  # on resume the validation is repeated
                        if saver is not None:
                            saver.save(_pack(state, method, batches))
                        raise
                    # keep the weights if this validation is the one to select so far
                    is_picked = pick(state.validations) == len(state.validations) - 1 and not method.phase_ended
                    if is_picked or state.snapshot is None:
                        state.snapshot = copy.deepcopy(method.state_dict())
                    if method.phase_ended or should_stop(state.validations, pick, patience):
                        break
                if saver is not None and saver.due():
                    recent.check()  # never save a diverged state
                    saver.save(_pack(state, method, batches))
        compiled = "" if capture is None else capture.summary
        # the phase is over: a checkpoint here resumes with the selection, then the selected weights are restored
        state.step = steps  # also after early stopping
        if saver is not None and saver.due():
            saver.save(_pack(state, method, batches))
        assert state.snapshot is not None, "no step was validated"
        method.load_state_dict(state.snapshot)
        state.history[-1] |= method.end_phase(method.phases[number], batches.examples_per_domain(MEASURED_ROWS))
    if method.choices:
        _choose(state, method, validate)
    chosen = state.validations[choose(state.validations)]
    return FitResult(chosen.step, state.validations, state.history, method.microbatches, compiled)


def _to_floats(metrics: Metrics) -> dict[str, float]:
    """Return the metrics of a step, averaged over the processes."""
    if parallel.active() and metrics:
        # all metrics in one tensor: one exchange between the processes, and one wait for the device
        device = next(iter(metrics.values())).device
        values = parallel.mean(torch.stack([value.detach().float().to(device) for value in metrics.values()]))
        return dict(zip(metrics, values.tolist(), strict=True))
    return {name: float(value) for name, value in metrics.items()}


def _validate(state: _State, method: Method, validate: Validate) -> None:
    scores, losses = validate()
    # a diverged network is never selected; `on_valid` may end the phase, which the history records, so it comes first
    _require_finite(losses, state.step)
    method.on_valid(state.step, scores, losses)
    state.validations.append(Validation(state.step, scores))
    phase, metrics = method.phases[state.phase], state.unvalidated or {}
    ended = {"ended": True} if method.phase_ended else {}
    state.history.append({"phase": phase, "step": state.step, **metrics, "valid": scores, "loss": losses, **ended})
    # from here on the validation is complete: until now an interruption would repeat it
    state.unvalidated = None


def _choose(state: _State, method: Method, validate: Validate) -> None:
    """Validate every network that a method offers after training, and deploy the first with the best mean score."""
    options = []
    for index in range(method.choices):
        metrics = method.choose(index)
        scores, losses = validate()
        options.append(Validation(state.step, scores))
        state.history.append({"phase": "choose", "step": state.step, **metrics, "valid": scores, "loss": losses})
    method.choose(best_mean(options))


def _pack(state: _State, method: Method, batches: Batches) -> dict[str, Any]:
    return {
        "phase": state.phase,
        "step": state.step,
        "validations": [[validation.step, validation.scores] for validation in state.validations],
        "history": state.history,
        "snapshot": state.snapshot,
        "unvalidated": state.unvalidated,
        "microbatches": method.microbatches,
        "method": method.state_dict(),
        "batches": batches.state_dict(),
        "random": rng_state(),
        # every process contributes, so all of them must call this at the same step
        "processes": parallel.all_gather(_process_state(method, batches)),
    }


def _process_state(method: Method, batches: Batches) -> dict[str, Any]:
    """Return the state that differs between processes; empty for a single process."""
    if not parallel.active():
        return {}
    # gradients since the last update are not averaged yet; the state of the method has those of the first process only
    pending = [optimizer.pending_gradients() for optimizer in method.optimizers()]
    grads = [[None if g is None else g.cpu() for g in gradients] for gradients in pending]
    return {"random": process_rng_state(), "augmentation": batches.transform_generator.get_state(), "grads": grads}


def _restore(state: _State, saved: dict[str, Any], method: Method, batches: Batches) -> None:
    saved = {EARLIER_KEYS.get(key, key): value for key, value in saved.items()}
    state.phase, state.step = saved["phase"], saved["step"]
    state.validations = [Validation(step, scores) for step, scores in saved["validations"]]
    state.history, state.snapshot, state.unvalidated = saved["history"], saved["snapshot"], saved["unvalidated"]
    set_microbatches(method, saved["microbatches"])
    method.load_state_dict(saved["method"])
    batches.load_state_dict(saved["batches"])
    set_rng_state(saved["random"])
    # what differs between processes replaces the values of the first one
    local = saved["processes"][parallel.rank()] if parallel.active() else {}
    if local:
        local = {EARLIER_KEYS.get(key, key): value for key, value in local.items()}
        set_process_rng_state(local["random"])
        batches.transform_generator.set_state(local["augmentation"])
        for optimizer, grads in zip(method.optimizers(), local["grads"], strict=True):
            optimizer.set_pending_gradients(grads)


class OutOfMemory(BadInput):
    """A step does not fit into the memory of the device, even in the smallest microbatches."""


class Diverged(BadInput):
    """A loss, or what a memory of the network returns, is NaN or infinite."""

    rows: tuple[int, ...] = ()  # of the data, in the batch of the first such step
    step: int = 0

    @staticmethod
    def at(message: str, step: int, rows: Sequence[int] = ()) -> Diverged:
        """Build the error; attributes are set afterwards, so that it can be pickled between processes."""
        error = Diverged(message)
        error.step, error.rows = step, tuple(rows)
        return error

    def with_ids(self, ids: Sequence[str] | None) -> Diverged:
        """Add the ids of the batch's rows to the message, or their numbers where the data has no ids."""
        if not self.rows:
            return self
        names = [str(row + 1) if ids is None else ids[row] for row in self.rows]
        more = f" and {len(names) - NAMED_ROWS} more" if len(names) > NAMED_ROWS else ""
        kind = "rows" if ids is None else "ids"
        message = f"{self}; the batch of that step had {kind} {', '.join(names[:NAMED_ROWS])}{more}"
        return Diverged.at(message, self.step, self.rows)


class RecentMetrics:
    """Metrics of the steps since the last check, which do not make the CPU wait for the device until then."""

    def __init__(self) -> None:
        self.recent: list[tuple[int, Metrics, Tensor]] = []
        self.batches: Batches | None = None

    def add(self, step: int, metrics: Metrics, batches: Batches) -> None:
        """Add the metrics of a step."""
        self.batches = batches
        self.recent.append((step, metrics, batches.drawn))

    def check(self) -> None:
        """Raise `Diverged` for the first step with a metric that is not finite."""
        recent, self.recent = self.recent, []
        if not recent or self.batches is None:
            return
        values = [value.detach().float() for _, metrics, _ in recent for value in metrics.values()]
        by_device: dict[torch.device, list[Tensor]] = {}  # so that every device is synchronised once
        for value in values:
            by_device.setdefault(value.device, []).append(value)
        # almost always one wait per device is enough; only after a failure the metrics are read one by one
        if all(bool(torch.stack(group).isfinite().all()) for group in by_device.values()):
            return
        for step, metrics, rows in recent:
            # one example of the data may have become several rows here: the error names the examples
            origins = self.batches.examples.origins(rows).unique()
            _require_finite({name: float(value) for name, value in metrics.items()}, step, origins.tolist())


def _require_finite(values: dict[str, float], step: int, rows: Sequence[int] = ()) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            message = f"training diverged: {name} is {value} at step {step}; lower --lr or set clip"
            raise Diverged.at(message, step, rows)


def set_microbatches(method: Method, count: int) -> None:
    """Set the number of microbatches of a method and of the methods that it wraps."""
    for part in method.methods():
        part.microbatches = count


def train_step(method: Method, batch: DomainBatch) -> Metrics:
    """Take one step and return its metrics with the shares that modules recorded.

    Out of memory, the step is repeated with twice the number of microbatches, which is kept for later steps.
    """
    while True:
        try:
            with use_process_rng(), collect_shares() as passes:
                metrics = method.take_step(batch)
            parallel.average_batch_statistics(method)
            return {**metrics, **mean_shares(passes)}
        except torch.OutOfMemoryError:
            pass  # handled below, where the exception no longer keeps the tensors of the failed step alive
        # drop what the failed step left: gradients of some terms, and CUDA graphs, which keep memory of their own and
        # are not used by steps in microbatches
        _double_microbatches(method, batch)
        for optimizer in method.optimizers():
            optimizer.discard_gradients()
        release_captures(method)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _double_microbatches(method: Method, batch: DomainBatch) -> None:
    # splitting is possible only if the method adds up over examples, and if no other process waits for this step
    size, limit = len(batch.y), max(batch.sizes)
    reason = method.why_not_split(batch) if parallel.world_size() == 1 else "other processes wait for its gradients"
    if not reason and method.microbatches >= limit:
        reason = "microbatches have one example per domain already"
    if reason:
        fix = "use a smaller --batch, shorter inputs, a smaller encoder or --tune frozen"
        raise OutOfMemory(f"the device has too little memory for a step on {size} examples, and {reason}: {fix}")
    count = min(2 * method.microbatches, limit)
    set_microbatches(method, count)
    split = f"every batch is split into {count} microbatches whose gradients are added; the update is the same"
    warn(f"the device has too little memory for {size} examples at once, so {split}")


SOURCE_FOLDS = 5  # of the training domains, where a selection holds out many of them


@dataclass(frozen=True, slots=True)
class Validation:
    """Scores of one validation, per domain."""

    step: int
    scores: dict[str, float]


Choose = Callable[[Sequence[Validation]], int]  # index of the validation to deploy


def best_mean(history: Sequence[Validation]) -> int:
    """Return the first validation with the highest mean over domains."""
    means = [sum(validation.scores.values()) / len(validation.scores) for validation in history]
    return means.index(max(means))


def newest(history: Sequence[Validation]) -> int:
    """Return the newest validation."""
    return len(history) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection method: the rows it is scored on and how it chooses."""

    choose: Choose
    scored_on: str = "valid"  # valid, current (only domains trained in the stage), oracle (the target) or folds


train_validation = Selection(best_mean)
current_domain = Selection(best_mean, "current")
oracle = Selection(best_mean, "oracle")
leave_one_domain_out = Selection(best_mean, "folds")
last = Selection(newest)


def should_stop(history: Sequence[Validation], choose: Choose, patience: int) -> bool:
    """Whether the chosen validation is `patience` validations old (early stopping); never for patience 0."""
    return patience > 0 and len(history) - 1 - choose(history) >= patience


def across_folds(histories: Sequence[Sequence[Validation]]) -> list[Validation]:
    """Merge the validations of several folds at the steps that all of them reached."""
    shared = set.intersection(*({validation.step for validation in history} for history in histories))
    merged: dict[int, dict[str, float]] = {step: {} for step in sorted(shared)}
    for history in histories:
        for validation in history:
            if validation.step in shared:
                merged[validation.step].update(validation.scores)
    return [Validation(step, scores) for step, scores in merged.items()]


def source_folds(domains: Sequence[Part]) -> list[list[str]]:
    """Return the domains that each fold of a selection holds out: one, or a group if there are many."""
    if len(domains) <= FEW_DOMAINS:
        return [[part.domain] for part in domains]
    return balanced_groups({part.domain: np.asarray([len(part)]) for part in domains}, SOURCE_FOLDS)

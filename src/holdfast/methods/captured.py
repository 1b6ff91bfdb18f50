"""Training steps as CUDA graphs: a step is captured once per shape of a batch and replayed, in one launch.

A method takes part if `capture_key` is not None. After a few eager steps with the same key, the step is captured and
compared with an eager step from the same state; if it cannot be captured or differs, training continues eagerly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.accel.graphs import CudaRecorder, Graph, GraphTable, Recorder, capture_key, shapes_of, tensors_of
from holdfast.accel.registry import fused_kernels
from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import warn
from holdfast.core.seeds import rng_state, set_rng_state
from holdfast.core.tape import collect_shares, mean_shares
from holdfast.methods.base import Method, Metrics

CHECKED_STEPS = 2  # replays of the first graph that are compared with an eager step; one of every further graph
STEP_TOLERANCE = 0.1  # norm of the difference of two updates, relative to the update: kernels add in any order
METRIC_TOLERANCE = 0.02


@dataclass
class _CapturedStep:
    """The graph of one key, whose result are the metrics (m,) of these names."""

    graph: Graph
    names: list[str]
    advances: list[int]  # what one step adds to every counter
    checks: int  # replays that are still compared with an eager step


class _State(NamedTuple):
    """Everything that a step changes: tensors, the parameters first, random numbers and counters."""

    addresses: list[int]
    values: list[Tensor]
    random: Any
    counts: list[int]


class StepCapture:
    """Takes the steps of a method: eagerly at first, then by replaying captured ones."""

    def __init__(self, method: Method, recorder: Recorder) -> None:
        self.method, self.recorder = method, recorder
        self.optimizers = method.optimizers()
        self.accumulates = any(optimizer.settings.accumulate > 1 for optimizer in self.optimizers)
        self.steps = GraphTable[_CapturedStep]()
        self.reason = ""  # why the steps are no longer captured
        self.replays = 0
        # a replay runs no Python: numbers that a step counts up are advanced after it
        self.counters: list[tuple[Any, str]] = [
            (optimizer, name) for optimizer in self.optimizers for name in ("calls", "finished")
        ]
        numbers = (name for name in method.saved_attributes if type(getattr(method, name)) is int)
        self.counters += [(method, name) for name in numbers]
        # a graph keeps numbers from its capture, so rates that follow a schedule must be tensors
        for optimizer in self.optimizers:
            optimizer.keep_rates(on_device=True)

    def __call__(self, batch: DomainBatch) -> Metrics:
        key = self._key(batch)
        if key is None:
            return self._step(batch)
        captured = self.steps.find(key)
        if captured is not None:
            return self._replay(captured, batch) if captured.checks == 0 else self._verified(batch, key, captured)
        # eager steps first, in which optimizers create their state
        if not self.steps.is_due(key):
            return self.recorder.warm_up(lambda: self._step(batch))
        return self._verified(batch, key, None)

    def _key(self, batch: DomainBatch) -> Hashable | None:
        """Return what a graph depends on besides the values of tensors; None if this step is computed eagerly."""
        if self.reason or self.accumulates or self.method.microbatches > 1:
            return None
        tensors = _tensors_of(batch)
        # everything that Python decides during a step must be in the key, since a replay does not decide again
        own = self.method.capture_key()
        if own is None or not tensors:
            return None
        versions = tuple(optimizer.version for optimizer in self.optimizers)
        domains = batch.domains if batch.drawn is None else ()  # other domains in every step are data, not a key
        return own, versions, type(batch.x), shapes_of(tensors), domains, batch.sizes, capture_key(batch.y)

    def _step(self, batch: DomainBatch) -> Metrics:
        with collect_shares() as passes, nullcontext() if self.reason else fused_kernels():
            metrics = self.method.step(batch)
        return {**metrics, **mean_shares(passes)}

    def _replay(self, captured: _CapturedStep, batch: DomainBatch) -> Metrics:
        for optimizer in self.optimizers:
            optimizer.set_rates()
        # the graph reads its batch, rates and random state at fixed addresses, and writes the metrics to one tensor,
        # which the next replay overwrites
        packed = captured.graph.replay(_tensors_of(batch))
        self.replays += 1
        for (owner, name), more in zip(self.counters, captured.advances, strict=True):
            setattr(owner, name, getattr(owner, name) + more)
        return dict(zip(captured.names, packed.clone().unbind(0), strict=True))

    def _verified(self, batch: DomainBatch, key: Hashable, captured: _CapturedStep | None) -> Metrics:
        """Take an eager step, repeat it from the same state by a replay, and compare both.

        If the step cannot be captured, or if the results differ, the eager result stays.
        """
        # 1. an eager step, whose result is valid in any case
        before = self.state()
        with self.recorder.synchronisations() as locations:
            metrics = self.recorder.warm_up(lambda: self._step(batch))
        if locations:
            return self._give_up(f"the CPU waits for the GPU in {locations[0]}", metrics)
        after = self.state()
        # a graph writes to the addresses of its capture: a tensor that moves would not be updated
        if before.addresses != after.addresses:
            return self._give_up("a step replaces tensors of the method", metrics)
        # 2. the same step by a replay, from the same state and the same random numbers
        self.restore(before)
        try:
            if captured is None:
                # capturing runs Python without the GPU, so it advances the counters a second time
                advances = [b - a for a, b in zip(before.counts, after.counts, strict=True)]
                captured = self._captured(batch, advances)
                self.set_counts(before.counts)
            replayed = self._replay(captured, batch)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self.restore(after)
            return self._give_up(f"capturing failed ({' '.join(str(error).split())[:160]})", metrics)
        # 3. a replay that agrees stays as the result of the step; otherwise the eager one is restored
        if not self._is_close(before, after, metrics, replayed):
            self.restore(after)
            return self._give_up("a replay differs from an eager step", metrics)
        captured.checks -= 1
        self.steps.keep(key, captured)
        return metrics

    def _captured(self, batch: DomainBatch, advances: list[int]) -> _CapturedStep:
        # the graph reads from this copy, which must live as long as the graph
        copied = _clone_batch(batch)
        names: list[str] = []

        def step() -> Tensor:
            metrics = self._step(copied)
            names[:] = metrics
            return torch.stack([value.detach().float() for value in metrics.values()])

        with ExitStack() as stack:
            for optimizer in self.optimizers:
                stack.enter_context(optimizer.capturing())
            graph = self.recorder.record(step, _tensors_of(copied))
        return _CapturedStep(graph, names, advances, 1 if self.steps.graphs else CHECKED_STEPS)

    def state(self) -> _State:
        """Copy all that a step changes."""
        tensors, counts = self._tensors(), [getattr(owner, name) for owner, name in self.counters]
        return _State([t.data_ptr() for t in tensors], [t.detach().clone() for t in tensors], rng_state(), counts)

    @torch.no_grad()
    def restore(self, state: _State) -> None:
        """Return to a state that `state` copied."""
        for tensor, value in zip(self._tensors(), state.values, strict=True):
            tensor.copy_(value)
        set_rng_state(state.random)
        self.set_counts(state.counts)

    def _tensors(self) -> list[Tensor]:
        moments = [tensor for optimizer in self.optimizers for tensor in optimizer.state_tensors()]
        return [*self.method.parameters(), *self.method.buffers(), *moments]

    def set_counts(self, counts: Sequence[int]) -> None:
        for (owner, name), count in zip(self.counters, counts, strict=True):
            setattr(owner, name, count)

    @torch.no_grad()
    def _is_close(self, before: _State, after: _State, eager: Metrics, replay: Metrics) -> bool:
        """Whether the present parameters and the metrics of a replay equal those of an eager step."""
        if list(eager) != list(replay):
            return False
        parameters = [parameter.detach() for parameter in self.method.parameters()]
        starts, ends = (state.values[: len(parameters)] for state in (before, after))
        # rounding differs from run to run, so the difference of two updates counts relative to the update
        moved, difference = _distance(ends, starts), _distance(parameters, ends)
        first, second = (torch.stack([v.float().to(moved.device) for v in m.values()]) for m in (eager, replay))
        close = torch.isclose(first, second, rtol=METRIC_TOLERANCE, atol=1e-4, equal_nan=True).all()
        return bool(close & ~(difference > STEP_TOLERANCE * moved))  # one wait for the GPU

    def _give_up(self, reason: str, metrics: Metrics) -> Metrics:
        self.reason = reason
        self.steps.clear()
        _warn_once(f"steps of {type(self.method).__name__} are not captured as CUDA graphs, because {reason}")
        return metrics

    def release(self) -> None:
        """Free the graphs and their memory; later steps start again."""
        self.steps.clear()

    @property
    def summary(self) -> str:
        """How the steps were computed: `captured`, or the reason why they were not; empty if none was due."""
        return "captured" if self.replays and not self.reason else self.reason


@contextmanager
def captured_steps(method: Method, *, compile: str) -> Iterator[StepCapture | None]:
    """Let the innermost method take its steps by captured CUDA graphs inside; on a CPU nothing changes."""
    # wrappers call `take_step` of the innermost method, so only this one takes its steps by replays
    inner = method.methods()[-1]
    device = next((parameter.device for parameter in inner.parameters()), torch.device("cpu"))
    # steps of a method that is not `capturable` decide on the CPU
    if compile == "off" or device.type != "cuda" or parallel.active() or method.full_batch or not inner.capturable:
        yield None
        return
    with use_capture(StepCapture(inner, CudaRecorder(device))) as capture:
        yield capture


@contextmanager
def use_capture(capture: StepCapture) -> Iterator[StepCapture]:
    """Let a method take its steps by `capture` inside."""
    method = capture.method
    method.taker = capture
    try:
        yield capture
    finally:
        method.taker = None
        capture.release()
        for optimizer in capture.optimizers:
            optimizer.keep_rates(on_device=False)


def release_captures(method: Method) -> None:
    """Free the CUDA graphs of a method and of those that it wraps."""
    for part in method.methods():
        if isinstance(part.taker, StepCapture):
            part.taker.release()


def _distance(tensors: list[Tensor], others: list[Tensor]) -> Tensor:
    """Return the norm () of the difference of two lists of tensors."""
    differences = torch._foreach_sub(tensors, others)
    return torch.stack([norm.float() for norm in torch._foreach_norm(differences)]).norm()


@cache
def _warn_once(sentence: str) -> None:
    warn(sentence)


def _tensors_of(batch: DomainBatch) -> list[Tensor | None]:
    """Return the tensors of a batch, none where those of its examples cannot be captured."""
    examples = tensors_of(batch.x)
    return [*examples, batch.y, batch.drawn] if examples else []


def _clone_batch(batch: DomainBatch) -> DomainBatch:
    x = inputs.map_tensors(lambda t: t.clone(), batch.x)
    drawn = None if batch.drawn is None else batch.drawn.clone()
    return DomainBatch(x, batch.y.clone(), batch.domains, batch.sizes, drawn)

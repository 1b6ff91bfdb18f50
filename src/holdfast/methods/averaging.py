"""Averages of weights around any other rule: moving-average(coral), swad(coral)."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.core.batch import DomainBatch
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.model import Model


class Wrapper(Method):
    """A method that trains another and watches; it hands on everything it does not change."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self.min_domains, self.phases, self.selects_itself = method.min_domains, method.phases, method.selects_itself

    @property
    def model(self) -> Model:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.model

    @property
    @abstractmethod
    def deployed(self) -> Model: ...

    def step(self, batch: DomainBatch) -> Metrics:
        return self.method.step(batch)

    def why_not_split(self, batch: DomainBatch) -> str:
        return self.method.why_not_split(batch)

    def begin_stage(self, info: StageInfo) -> None:
        self.method.begin_stage(info)

    def begin_phase(self, name: str) -> None:
        self.method.begin_phase(name)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        self.method.end_stage(batches)

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        self.method.on_valid(step, scores, losses)


class MovingAverage(Wrapper):
    """Predict with the mean of the weights from step `start` on (Arpit et al., 2022)."""

    saved_attributes = ("seen",)

    def __init__(self, method: Method, *, start: int = 100) -> None:
        super().__init__(method)
        self.start, self.seen = start, 0
        self.mean = copy.deepcopy(method.model).requires_grad_(False)

    @property
    def deployed(self) -> Model:
        return self.mean

    def begin_phase(self, name: str) -> None:
        super().begin_phase(name)
        if name != self.phases[0]:  # what an earlier phase trained is not averaged with what this one will
            self.seen = 0

    def step(self, batch: DomainBatch) -> Metrics:
        metrics = self.method.step(batch)
        self.seen += 1
        share = 1 / max(1, self.seen - self.start)  # before the start the mean is the newest
        blend(list(self.mean.parameters()), list(self.model.parameters()), share)
        copy_buffers(self.mean, self.model)
        return metrics

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        super().end_stage(batches)
        copy_buffers(self.mean, self.model)  # what the rule left there at the end


class SWAD(Wrapper):
    """Average densely between the start and the end of the flat valley of the validation loss (Cha et al., 2021)."""

    saved_attributes = ("losses", "start", "threshold", "ended", "segments", "count", "inside", "finished")

    def __init__(self, method: Method, *, converge: int = 3, tolerate: int = 6, ratio: float = 1.3) -> None:
        super().__init__(method)
        self.converge, self.tolerate, self.ratio = converge, tolerate, ratio
        self.selects_itself = True
        self.segment = copy.deepcopy(method.model).requires_grad_(False)  # the mean since the last validation
        self.mean = copy.deepcopy(self.segment)
        self.count, self.inside = 0, 0  # steps in the segment, segments in the mean
        self.losses: list[float] = []
        self.segments: list[list[Tensor]] = []  # means whose fate is open, the newest last
        self.start, self.threshold, self.ended = -1, 0.0, False
        self.finished = False

    @property
    def deployed(self) -> Model:
        """The network in training until the stage ends: the valley is one of its own losses."""
        return self.mean if self.finished else self.model

    def begin_stage(self, info: StageInfo) -> None:
        super().begin_stage(info)
        self.finished = False

    def begin_phase(self, name: str) -> None:
        super().begin_phase(name)
        if name != self.phases[0]:
            self._forget()

    def _forget(self) -> None:
        self.losses, self.segments, self.start, self.ended, self.inside, self.count = [], [], -1, False, 0, 0

    def step(self, batch: DomainBatch) -> Metrics:
        metrics = self.method.step(batch)
        self.count += 1
        blend(list(self.segment.parameters()), list(self.model.parameters()), 1 / self.count)
        return metrics

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        super().on_valid(step, scores, losses)
        self.losses = [*self.losses, sum(losses.values()) / len(losses)]
        self.segments = [*self.segments, [p.detach().clone() for p in self.segment.parameters()]]
        self.count = 0
        if self.start < 0:
            self.start, self.threshold = valley_start(self.losses, self.converge, self.ratio)
            open_from = self.start if self.start >= 0 else len(self.losses) - self.converge + 1
            self.segments = self.segments[-(len(self.losses) - max(open_from, 0)) :]
        if self.start >= 0:
            self._absorb(self.tolerate)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        """Take in what is still open, and predict with the mean from now on."""
        super().end_stage(batches)
        if self.start >= 0:
            self._absorb(1)
        else:  # no valley: the newest segment is the best guess
            newest = self.segments[-1] if self.segments else list(self.segment.parameters())
            blend(list(self.mean.parameters()), newest, 1.0)
        copy_buffers(self.mean, self.model)
        self.finished = True
        self._forget()

    def _absorb(self, window: int) -> None:
        """A segment belongs to the valley if some loss of the `window` from it on is below the threshold."""
        while len(self.segments) >= window and not self.ended:
            ahead = self.losses[-len(self.segments) :][:window]
            if min(ahead) > self.threshold:
                self.ended = True
                return
            self.inside += 1
            blend(list(self.mean.parameters()), self.segments[0], 1 / self.inside)
            self.segments = self.segments[1:]


def valley_start(losses: Sequence[float], converge: int, ratio: float) -> tuple[int, float]:
    """(index, threshold) where the newest `converge` losses begin with their lowest; (-1, 0) if they do not."""
    recent = list(losses[-converge:])
    if len(recent) < converge or recent[0] > min(recent):
        return -1, 0.0
    return len(losses) - converge, ratio * sum(recent) / converge


@torch.no_grad()
def blend(mean: Sequence[Tensor], new: Sequence[Tensor], share: float) -> None:
    """mean + share * (new - mean), in place."""
    torch._foreach_lerp_(list(mean), [t.detach() for t in new], share)


@torch.no_grad()
def copy_buffers(to: torch.nn.Module, source: torch.nn.Module) -> None:
    for mine, theirs in zip(to.buffers(), source.buffers(), strict=True):
        mine.copy_(theirs)

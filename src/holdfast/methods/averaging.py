"""Weight averaging around another method: moving-average(METHOD) and swad(METHOD)."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.core.batch import DomainBatch
from holdfast.core.settings import checked_settings, choice, setting, whole
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.model import Model


class Wrapper(Method):
    """Base of methods around another one; forwards every call to it."""

    def __init__(self, method: Method, **settings: Any) -> None:
        nn.Module.__init__(self)
        self.settings = self.Settings(**settings)
        self.method = method
        self.min_domains, self.phases, self.selects_itself = method.min_domains, method.phases, method.selects_itself
        self.keeps_last, self.choices = method.keeps_last, method.choices

    @property
    def model(self) -> Model:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.method.model

    @staticmethod
    def trainings(options: Mapping[str, Any]) -> int:
        """Return how often the wrapped method is trained, for these settings."""
        return 1

    @property
    def uses_unlabelled(self) -> bool:
        return self.method.uses_unlabelled

    @property
    @abstractmethod
    def deployed(self) -> Model: ...

    def step(self, batch: DomainBatch) -> Metrics:
        return self.method.take_step(batch)

    def why_not_split(self, batch: DomainBatch) -> str:
        return self.method.why_not_split(batch)

    def choose(self, index: int) -> dict[str, float]:
        return self.method.choose(index)

    def begin_stage(self, info: StageInfo) -> None:
        self.method.begin_stage(info)

    def begin_phase(self, name: str) -> None:
        self.method.begin_phase(name)

    def end_phase(self, name: str, batches: Iterable[DomainBatch]) -> dict[str, float]:
        return self.method.end_phase(name, batches)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        self.method.end_stage(batches)

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        self.method.on_valid(step, scores, losses)
        self.phase_ended = self.method.phase_ended


class MovingAverage(Wrapper):
    """Predict with the mean of the weights from step `start` on (Arpit et al., 2022)."""

    @checked_settings
    class Settings:
        start: float = setting(
            100, search=whole(1, 1000), help="first step of the average; below 1, a fraction of all steps"
        )
        statistics: str = setting(
            "newest", choices=("newest", "mean"), help="statistics of batch norm: newest, or mean over the steps"
        )

    saved_attributes = ("seen",)
    changes_weights = True

    def __init__(self, method: Method, **settings: Any) -> None:
        super().__init__(method, **settings)
        self.seen = 0  # steps
        fraction = 0 < self.settings.start < 1  # of the steps of the run, which its optimizers know
        step_at = method.optimizers()[0].settings.step_at if fraction else int
        self.first = step_at(self.settings.start)
        self.mean = copy.deepcopy(method.model).requires_grad_(False)
        self._pair()

    def _pair(self) -> None:
        """Pair parameters and modules of the mean with those of the network in training, once per phase.

        A small network would spend a tenth of a step on walking through its modules.
        """
        self.pairs = list(self.mean.parameters()), list(self.model.parameters())
        self.holders = buffer_holders(self.mean, self.model)
        self.stored = running_statistics(self.mean) if self.settings.statistics == "mean" else []

    @property
    def deployed(self) -> Model:
        return self.mean

    def begin_phase(self, name: str) -> None:
        super().begin_phase(name)
        self._pair()
        if name != self.phases[0]:  # weights of different phases are not averaged
            self.seen = 0

    def step(self, batch: DomainBatch) -> Metrics:
        metrics = self.method.take_step(batch)
        self.seen += 1
        share = 1 / max(1, self.seen - self.first)  # up to the start the mean is the newest
        blend(*self.pairs, share)
        self._update_buffers(share)
        return metrics

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        super().end_stage(batches)
        self._update_buffers(0.0)  # the wrapped method may have changed them

    def _update_buffers(self, share: float) -> None:
        """Copy the buffers of the network in training; those of batch norm are averaged if `statistics` is mean."""
        copy_buffers(self.holders, but=self.stored)
        if self.stored:
            blend(self.stored, running_statistics(self.model), share)


class SWAD(Wrapper):
    """Average densely between the start and the end of the flat valley of the validation loss (Cha et al., 2021).

    The valley starts at a loss that is the lowest of `converge`, and ends before `tolerate` losses in a row above
    `ratio` times the mean of those. If training ends first, it lasts to the last loss below the threshold, as in the
    authors' code.
    """

    @checked_settings
    class Settings:
        converge: int = setting(3, help="validations whose first has the lowest loss where the valley starts")
        tolerate: int = setting(6, help="validations above the threshold that end the valley")
        ratio: float = setting(1.3, search=choice(1.2, 1.3), help="threshold, relative to the loss at the start")

    changes_weights = True
    saved_attributes = ("losses", "start", "threshold", "ended", "segments", "count", "inside", "finished")

    def __init__(self, method: Method, **settings: Any) -> None:
        super().__init__(method, **settings)
        self.selects_itself = True
        self.segment = copy.deepcopy(method.model).requires_grad_(False)  # the mean since the last validation
        self.mean = copy.deepcopy(self.segment)
        self.threshold, self.finished = 0.0, False
        self._reset()

    def _reset(self) -> None:
        self.losses: list[float] = []
        self.segments: list[list[Tensor]] = []  # means that may still belong to the valley, the newest last
        self.start, self.ended = -1, False
        self.inside, self.count = 0, 0  # segments in the mean, steps in the segment

    @property
    def deployed(self) -> Model:
        """The network in training until the stage ends, because the valley is defined by its losses."""
        return self.mean if self.finished else self.model

    def begin_stage(self, info: StageInfo) -> None:
        super().begin_stage(info)
        self.finished = False

    def begin_phase(self, name: str) -> None:
        super().begin_phase(name)
        if name != self.phases[0]:
            self._reset()

    def step(self, batch: DomainBatch) -> Metrics:
        metrics = self.method.take_step(batch)
        self.count += 1
        blend(list(self.segment.parameters()), list(self.model.parameters()), 1 / self.count)
        return metrics

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        super().on_valid(step, scores, losses)
        converge = self.settings.converge
        self.losses = [*self.losses, sum(losses.values()) / len(losses)]
        self.segments = [*self.segments, [p.detach().clone() for p in self.segment.parameters()]]
        self.count = 0
        if self.start < 0:
            self.start, self.threshold = valley_start(self.losses, converge, self.settings.ratio)
            open_from = self.start if self.start >= 0 else len(self.losses) - converge + 1
            self.segments = self.segments[-(len(self.losses) - max(open_from, 0)) :]
        if self.start >= 0:
            self._absorb(self.settings.tolerate)

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        """Add the remaining segments, and deploy the mean from now on."""
        super().end_stage(batches)
        if self.start >= 0:
            self._absorb(0)
        else:  # without a valley, use the newest segment
            newest = self.segments[-1] if self.segments else list(self.segment.parameters())
            blend(list(self.mean.parameters()), newest, 1.0)
        copy_buffers(buffer_holders(self.mean, self.model))
        self.finished = True
        self._reset()

    def _absorb(self, window: int) -> None:
        """Add segments to the mean while one of the next `window` losses, or of all for 0, is below the threshold."""
        while len(self.segments) >= max(1, window) and not self.ended:
            ahead = self.losses[-len(self.segments) :][: window or None]
            if min(ahead) > self.threshold:
                self.ended = True
                return
            self.inside += 1
            blend(list(self.mean.parameters()), self.segments[0], 1 / self.inside)
            self.segments = self.segments[1:]


def valley_start(losses: Sequence[float], converge: int, ratio: float) -> tuple[int, float]:
    """Return (index, threshold) if the first of the newest `converge` losses is their minimum, else (-1, 0)."""
    recent = list(losses[-converge:])
    if len(recent) < converge or recent[0] > min(recent):
        return -1, 0.0
    return len(losses) - converge, ratio * sum(recent) / converge


@torch.no_grad()
def blend(mean: Sequence[Tensor], new: Sequence[Tensor], share: float) -> None:
    """Set mean to mean + share * (new - mean), in place."""
    torch._foreach_lerp_(list(mean), [t.detach() for t in new], share)


def running_statistics(network: nn.Module) -> list[Tensor]:
    """Return running means and variances of all batch-norm layers."""
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    tensors = [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var)]
    return [tensor for tensor in tensors if tensor is not None]


def buffer_holders(target: nn.Module, source: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return the pairs of modules of a copy and its original that have buffers of their own."""
    pairs = zip(target.modules(), source.modules(), strict=True)
    return [(copied, original) for copied, original in pairs if copied._buffers]


@torch.no_grad()
def copy_buffers(holders: Sequence[tuple[nn.Module, nn.Module]], *, but: Sequence[Tensor] = ()) -> None:
    """Copy all buffers of one network to a copy of it, without those of the copy in `but`."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}  # one batched copy takes tensors of equal dtypes
    left_out = set(map(id, but))
    for target, source in holders:
        for name, copied in target._buffers.items():
            original = source._buffers[name]
            if copied is not None and original is not None and id(copied) not in left_out:
                pairs.setdefault(copied.dtype, []).append((copied, original))
    for group in pairs.values():
        torch._foreach_copy_([copied for copied, _ in group], [original for _, original in group])

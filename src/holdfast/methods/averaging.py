"""Averages of weights around another method: over its steps, of several trainings, or with the pretrained start."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
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
        copy_held(self.holders, but=self.stored)
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
        blend(self.segment, self.model, 1 / self.count)
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
            blend(self.mean, self.segments[-1] if self.segments else self.segment, 1.0)
        copy_buffers(self.mean, self.model)
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
            blend(self.mean, self.segments[0], 1 / self.inside)
            self.segments = self.segments[1:]


class Soup(Wrapper):
    """Train several members from the same start and average the weights of those that help (Wortsman et al., 2022).

    A member is one training, with other batches than the previous one. While it trains, the network that is validated
    is the average of the members so far and the one in training. A member joins the average if this improves the mean
    validation score over source domains, as in a greedy soup; otherwise it is dropped.
    """

    @checked_settings
    class Settings:
        members: int = setting(3, least=1, search=whole(2, 5), help="trainings from the same start")

    saved_attributes = ("start", "count", "best", "current")

    def __init__(self, method: Method, **settings: Any) -> None:
        super().__init__(method, **settings)
        self.wrap(method)
        self.phase = method.phases[-1]
        self.phases = tuple(f"{self.phase}-{number + 1}" for number in range(self.settings.members))
        self.mean = copy.deepcopy(method.deployed).requires_grad_(False)  # what predicts
        self.soup = copy.deepcopy(self.mean)  # average of the members that joined
        self.start: dict[str, Any] = {}  # state of the wrapped method before the first training
        self.count = 0  # members in `soup`
        self.best, self.current = float("-inf"), float("-inf")  # score of `soup`, and of the newest validation

    @staticmethod
    def trainings(options: Mapping[str, Any]) -> int:
        return int(options.get("members", Soup.Settings.members))

    def wrap(self, method: Method) -> None:
        """Set the wrapped method, which must have one phase and use the selected step."""
        if len(method.phases) != 1 or method.selects_itself or method.full_batch:
            raise BadInput("soup(METHOD) needs a method with one phase that selects its step by validation scores")
        self.method = method

    @property
    def deployed(self) -> Model:
        return self.mean

    def _mix(self) -> None:
        """Set the average of the members so far and the one in training."""
        copy_weights(self.mean, self.method.deployed)
        blend(self.mean, self.soup, self.count / (self.count + 1))

    def begin_phase(self, name: str) -> None:
        if name == self.phases[0]:
            self.start, self.count, self.best = copy.deepcopy(self.method.state_dict()), 0, float("-inf")
        else:
            self.method.load_state_dict(self.start)
        self.method.begin_phase(self.phase)
        self._mix()

    def step(self, batch: DomainBatch) -> Metrics:
        metrics = super().step(batch)
        self._mix()
        return metrics

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        super().on_valid(step, scores, losses)
        self.current = sum(scores.values()) / len(scores)

    def end_phase(self, name: str, batches: Iterable[DomainBatch]) -> dict[str, float]:
        metrics = self.method.end_phase(self.phase, batches)
        if self.count == 0 or self.current > self.best:
            copy_weights(self.soup, self.mean)
            self.count, self.best = self.count + 1, self.current
        else:
            copy_weights(self.mean, self.soup)
        return {**metrics, "members": float(self.count)}


class WiseFT(Wrapper):
    """Interpolate the trained encoder with its pretrained start: start + share (trained - start).

    Wortsman et al. (2022). The share is chosen on the validation rows of the source domains after training; 1 is the
    trained network. Neck and head have no pretrained start and stay as trained.
    """

    @checked_settings
    class Settings:
        share: float | None = setting(
            None, least=0, most=1, help="of the trained weights; default: chosen from 0, 0.1, ..., 1"
        )

    saved_attributes = ("share", "finished")

    def __init__(self, method: Method, **settings: Any) -> None:
        super().__init__(method, **settings)
        self.wrap(method)
        fixed = self.settings.share
        self.shares = [round(1 - i / 10, 1) for i in range(11)] if fixed is None else [float(fixed)]
        self.choices = len(self.shares)
        self.start = copy.deepcopy(method.deployed.backbone).requires_grad_(False)
        self.mean = copy.deepcopy(method.deployed).requires_grad_(False)
        self.share, self.finished = 1.0, False

    def wrap(self, method: Method) -> None:
        """Set the wrapped method, which must use the selected step."""
        if method.selects_itself or method.full_batch:
            raise BadInput("wise-ft(METHOD) needs a method that selects its step by validation scores")
        self.method = method

    @property
    def deployed(self) -> Model:
        return self.mean if self.finished else self.method.deployed

    def begin_stage(self, info: StageInfo) -> None:
        super().begin_stage(info)
        self.finished = False

    def choose(self, index: int) -> dict[str, float]:
        """Deploy the interpolation with one of the shares; return it for the history."""
        trained = self.method.deployed
        self.share = self.shares[index]
        copy_weights(self.mean, trained)
        if self.share < 1:
            pairs = zip(self.start.parameters(), trained.backbone.parameters(), strict=True)
            start = [a if a.shape == b.shape else b for a, b in pairs]  # parameters that grew keep their trained value
            blend(self.mean.backbone, start, 1 - self.share)
        self.finished = True
        return {"share": self.share}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        super().end_stage(batches)
        copy_buffers(self.mean, self.method.deployed)  # the wrapped method may have changed them


def valley_start(losses: Sequence[float], converge: int, ratio: float) -> tuple[int, float]:
    """Return (index, threshold) if the first of the newest `converge` losses is their minimum, else (-1, 0)."""
    recent = list(losses[-converge:])
    if len(recent) < converge or recent[0] > min(recent):
        return -1, 0.0
    return len(losses) - converge, ratio * sum(recent) / converge


@torch.no_grad()
def blend(mean: nn.Module | Sequence[Tensor], new: nn.Module | Sequence[Tensor], share: float) -> None:
    """Set mean to mean + share * (new - mean), in place: tensors, or the parameters of networks."""
    old, new = (list(each.parameters() if isinstance(each, nn.Module) else each) for each in (mean, new))
    torch._foreach_lerp_(old, [t.detach() for t in new], share)


def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """Copy parameters and buffers of one network to a copy of it."""
    blend(target, source, 1.0)
    copy_buffers(target, source)


def copy_buffers(target: nn.Module, source: nn.Module) -> None:
    """Copy the buffers of one network to a copy of it."""
    copy_held(buffer_holders(target, source))


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
def copy_held(holders: Sequence[tuple[nn.Module, nn.Module]], *, but: Sequence[Tensor] = ()) -> None:
    """Copy the buffers of modules to those of their copies, except for those of the copies in `but`."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}  # one batched copy takes tensors of equal dtypes
    left_out = set(map(id, but))
    for target, source in holders:
        for name, copied in target._buffers.items():
            original = source._buffers[name]
            if copied is not None and original is not None and id(copied) not in left_out:
                pairs.setdefault(copied.dtype, []).append((copied, original))
    for group in pairs.values():
        torch._foreach_copy_([copied for copied, _ in group], [original for _, original in group])

"""Averages of weights in one network: soup(METHOD) of several trainings, wise-ft(METHOD) with the pretrained start."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, setting, whole
from holdfast.methods.averaging import Wrapper, blend, buffer_holders, copy_buffers
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.model import Model


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
        blend(list(self.mean.parameters()), list(self.soup.parameters()), self.count / (self.count + 1))

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
            start = _start_of(trained.backbone, self.start)
            blend(list(self.mean.backbone.parameters()), start, 1 - self.share)
        self.finished = True
        return {"share": self.share}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        super().end_stage(batches)
        copy_buffers(buffer_holders(self.mean, self.method.deployed))  # the wrapped method may have changed them


def copy_weights(target: Model, source: Model) -> None:
    """Copy parameters and buffers of one network to a copy of it."""
    blend(list(target.parameters()), list(source.parameters()), 1.0)
    copy_buffers(buffer_holders(target, source))


def _start_of(trained: nn.Module, start: nn.Module) -> list[Tensor]:
    """Return the start of each parameter; parameters that grew keep their trained value."""
    pairs = zip(start.parameters(), trained.parameters(), strict=True)
    return [a.detach() if a.shape == b.shape else b.detach() for a, b in pairs]

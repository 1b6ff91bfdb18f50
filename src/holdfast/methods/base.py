"""What every method is: one training step, one prediction, and what happens between stages.

b batch, c classes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Inputs
from holdfast.methods.optim import Optimizer
from holdfast.nn.model import Model

Metrics = dict[str, Tensor]  # detached scalars; whoever shows them waits for the device, not the step
OptimizerFactory = Callable[[Sequence[nn.Parameter]], Optimizer]


@dataclass(frozen=True, slots=True)
class StageInfo:
    """What a method may know of a stage before it begins: names, never examples."""

    index: int
    train_domains: tuple[str, ...]
    words: Callable[[], Sequence[str]] = tuple  # of the stage's training texts, read when asked for


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Method(nn.Module, ABC):
    """A model and the rule that trains it. Concrete methods are final: wrap, do not subclass."""

    saved_attributes: tuple[str, ...] = ("optimizer",)  # state besides parameters and buffers
    min_domains: int = 1
    phases: tuple[str, ...] = ("train",)
    supports_growth: str = ""  # `added` if its state bears parameters that are added, `any` if also some in their place
    needs_past: str = ""  # what it needs of earlier stages: their `examples`, or the `path` that training took
    selects_itself: bool = False  # it decides from the validations itself what to keep, so the last step is taken

    model: Model
    microbatches: int = 1  # in how many a batch is taken, so that it fits into the device's memory

    @abstractmethod
    def step(self, batch: DomainBatch) -> Metrics:
        """Update the parameters once, and say what was seen."""

    @property
    def deployed(self) -> Model:
        """The network that predicts, and that a model folder holds."""
        return self.model

    def predict(self, x: Inputs) -> Tensor:
        """Outputs (b, c); changes nothing."""
        return self.deployed(x)

    def why_not_split(self, batch: DomainBatch) -> str:
        """Why a batch has to be taken at once; empty where pieces of it give the same update."""
        return "this rule looks at all examples of a batch together, so that it cannot be taken in pieces"

    def begin_stage(self, info: StageInfo) -> None:
        """Before the first step of a stage; also called, in order, when a run is taken up again."""

    def begin_phase(self, name: str) -> None:
        """Before the first step of a phase; also called, in order, when a run is taken up again."""

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        """After the last step of a stage, with its training data once more."""

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        """After each validation, with the score (higher is better) and the mean risk of each domain."""

    def restart_schedules(self) -> None:
        """Learning rates begin their course anew; the loop calls it where a stage or a phase begins."""
        for part in self.modules():
            if isinstance(part, Method):
                for value in (getattr(part, name) for name in part.saved_attributes):
                    if isinstance(value, Optimizer):
                        value.restart()

    def get_extra_state(self) -> dict[str, Any]:
        found = {}
        for name in self.saved_attributes:
            value = getattr(self, name)
            found[name] = value.state_dict() if isinstance(value, Stateful) else value
        return found

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            mine = getattr(self, name)
            if isinstance(mine, Stateful):
                mine.load_state_dict(value)
            else:
                setattr(self, name, value)

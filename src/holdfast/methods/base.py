"""Interface of a training method.

Shapes: b batch, c classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Inputs
from holdfast.core.settings import checked_settings
from holdfast.core.tape import Tape, tape, with_auxiliary
from holdfast.methods.optim import Optimizer
from holdfast.nn.model import ENCODER, Model, part_names, undecayed
from holdfast.nn.tuning import eval_frozen
from holdfast.tasks.base import Task

Metrics = dict[str, Tensor]  # detached scalars, read later so that a step does not wait for the device
OptimizerFactory = Callable[..., Optimizer]  # takes parameters and the keywords of an Optimizer


@dataclass(frozen=True, slots=True)
class StageInfo:
    """Names of a stage that a method may see before it begins; never examples."""

    index: int
    train_domains: tuple[str, ...]
    words: Callable[[], Sequence[str]] = tuple  # of the stage's training texts, read on demand
    unlabelled: int = 0  # groups without labels at the end of every batch
    domains_per_step: int = 0  # training domains in a batch; 0 if it has all of them


@checked_settings
class NoSettings:
    """Settings of a method without any."""


@runtime_checkable
class Stateful(Protocol):
    """Anything with a state_dict."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Traits:
    """Attributes by which the class of a method declares how it is trained; a wrapper has some of its method."""

    saved_attributes: tuple[str, ...] = ("optimizer",)  # state of a checkpoint besides parameters and buffers
    min_domains: int = 1  # training domains that it needs
    phases: tuple[str, ...] = ("train",)  # each has the full number of steps
    supports_growth: str = ""  # `added`: its state follows added parameters; `any`: replaced ones too
    needs_past: str = ""  # what it needs of earlier stages: their `examples`, or the `path` of training
    selects_itself: bool = False  # it uses the validations itself, so the last step is deployed
    changes_weights: bool = False  # it averages or replaces parameters itself, so that `average` does not apply
    full_batch: bool = False  # its only step is `solve`, on all training examples of the stage
    reads_inputs: bool = True  # without it, outputs are the same for all inputs, which need not be encoded
    keeps_last: tuple[str, ...] = ()  # phases that end with their last step instead of the selected one
    choices: int = 0  # networks to choose from after training, by validation scores
    capturable: bool = False  # its step may be captured as a CUDA graph; see `capture_key`


class Method(Traits, nn.Module, ABC):
    """A model and the procedure that trains it. Concrete methods are final: wrap them, do not subclass them.

    `Settings`, a frozen dataclass, declares the keywords that a method takes after `task` and `optimizer`, and the
    attributes of `Traits` how it is trained.
    """

    Settings: ClassVar[type[Any]] = NoSettings
    taker: Callable[[DomainBatch], Metrics] | None = None  # takes the steps in place of `step`, while set
    phase_ended: bool = False  # read after `on_valid`: whether the phase ends now, with the step selected before

    model: Model
    settings: Any
    microbatches: int = 1  # pieces that a batch is split into to fit the device memory
    optimizer: Optimizer
    optimizer_factory: OptimizerFactory
    task: Task

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory, **settings: Any) -> None:
        super().__init__()
        self.settings = self.Settings(**settings)
        self.model, self.task, self.optimizer_factory = model, task, optimizer
        self.optimizer = self.make_optimizer(model.trainable_parameters())
        self.setup()

    def setup(self) -> None:
        """Check the model and create further parameters, buffers and optimizers."""

    def make_optimizer(self, parameters: Sequence[nn.Parameter], *, part: str = "", **changes: Any) -> Optimizer:
        """Return an optimizer with the settings of the run, except for `changes`.

        The learning rate of a parameter is multiplied by the factor of its part; `part`, such as `critic`, names that
        of parameters that do not belong to the model.
        """
        names = part_names(self.model)
        groups = [names.get(p, part or ENCODER) for p in parameters]
        return self.optimizer_factory(parameters, part_names=groups, undecayed=undecayed(self.model), **changes)

    @abstractmethod
    def step(self, batch: DomainBatch) -> Metrics:
        """Update the parameters once and return metrics of the batch."""

    def risk_of(self, batch: DomainBatch) -> tuple[Tensor, Tape]:
        """Return the mean loss of the examples, and what modules recorded."""
        with tape() as side:
            return self.task.loss(self.model(batch.x), batch.y), side

    def minimize(self, loss: Tensor, side: Tape, **metrics: Tensor) -> Metrics:
        """Update the parameters by a loss and the auxiliary losses that modules recorded; return these metrics."""
        self.optimizer.minimize(with_auxiliary(loss, side))
        return {name: value.detach() for name, value in metrics.items()}

    def take_step(self, batch: DomainBatch) -> Metrics:
        """Take one step, by a captured CUDA graph where there is one; wrappers call this instead of `step`."""
        return self.step(batch) if self.taker is None else self.taker(batch)

    def capture_key(self) -> Hashable | None:
        """Return what the next step depends on besides the values of tensors; None if it cannot be captured.

        A captured step is replayed while the key stays the same. Integers in `saved_attributes` and the counters of the
        optimizers advance in a replay as in the step; anything else that a step changes must be a tensor, in place.
        A step that depends on which domains a batch has must read them from `batch.places()`, a tensor on the device:
        where a batch has some of the domains, `batch.domains` differs between replays.
        """
        return () if self.capturable else None

    def solve(self, batches: Iterable[DomainBatch]) -> Metrics:
        """Fit all training examples at once, if `full_batch`; batches of one domain each."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all parts; frozen ones, such as a teacher, stay in evaluation mode."""
        super().train(mode)
        eval_frozen(self)
        return self

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def uses_unlabelled(self) -> bool:
        """Whether batches may end with groups of unlabelled examples, whose targets are -1."""
        return False

    @property
    def deployed(self) -> Model:
        """The network that predicts and that a model folder contains."""
        return self.model

    def predict(self, x: Inputs) -> Tensor:
        """Return outputs (b, c), without side effects."""
        return self.deployed(x)

    def why_not_split(self, batch: DomainBatch) -> str:
        """Return why microbatches would change the update; empty if they would not."""
        return "this method compares all examples of a batch, so that microbatches would change its update"

    def begin_stage(self, info: StageInfo) -> None:
        """Run before the first step of a stage; on resume it is called for every stage up to the current one."""

    def begin_phase(self, name: str) -> None:
        """Run before the first step of a phase; on resume it is called for every phase up to the current one."""

    def end_phase(self, name: str, batches: Iterable[DomainBatch]) -> dict[str, float]:
        """Run after the last step of a phase, with some training examples; return metrics for the history."""
        return {}

    def end_stage(self, batches: Iterable[DomainBatch]) -> None:
        """Run after the last step of a stage, with one pass over its training data."""

    def on_valid(self, step: int, scores: Mapping[str, float], losses: Mapping[str, float]) -> None:
        """Run after a validation, with the score (higher is better) and the mean loss per domain."""

    def choose(self, index: int) -> dict[str, float]:
        """Deploy one of the `choices`, which are validated after training; return metrics for the history."""
        return {}

    def methods(self) -> list["Method"]:
        """Return this method and the methods that it wraps."""
        return [module for module in self.modules() if isinstance(module, Method)]

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers, of wrapped methods too, in a fixed order; those of a stage exist when it has begun."""
        values = [getattr(method, name, None) for method in self.methods() for name in method.saved_attributes]
        return [value for value in values if isinstance(value, Optimizer)]

    def get_extra_state(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.saved_attributes}
        return {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in values.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            current = getattr(self, name)
            if isinstance(current, Stateful):
                current.load_state_dict(value)
            else:
                setattr(self, name, value)

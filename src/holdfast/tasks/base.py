"""What every task is: the loss of a batch, what is kept of a batch for scoring, and the scores of many predictions.

b examples of a batch, n of all, k numbers kept of each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.core.inputs import Inputs
from holdfast.core.ragged import Ragged
from holdfast.core.store import Store
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.model import Model
from holdfast.record import LOWER_IS_BETTER, Scores


class Task(Protocol):
    """One kind of question asked of the outputs of a model."""

    @property
    def data_form(self) -> str:
        """The form of data that it is asked of: table, tags, questions or corpus."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """All of them; the first is told where nothing else is asked for."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """What each training example must have besides its input: label, domain."""
        ...

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """The mean risk of a batch."""
        ...

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        """Of how many risks that is the mean, for these targets; None where the outputs decide it too."""
        ...

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, k) what is kept of a batch's outputs for its risk and the scores that `validated` names."""
        ...

    def loss_from_stats(self, kept: Tensor, y: Tensor) -> Tensor:
        """The mean risk of many examples, of what `keep` kept."""
        ...

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, k) what is kept of a batch to score it by every metric; it may do more than predict."""
        ...

    def scores(self, kept: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        """The named metrics over all examples, of what `look` kept; those `validated` names, of what `keep` did."""
        ...

    def correct(self, seen: Tensor, y: Tensor) -> Tensor | None:
        """(n,) bool, example by example, of what `look` kept; None where answers are not right or wrong."""
        ...

    def validation_metric(self, metric: str) -> str:
        """The metric that validations look at where this one is told: it needs no more than plain outputs."""
        ...

    def selection_value(self, metric: str, value: float) -> float:
        """The value turned so that higher is better."""
        ...

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """(b,) targets drawn as the outputs mean them; the true ones where outputs do not tell how to draw."""
        ...


def turned(metric: str, value: float, metrics: Sequence[str]) -> float:
    """The value of one of a task's metrics, turned so that higher is better."""
    if metric not in metrics:
        raise unknown("metric", metric, metrics)
    return -value if metric in LOWER_IS_BETTER else value


class Rows(Protocol):
    """Raw examples by row."""

    def __len__(self) -> int: ...
    def take(self, rows: np.ndarray) -> Any: ...


@dataclass(frozen=True)
class Prepared:
    """A data set as a network takes it, and the task that knows it."""

    store: Store
    y: Tensor | Ragged
    task: Task
    starts: Tensor | None = None  # where one raw example makes several inputs: the first of each


@runtime_checkable
class Structured(Protocol):
    """A task whose targets lie in the raw examples, and belong to places in them that the encoder decides."""

    def prepare(self, encoder: Backbone, raw: Rows, classes: Sequence[str]) -> Prepared:
        """Inputs with the places that are asked for, and the targets there."""
        ...


@runtime_checkable
class Augmenting(Protocol):
    """A task that shows an example differently each time it is trained on."""

    def augment(self, x: Inputs, y: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]:
        """A training batch with inputs and targets drawn anew."""
        ...


@runtime_checkable
class InferenceTask(Protocol):
    """A task whose examples are asked about otherwise than they are trained on and scored."""

    def prepare_inference(self, encoder: Backbone, raw: Rows) -> Prepared:
        """Inputs with the places that the user asks about."""
        ...

    def compress(self, output: Tensor) -> Tensor:
        """(b, k, n) what `tell` needs of the outputs (b, k, c), where all of them would be too much to keep."""
        ...


@runtime_checkable
class ColumnTask(Protocol):
    """A task whose answers are no labels: it says what a file of predictions holds."""

    def prediction_columns(self, raw: Rows, found: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """Columns with a value for each raw example, of the outputs (k, c) of each input and its targets."""
        ...

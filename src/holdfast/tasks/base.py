"""Task interface: the loss of a batch, the statistics stored per example, and the metrics computed from them.

Shapes: b examples per batch, n examples in total, k statistics per example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import check_known
from holdfast.core.inputs import Inputs
from holdfast.core.ragged import Ragged
from holdfast.core.store import Store
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.model import Model, OutputScale
from holdfast.record import LOWER_IS_BETTER, VALIDATED_BY, Scores


class Task(ABC):
    """Loss and metrics for the outputs of a model."""

    data_form: ClassVar[str]  # form of the data set: table, tags, questions or corpus
    metrics: ClassVar[tuple[str, ...]]  # the first one is the default
    needs: ClassVar[tuple[str, ...]]  # fields of a training example in addition to its input: label, domain, ...
    predicts: ClassVar[str] = ""  # one per example: `classes`, `numbers` or `labels` (a set of classes); else empty
    unit: ClassVar[str] = "labels"  # what a file of predictions has one of per example, in messages

    def convert(self, dataset: Dataset) -> Dataset:
        """Return the data set with the targets of this task, from labels that were read as names."""
        return dataset

    def outputs(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the outputs of a network for these classes."""
        return tuple(classes)

    def bound(self, targets: np.ndarray | None, scale: OutputScale | None = None) -> Task:
        """Return the task for the targets of the training rows, or for the scale of a trained network."""
        return self

    def encode(self, y: np.ndarray, targets: np.ndarray | None) -> Tensor:
        """Return the targets of all examples as the loss takes them; by default class indices."""
        return torch.from_numpy(np.ascontiguousarray(y))

    def calibrated(self, stats: Tensor, y: Tensor) -> Task:
        """Return the task with what it chooses on validation rows for predictions, such as thresholds."""
        return self

    @property
    def reported(self) -> tuple[str, ...]:
        """Metrics that a record stores; those of calibrated predictions in addition to `metrics`."""
        return self.metrics

    def summary(self, stats: Tensor, y: Tensor) -> dict[str, Any]:
        """Return what a record stores per test domain in addition to the scores, such as predicted numbers."""
        return {}

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a batch."""

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        """Number of terms in the mean of `loss` for these targets; None if it depends on the outputs too."""
        return None

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, k) statistics of a batch, sufficient for its loss and for the metrics used in validation."""
        return output

    def loss_from_stats(self, stats: Tensor, y: Tensor) -> Tensor:
        """Mean loss over many examples, from the rows that `stats` returned."""
        return self.loss(stats, y)

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, k) statistics of a batch, sufficient for every metric; may do more than one forward pass."""
        return self.stats(model(x), y)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, k) predicted class of each output: the index of its largest score; -1 where there is no output."""
        return model(x).argmax(-1).view(len(y), -1)

    @abstractmethod
    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        """Compute the named metrics over all examples, from `evaluate` or, for validation metrics, from `stats`."""

    def correct(self, stats: Tensor, y: Tensor) -> Tensor | None:
        """(n,) bool per example, from the rows of `evaluate`; None if predictions are not simply right or wrong."""
        return None

    def validation_metric(self, metric: str) -> str:
        """Return the metric to compute in validation when this one is requested; it needs plain outputs only."""
        return VALIDATED_BY.get(metric, metric)

    def selection_value(self, metric: str, value: float) -> float:
        """Return the value with a sign such that higher is better."""
        check_known("metric", metric, self.metrics)
        return -value if metric in LOWER_IS_BETTER else value

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """Sample targets from the predicted distribution; return `y` if the outputs do not define one."""
        return y


class ExampleTask(Task):
    """Base of tasks with one prediction per example of a table, and a loss that is the mean over examples."""

    data_form = "table"
    needs = ("label", "domain")

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return len(y)


def select(values: Mapping[str, float], names: Sequence[str]) -> Scores:
    """Return the named metrics; raise for an unknown name."""
    for name in names:
        check_known("metric", name, values)
    return {name: values[name] for name in names}


def chunks(raw: Raw, size: int) -> Iterator[tuple[int, Any]]:
    """Yield (first row, raw examples) for consecutive chunks of at most `size` examples."""
    for start in range(0, len(raw), size):
        yield start, raw.take(np.arange(start, min(start + size, len(raw))))


@dataclass(frozen=True)
class Prepared:
    """A data set in the form a network takes, and the task bound to it."""

    store: Store
    y: Tensor | Ragged
    task: Task
    starts: Tensor | None = None  # first input of each raw example, if one raw example makes several inputs


@runtime_checkable
class Structured(Protocol):
    """A task whose targets are part of the raw examples, at positions that depend on the encoder's tokenizer."""

    # build inputs with the positions to predict, and the targets at these positions
    def prepare(self, encoder: Backbone, raw: Raw, classes: Sequence[str]) -> Prepared: ...


@runtime_checkable
class Augmenting(Protocol):
    """A task that changes inputs and targets every time an example is used for training."""

    # return a training batch with newly sampled inputs and targets
    def augment(self, x: Inputs, y: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]: ...


@runtime_checkable
class InferenceTask(Protocol):
    """A task that prepares examples for prediction differently from examples for training."""

    # build inputs with the positions that the user marked
    def prepare_inference(self, encoder: Backbone, raw: Raw) -> Prepared: ...

    # (b, k, n) the part of the outputs (b, k, c) that `prediction_columns` needs
    def compress(self, output: Tensor) -> Tensor: ...


@runtime_checkable
class ColumnTask(Protocol):
    """A task whose predictions are not class labels: it defines the columns of a prediction file."""

    # return columns with one value per raw example, from the outputs (k, c) and the targets of each input
    def prediction_columns(self, raw: Raw, outputs: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]: ...


@runtime_checkable
class GenerativeTask(Protocol):
    """A task whose predictions are texts that the encoder generates."""

    # (b, t) generated word ids
    def generate(self, encoder: Backbone, x: Inputs) -> Tensor: ...

    # return columns with one text per example, from the word ids of all examples; None if there are none
    def text_columns(self, encoder: Backbone, words: Tensor | None) -> dict[str, list[str]]: ...

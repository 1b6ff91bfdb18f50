"""What every task is: the loss of a batch, what is kept of a batch for scoring, and the scores of many predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.nn.model import Model
from holdfast.record import Scores


class Task(Protocol):
    """One kind of question asked of the outputs of a model."""

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

    def look(self, model: Model, x: Inputs) -> Tensor:
        """(b, ..) what is kept of a batch to score it by every metric."""
        ...

    def scores(self, output: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        """The named metrics over all examples, of what `look` kept; those that `validated` names, of plain outputs."""
        ...

    def right(self, seen: Tensor, y: Tensor) -> Tensor | None:
        """(n,) bool, example by example, of what `look` kept; None where answers are not right or wrong."""
        ...

    def validated(self, metric: str) -> str:
        """The metric that validations look at where this one is told: it needs no more than plain outputs."""
        ...

    def better(self, metric: str, value: float) -> float:
        """The value turned so that higher is better."""
        ...

    def draw(self, output: Tensor, y: Tensor) -> Tensor:
        """(b,) targets drawn as the outputs mean them; the true ones where outputs do not tell how to draw."""
        ...

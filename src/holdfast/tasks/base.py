"""What every task is: the loss of a batch, and the scores of many predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from holdfast.record import Scores


class Task(Protocol):
    """One kind of question asked of the outputs of a head."""

    @property
    def metrics(self) -> tuple[str, ...]: ...

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """The mean risk of a batch."""
        ...

    def scores(self, output: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        """The named metrics over all examples."""
        ...

    def better(self, metric: str, value: float) -> float:
        """The value turned so that higher is better."""
        ...

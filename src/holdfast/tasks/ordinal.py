"""Ordinal classification: one of several ordered levels per example.

Shapes: b examples, c levels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.targets import ordered_levels
from holdfast.record import Scores
from holdfast.tasks.base import select
from holdfast.tasks.classify import Classify


class Ordinal(Classify):
    """Binary cross-entropy of every question "is the level above k", with probabilities from one softmax.

    A prediction far from the true level fails more of these questions and costs more. Metrics: quadratic weighted
    kappa, mean distance in levels, accuracy, and the ranked probability score. `order` lists the levels from low to
    high; levels that are numbers are ordered by value.
    """

    metrics = ("kappa", "mae", "accuracy", "rps", "nll")

    def __init__(self, *, order: Sequence[str] | None = None) -> None:
        if order is not None and (isinstance(order, str) or len(order) < 2):
            raise BadInput(f"task.order must list at least two levels, such as low,medium,high; got {order!r}")
        self.order = None if order is None else [str(level) for level in order]

    def convert(self, dataset: Dataset) -> Dataset:
        return ordered_levels(dataset, self.order, task="ordinal")

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        logs = output.log_softmax(-1)
        below = logs.logcumsumexp(-1)[:, :-1]  # (b, c - 1) log P(level <= k)
        above = logs.flip(-1).logcumsumexp(-1).flip(-1)[:, 1:]  # log P(level > k)
        is_above = y[:, None] > torch.arange(output.shape[1] - 1, device=y.device)
        return -torch.where(is_above, above, below).mean()

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        probability, labels = stats.double().softmax(-1).numpy(), y.numpy()
        predicted, levels = probability.argmax(axis=1), probability.shape[1]
        is_above = labels[:, None] > np.arange(levels - 1)
        above = 1 - probability.cumsum(axis=1)[:, :-1]
        values = {
            "kappa": quadratic_kappa(predicted, labels, levels),
            "mae": float(np.abs(predicted - labels).mean()),
            "accuracy": float((predicted == labels).mean()),
            "rps": float(((above - is_above) ** 2).mean()),
            "nll": float(-np.log(probability[np.arange(len(labels)), labels].clip(1e-12)).mean()),
        }
        return select(values, names)


def quadratic_kappa(predicted: np.ndarray, y: np.ndarray, levels: int) -> float | None:
    """Cohen's kappa with squared distances as weights; None if predictions and labels are all one level."""
    counts = np.zeros((levels, levels))
    np.add.at(counts, (y, predicted), 1.0)
    weights = (np.arange(levels)[:, None] - np.arange(levels)) ** 2
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / len(y)
    chance = float((weights * expected).sum())
    return 1 - float((weights * counts).sum()) / chance if chance > 0 else None

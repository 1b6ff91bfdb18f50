"""Classification: one label an example.

b examples, c classes
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.core.inputs import Inputs
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import turned


class Classify:
    """Cross-entropy on the outputs; accuracy and its relatives."""

    metrics = ("accuracy", "macro_f1", "micro_f1", "balanced_accuracy", "mcc", "roc_auc", "nll", "ece")
    needs = ("label", "domain")
    data_form = "table"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y)

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return len(y)

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        return output

    def loss_from_stats(self, kept: Tensor, y: Tensor) -> Tensor:
        return self.loss(kept, y)

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        return model(x)

    def scores(self, kept: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        probability = kept.double().softmax(dim=-1).numpy()  # (b, c)
        truth = y.numpy()
        return {name: _score(name, probability, truth) for name in names}

    def correct(self, seen: Tensor, y: Tensor) -> Tensor | None:
        return seen.argmax(dim=-1) == y

    def validation_metric(self, metric: str) -> str:
        return metric

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """(b,) a label for each row (b, c), drawn with the probabilities that the outputs mean."""
        return torch.multinomial(output.softmax(-1), 1)[:, 0]

    def selection_value(self, metric: str, value: float) -> float:
        return turned(metric, value, self.metrics)


def _score(name: str, probability: np.ndarray, y: np.ndarray) -> float | None:
    chosen = probability.argmax(axis=1)
    present = np.unique(y)
    match name:
        case "accuracy" | "micro_f1":  # equal where each example has one label
            return float((chosen == y).mean())
        case "macro_f1":
            return _macro_f1(chosen, y, present)
        case "balanced_accuracy":
            return float(np.mean([(chosen[y == c] == c).mean() for c in present]))
        case "mcc":
            return _correlation(chosen, y)
        case "roc_auc":
            return _auc(probability, y, present)
        case "nll":
            return float(-np.log(probability[np.arange(len(y)), y].clip(1e-12)).mean())
        case "ece":
            return _calibration_error(probability.max(axis=1), chosen == y)
    raise unknown("metric", name, Classify.metrics)


def _macro_f1(chosen: np.ndarray, y: np.ndarray, present: np.ndarray) -> float:
    """Mean over the classes present of 2 tp / (2 tp + fp + fn); it is asked for at every validation, so no checks."""
    classes = int(max(chosen.max(), y.max())) + 1
    right = np.bincount(y[chosen == y], minlength=classes)
    total = np.bincount(chosen, minlength=classes) + np.bincount(y, minlength=classes)
    return float((2 * right[present] / total[present]).mean())


def _correlation(chosen: np.ndarray, y: np.ndarray) -> float:
    """Matthews': the covariance of choices and labels over both deviations; 0 where one of them is always the same."""
    classes = int(max(chosen.max(), y.max())) + 1
    told, true = (np.bincount(each, minlength=classes).astype(float) for each in (chosen, y))
    size, right = len(y), float((chosen == y).sum())
    deviations = (size**2 - told @ told) * (size**2 - true @ true)
    return float((right * size - told @ true) / math.sqrt(deviations)) if deviations else 0.0


def _auc(probability: np.ndarray, y: np.ndarray, present: np.ndarray) -> float | None:
    """Mean over the classes present of one-against-the-rest; not defined when only one is present."""
    if len(present) < 2:
        return None
    if probability.shape[1] == 2:
        return _above(probability[:, 1], y == 1)
    return float(np.mean([_above(probability[:, c], y == c) for c in present]))


def _above(score: np.ndarray, member: np.ndarray) -> float:
    """How often one of the members scores above one of the others, a tie counting half: the area under the ROC."""
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - (count - 1) / 2  # of each score, the mean of the ranks that it takes
    inside = int(member.sum())
    return float((ranks[place[member]].sum() - inside * (inside + 1) / 2) / (inside * (len(member) - inside)))


def _calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: mean gap of confidence and accuracy over equal bins (Guo et al., 2017)."""
    at = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs((right[at == i] - confidence[at == i]).sum()) for i in range(bins)]
    return float(sum(gaps) / len(right))

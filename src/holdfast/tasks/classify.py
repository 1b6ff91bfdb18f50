"""Classification: one label per example.

Shapes: b examples, c classes.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import unknown
from holdfast.record import Scores
from holdfast.tasks.base import ExampleTask


class Classify(ExampleTask):
    """Cross-entropy on logits (b, c); accuracy, F1, correlation, ROC AUC and calibration metrics."""

    metrics = ("accuracy", "macro_f1", "micro_f1", "balanced_accuracy", "mcc", "roc_auc", "nll", "ece")
    predicts = "classes"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y)

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        probability = stats.double().softmax(dim=-1).numpy()  # (b, c)
        labels = y.numpy()
        return {name: _score(name, probability, labels) for name in names}

    def correct(self, stats: Tensor, y: Tensor) -> Tensor | None:
        return stats.argmax(dim=-1) == y

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.multinomial(output.softmax(-1), 1)[:, 0]


def _score(name: str, probability: np.ndarray, y: np.ndarray) -> float | None:
    predicted = probability.argmax(axis=1)
    present = np.unique(y)
    match name:
        case "accuracy" | "micro_f1":  # equal if every example has one label
            return float((predicted == y).mean())
        case "macro_f1":
            return _macro_f1(predicted, y, present)
        case "balanced_accuracy":
            return float(np.mean([(predicted[y == c] == c).mean() for c in present]))
        case "mcc":
            return _correlation(predicted, y)
        case "roc_auc":
            return _auc(probability, y, present)
        case "nll":
            return float(-np.log(probability[np.arange(len(y)), y].clip(1e-12)).mean())
        case "ece":
            return _calibration_error(probability.max(axis=1), predicted == y)
    raise unknown("metric", name, Classify.metrics)


def _macro_f1(predicted: np.ndarray, y: np.ndarray, present: np.ndarray) -> float:
    """Mean over the classes present of 2 tp / (2 tp + fp + fn); computed at every validation, so without checks."""
    classes = int(max(predicted.max(), y.max())) + 1
    hits = np.bincount(y[predicted == y], minlength=classes)
    total = np.bincount(predicted, minlength=classes) + np.bincount(y, minlength=classes)
    return float((2 * hits[present] / total[present]).mean())


def _correlation(predicted: np.ndarray, y: np.ndarray) -> float:
    """Matthews correlation coefficient; 0 if all predictions or all labels are equal."""
    classes = int(max(predicted.max(), y.max())) + 1
    outputs, labels = (np.bincount(values, minlength=classes).astype(float) for values in (predicted, y))
    size, hits = len(y), float((predicted == y).sum())
    deviations = (size**2 - outputs @ outputs) * (size**2 - labels @ labels)
    return float((hits * size - outputs @ labels) / math.sqrt(deviations)) if deviations else 0.0


def _auc(probability: np.ndarray, y: np.ndarray, present: np.ndarray) -> float | None:
    """Mean one-vs-rest ROC AUC over the classes present; undefined if only one class is present."""
    if len(present) < 2:
        return None
    if probability.shape[1] == 2:
        return _binary_auc(probability[:, 1], y == 1)
    return float(np.mean([_binary_auc(probability[:, c], y == c) for c in present]))


def _binary_auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive scores above a negative, a tie counting half."""
    _, index, count = np.unique(score, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - (count - 1) / 2  # mean rank of each distinct score
    positives = int(positive.sum())
    above = ranks[index[positive]].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(positive) - positives)))


def _calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: mean gap of confidence and accuracy over equal-width bins (Guo et al., 2017)."""
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs((correct[bin_of == i] - confidence[bin_of == i]).sum()) for i in range(bins)]
    return float(sum(gaps) / len(correct))

"""Multi-label classification: a set of labels per example.

Shapes: b examples, c labels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.data.dataset import Dataset
from holdfast.data.targets import label_sets
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import ExampleTask, Task, select


class MultiLabel(ExampleTask):
    """Binary cross-entropy per label; macro and micro F1, mean average precision and exact matches.

    A label is predicted if its probability reaches a threshold: 0.5 during training, afterwards the threshold per
    label with the highest F1 on validation rows. `separator` divides the labels in a text; by default |, ; or a comma.
    """

    metrics = ("macro_f1", "micro_f1", "map", "exact_match", "nll")
    needs = ("domain",)  # an empty label is a set without labels
    predicts = "labels"

    def __init__(self, *, separator: str = "") -> None:
        if not isinstance(separator, str):
            raise BadInput(f"task.separator must be a text such as |, got {separator!r}")
        self.separator = separator
        self.thresholds: np.ndarray | None = None  # (c,) probabilities

    def convert(self, dataset: Dataset) -> Dataset:
        return label_sets(dataset, task="multilabel", separator=self.separator)

    def encode(self, y: np.ndarray, targets: np.ndarray | None) -> Tensor:
        assert targets is not None, "a multi-label task needs a set of labels per example"
        return torch.from_numpy(targets.astype(np.float32))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, y)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, c) whether each label is predicted, as 0 or 1."""
        return (model(x) > 0).long()

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        probability, truth = stats.double().sigmoid().numpy(), y.numpy() > 0.5
        predicted = probability >= (0.5 if self.thresholds is None else self.thresholds)
        hits, total = (predicted & truth).sum(axis=0), predicted.sum(axis=0) + truth.sum(axis=0)  # (c,)
        present = truth.any(axis=0)
        f1 = 2 * hits[present] / np.maximum(1, total[present])
        precisions = [average_precision(probability[:, i], truth[:, i]) for i in np.flatnonzero(present)]
        clipped = np.where(truth, probability, 1 - probability).clip(1e-12)
        values = {
            "macro_f1": float(f1.mean()) if present.any() else None,
            "micro_f1": float(2 * hits.sum() / total.sum()) if total.sum() else None,
            "map": float(np.mean(precisions)) if precisions else None,
            "exact_match": float((predicted == truth).all(axis=1).mean()),
            "nll": float(-np.log(clipped).mean()),
        }
        return select(values, names)

    def correct(self, stats: Tensor, y: Tensor) -> Tensor | None:
        """(n,) whether all labels of an example are predicted correctly."""
        limit = 0.5 if self.thresholds is None else torch.from_numpy(self.thresholds)
        return ((stats.double().sigmoid() >= limit) == (y > 0.5)).all(dim=1)

    def calibrated(self, stats: Tensor, y: Tensor) -> Task:
        task = copy.copy(self)
        task.thresholds = best_thresholds(stats.double().sigmoid().numpy(), y.numpy() > 0.5)
        return task

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        return torch.bernoulli(output.sigmoid())


def average_precision(score: np.ndarray, positive: np.ndarray) -> float:
    """Area under the precision-recall curve as a sum over distinct scores, without interpolation."""
    _, hits, counts = _by_score(score, positive)
    precision, recall = hits / counts, hits / positive.sum()
    return float((np.diff(np.append(0.0, recall)) * precision).sum())


def best_thresholds(probability: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return (c,) the threshold with the highest F1 per label; 0.5 for a label without positive examples.

    The threshold lies halfway between the two neighbouring probabilities; of several, the one nearest to 0.5 is taken.
    """
    thresholds = np.full(probability.shape[1], 0.5)
    for label in np.flatnonzero(truth.any(axis=0)):
        values, hits, counts = _by_score(probability[:, label], truth[:, label])
        f1 = 2 * hits / (counts + hits[-1])
        middle = (values + np.append(values[1:], 0.0)) / 2
        best = np.flatnonzero(f1 >= f1.max() - 1e-12)
        thresholds[label] = middle[best[np.abs(middle[best] - 0.5).argmin()]]
    return thresholds


def _by_score(score: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct scores, the highest first, and how many positives and examples reach each of them."""
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    return score[order][ends], np.cumsum(positive[order])[ends], ends + 1

"""Linear probes of an audit: how a fast linear model is fitted and scored, per kind of target.

Shapes: n rows, d width, c classes or labels.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse, vstack
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from holdfast.core.errors import quiet_fit
from holdfast.data.dataset import Dataset

MAX_LABELS = 12  # most frequent labels of a multi-label task that a probe predicts
BINS = 10  # of numbers, where samples with equal targets are needed
RIDGE = 1.0
Training = Sequence[tuple[Any, np.ndarray]]  # features and targets per domain


class Probe:
    """Linear model for classes or levels: accuracy of a linear support vector machine.

    `y` holds the targets of all rows as the model takes them; other kinds of targets are subclasses.
    """

    metric: ClassVar[str] = "accuracy"  # key in the JSON output
    lower: ClassVar[bool] = False  # whether lower is better

    def __init__(self, y: np.ndarray) -> None:
        self.y = y

    def predictions(self, training: Training, test: Any) -> np.ndarray:
        """Fit the model and return its predictions for the test rows."""
        return _classified(training, test)

    def constant(self, y: np.ndarray) -> np.ndarray:
        """Return the best predictions for these targets that do not depend on the input."""
        return np.full(len(y), np.bincount(y).argmax())

    def score(self, predicted: np.ndarray, y: np.ndarray) -> float:
        return float((predicted == y).mean())

    def matrix(self, y: np.ndarray) -> np.ndarray:
        """(n, c) targets of a ridge regression."""
        return np.eye(int(self.y.max(initial=-1)) + 1)[y]

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        """Return predictions for the outputs (n, c) of a ridge regression."""
        return outputs.argmax(axis=1)

    def gain(self, better: float, worse: float) -> float:
        """Return how much better the first score is than the second."""
        return worse - better if self.lower else better - worse

    def fold_gains(self, better: np.ndarray, worse: np.ndarray, y: np.ndarray, fold: np.ndarray) -> tuple[float, ...]:
        """Return per fold how much better the first predictions (n,) are than the second."""
        held = [fold == number for number in range(int(fold.max()) + 1)]
        return tuple(self.gain(self.score(better[at], y[at]), self.score(worse[at], y[at])) for at in held)


class NumberProbe(Probe):
    """Numbers, standardised over all rows: RMSE of a ridge regression, in standard deviations.

    Predictions lie at most one range of the targets outside of it, so that an extreme input does not decide a score.
    """

    metric, lower = "rmse", True

    def __init__(self, targets: np.ndarray) -> None:
        known = targets[np.isfinite(targets)]
        spread = float(known.std()) if len(known) else 0.0
        super().__init__((targets - (known.mean() if len(known) else 0.0)) / (spread if spread > 0 else 1.0))

    def predictions(self, training: Training, test: Any) -> np.ndarray:
        x, y = stacked(training)
        fitted = Ridge(RIDGE, solver="sparse_cg" if issparse(x) else "auto").fit(x, y)
        return _bounded(np.asarray(fitted.predict(test)), y)

    def constant(self, y: np.ndarray) -> np.ndarray:
        return np.full(len(y), y.mean())

    def score(self, predicted: np.ndarray, y: np.ndarray) -> float:
        return float(np.sqrt(((predicted - y) ** 2).mean()))

    def matrix(self, y: np.ndarray) -> np.ndarray:
        return y[:, None]

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return _bounded(outputs[:, 0], self.y[np.isfinite(self.y)])


class LabelProbe(Probe):
    """Sets of labels, at most the `MAX_LABELS` most frequent ones: micro-averaged F1 of one classifier per label."""

    metric = "micro_f1"

    def __init__(self, targets: np.ndarray) -> None:
        order = np.sort(np.argsort(-targets.sum(axis=0), kind="stable")[:MAX_LABELS])
        super().__init__(targets[:, order].astype(np.int64))

    def predictions(self, training: Training, test: Any) -> np.ndarray:
        columns = range(self.y.shape[1])
        return np.stack([_classified([(x, y[:, c]) for x, y in training], test) for c in columns], axis=1)

    def constant(self, y: np.ndarray) -> np.ndarray:
        return np.tile(y.mean(axis=0) >= 0.5, (len(y), 1))

    def score(self, predicted: np.ndarray, y: np.ndarray) -> float:
        positive = int(predicted.sum() + y.sum())
        return float(2 * np.logical_and(predicted, y).sum() / positive) if positive else 1.0

    def matrix(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.float64)

    def decide(self, outputs: np.ndarray) -> np.ndarray:
        return outputs >= 0.5


def probe_for(dataset: Dataset) -> Probe:
    """Return the probe for the targets of a data set."""
    if dataset.targets is None:
        return Probe(dataset.y)
    return NumberProbe(dataset.targets) if dataset.targets.ndim == 1 else LabelProbe(dataset.targets)


def target_groups(dataset: Dataset) -> np.ndarray:
    """Return codes (n,) of rows with equal classes or sets of labels, or with numbers in one of `BINS`; -1 for none."""
    if dataset.targets is None:
        return dataset.y
    if dataset.targets.ndim == 2:
        return np.unique(dataset.targets, axis=0, return_inverse=True)[1].reshape(-1)
    known = np.isfinite(dataset.targets)
    edges = np.unique(np.quantile(dataset.targets[known], np.linspace(0, 1, BINS + 1)[1:-1])) if known.any() else ()
    return np.where(known, np.searchsorted(edges, dataset.targets, side="right"), -1)


def _bounded(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    span = np.ptp(y)
    return predicted.clip(y.min() - span, y.max() + span)


def stacked(training: Training) -> tuple[Any, np.ndarray]:
    """Return the features and the targets of all domains."""
    x, y = [features for features, _ in training], np.concatenate([targets for _, targets in training])
    return vstack(x, format="csr") if issparse(x[0]) else np.concatenate(x), y


def _classified(training: Training, test: Any) -> np.ndarray:
    """Fit a linear support vector machine on codes (n,) and return the predicted codes of the test rows."""
    x, y = stacked(training)
    if len(np.unique(y)) < 2:
        return np.full(test.shape[0], y[0])
    with quiet_fit():
        fitted = LinearSVC(C=1.0 if issparse(test) else 0.1, max_iter=200, random_state=0).fit(x, y)
    return np.asarray(fitted.predict(test))

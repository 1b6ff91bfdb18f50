"""Accuracy of a classifier on examples without labels, with an interval measured on left-out domains.

Three estimates use labelled predictions of a pool of other examples: calibrated confidence, importance weighting
(Shimodaira, 2000) and difference of confidences (Guillory et al., 2021). Two pools are available: held-out examples of
the training domains, and examples of domains that were left out of training. The distance of a batch from the training
domains decides how much each pool counts. Shapes: n examples, c classes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import t as student_t

from holdfast.models.calibration import fit_temperature

LEVEL = 0.9  # nominal coverage of the intervals
ESTIMATES = ("confidence", "weighting", "difference")
MAX_WEIGHT = 20.0  # times the mean weight of an example
MAX_ROWS = 4000  # of a pool for importance weights
EPSILON = 1e-12


@dataclass(frozen=True, eq=False)
class Labelled:
    """Probabilities (n, c) of labelled examples that the predicting model was not trained on, and their domains."""

    probabilities: np.ndarray
    y: np.ndarray  # (n,)
    domain: np.ndarray  # (n,)

    @cached_property
    def correct(self) -> np.ndarray:
        """Whether each prediction is correct, (n,)."""
        return (self.probabilities.argmax(axis=1) == self.y).astype(np.float64)

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights (n,) with sum 1 that are equal for all domains."""
        _, index, counts = np.unique(self.domain, return_inverse=True, return_counts=True)
        return 1.0 / (counts[index] * len(counts))

    @cached_property
    def temperature(self) -> float:
        """Temperature that calibrates the probabilities of the pool."""
        return fit_temperature(np.log(self.probabilities.clip(EPSILON)), self.y)

    def take(self, rows: np.ndarray) -> Labelled:
        """Return some of the examples."""
        return Labelled(self.probabilities[rows], self.y[rows], self.domain[rows])


@dataclass(frozen=True)
class Accuracy:
    """Estimated accuracy of a batch, the ends of its interval, and what they are based on."""

    estimate: float
    low: float | None  # None if fewer than two domains were left out
    high: float | None
    confidence: float  # the three estimates
    weighting: float
    difference: float
    unseen: float  # share of the estimate that comes from left-out domains: 0 for a batch like the training data
    validation: float  # accuracy on held-out examples of the training domains: the naive estimate
    coverage: float | None  # share of left-out domains whose accuracy is inside such an interval
    domains: int  # left-out domains

    def json(self) -> dict[str, Any]:
        return {name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(self).items()}


def estimates(batch: np.ndarray, pool: Labelled) -> dict[str, float]:
    """Return the three estimates of the accuracy on a batch of probabilities (n, c)."""
    calibrated = softmax(np.log(batch.clip(EPSILON)) / pool.temperature, axis=1)
    accuracy = float(pool.weights @ pool.correct)
    change = float(batch.max(axis=1).mean() - pool.weights @ pool.probabilities.max(axis=1))
    return {
        "confidence": float(calibrated.max(axis=1).mean()),
        "weighting": float(_importance(batch, pool) @ pool.correct),
        "difference": min(1.0, max(0.0, accuracy + change)),
    }


def combined(values: Mapping[str, float]) -> float:
    """Return the mean of the three estimates."""
    return float(np.mean([values[name] for name in ESTIMATES]))


def _importance(batch: np.ndarray, pool: Labelled) -> np.ndarray:
    """Return weights (n,) with sum 1 under which the predictions of the pool resemble those of the batch.

    A logistic regression separates batch and pool by their predictions; its odds are the ratio of the densities.
    """
    from sklearn.exceptions import ConvergenceWarning  # slow to import
    from sklearn.linear_model import LogisticRegression

    x = np.concatenate([_summary(batch), _summary(pool.probabilities)])
    centre, scale = x.mean(axis=0), x.std(axis=0)
    x = (x - centre) / np.where(scale > 0, scale, 1.0)
    label = np.repeat([1, 0], [len(batch), len(pool.y)])
    weight = np.concatenate([np.full(len(batch), 1.0 / len(batch)), pool.weights]) * len(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LogisticRegression(C=1.0, max_iter=200).fit(x, label, sample_weight=weight)
    odds = np.exp(np.clip(fitted.decision_function(x[len(batch) :]), -10, 10)) * pool.weights
    odds = np.minimum(odds / odds.sum(), MAX_WEIGHT * pool.weights)
    return odds / odds.sum()


def _summary(probabilities: np.ndarray) -> np.ndarray:
    """Return features of predictions: logs of the two largest probabilities, entropy, and the class if there are few.

    # (n, 3 or 3 + c)
    """
    ordered = np.sort(probabilities, axis=1)[:, ::-1]
    logs = np.log(ordered[:, :2].clip(1e-6))
    entropy = -(probabilities * np.log(probabilities.clip(EPSILON))).sum(axis=1, keepdims=True)
    few = probabilities if probabilities.shape[1] <= 20 else probabilities[:, :0]
    return np.concatenate([logs, entropy, few], axis=1)


@dataclass(frozen=True, eq=False)
class AccuracyEstimator:
    """Estimates for batches of one model: held-out examples of its training domains, and left-out domains if any."""

    known: Labelled
    left_out: Labelled | None

    @staticmethod
    def of(known: Labelled, left_out: Labelled | None, *, seed: int = 0) -> AccuracyEstimator:
        """Limit the size of the pools."""
        rng = np.random.default_rng(seed)

        def limited(pool: Labelled) -> Labelled:
            return pool.take(np.sort(rng.permutation(len(pool.y))[:MAX_ROWS])) if len(pool.y) > MAX_ROWS else pool

        return AccuracyEstimator(limited(known), None if left_out is None else limited(left_out))

    @cached_property
    def validation(self) -> float:
        """Accuracy on held-out examples of the training domains."""
        return float(self.known.correct.mean())

    @cached_property
    def errors(self) -> np.ndarray:
        """Error of the combined estimate for each left-out domain, from the other left-out domains."""
        return np.asarray([combined(own) - true for own, true in self._trials])

    @cached_property
    def _trials(self) -> list[tuple[dict[str, float], float]]:
        """Estimates and true accuracy per left-out domain, if it is not part of the pool."""
        pool, trials = self.left_out, []
        for name in [] if pool is None else np.unique(pool.domain):
            assert pool is not None
            own, others = pool.take(pool.domain == name), pool.take(pool.domain != name)
            if len(others.y):
                trials.append((estimates(own.probabilities, others), float(own.correct.mean())))
        return trials

    @cached_property
    def coverage(self) -> float | None:
        """Share of left-out domains inside the interval that the other ones determine; None for fewer than three."""
        errors = self.errors
        if len(errors) < 3:
            return None
        sizes = np.unique(self.left_out.domain, return_counts=True)[1] if self.left_out is not None else ()
        inside = []
        for i, size in enumerate(sizes):
            others, true = np.delete(errors, i), self._trials[i][1]
            half = _half_width(others, true * (1 - true) / size)
            inside.append(abs(errors[i]) <= half)
        return float(np.mean(inside))

    def estimate(self, batch: np.ndarray, *, unseen: float) -> Accuracy:
        """Estimate the accuracy on a batch of probabilities (n, c).

        `unseen` is 0 for a batch that resembles the training domains and 1 for one that differs from them as they
        differ from one another.
        """
        own = estimates(batch, self.known)
        share = unseen if self.left_out is not None else 0.0
        if share and self.left_out is not None:
            other = estimates(batch, self.left_out)
            own = {name: (1 - share) * own[name] + share * other[name] for name in ESTIMATES}
        value = combined(own)
        low, high = self._interval(value, len(batch), unseen)
        domains = len(np.unique(self.left_out.domain)) if self.left_out is not None else 0
        return Accuracy(
            value, low, high, **own, unseen=share, validation=self.validation, coverage=self.coverage, domains=domains
        )

    def _interval(self, value: float, count: int, unseen: float) -> tuple[float | None, float | None]:
        """Return the ends of the interval; none for a batch of an unseen domain if two left-out domains are missing."""
        smoothed = (value * count + 1) / (count + 2)  # Laplace: an estimate of 1 is not certain
        spread = smoothed * (1 - smoothed)
        noise = spread / count + (1 - unseen) ** 2 * spread / len(self.known.y)
        if unseen > 0.5 and len(self.errors) < 2:
            return None, None
        half = _half_width(unseen * self.errors, noise)
        return max(0.0, value - half), min(1.0, value + half)


def _half_width(errors: np.ndarray, noise: float) -> float:
    """Return half the width of an interval: errors between domains plus the variance of a finite sample."""
    if len(errors) < 2:
        return float(student_t.ppf(0.5 + LEVEL / 2, 1000)) * math.sqrt(noise)
    factor = float(student_t.ppf(0.5 + LEVEL / 2, len(errors)))
    return factor * math.sqrt((1 + 1 / len(errors)) * float(np.mean(errors**2)) + noise)


def pool_of(probabilities: np.ndarray, y: np.ndarray, domain: Sequence[int] | np.ndarray) -> Labelled | None:
    """Return the labelled examples of a pool; None without any."""
    known = np.asarray(y) >= 0
    if not known.any():
        return None
    values = probabilities[known].astype(np.float64)
    values = values / values.sum(axis=1, keepdims=True)
    return Labelled(values, np.asarray(y)[known].astype(np.int64), np.asarray(domain)[known])

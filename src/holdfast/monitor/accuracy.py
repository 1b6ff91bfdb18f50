"""Accuracy of a classifier on examples without labels, with an interval measured on left-out domains.

Three estimates use labelled predictions of held-out examples of the training domains: calibrated confidence, importance
weighting (Shimodaira, 2000) and difference of confidences (Guillory et al., 2021). Their mean is the estimate for a
batch that resembles the training data. A model is too confident on a domain it has not seen, and by how much is known
from runs that left out one domain each: a line through the changes of confidence and of accuracy of these runs converts
the change of confidence of a drifted batch. Shapes: n examples, c classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import t as student_t

from holdfast.core.errors import quiet_fit
from holdfast.uncertainty.calibration import fit_temperature
from holdfast.uncertainty.label_shift import row_weights
from holdfast.uncertainty.left_out import LeftOut

LEVEL = 0.9  # nominal coverage of the intervals
ESTIMATES = ("confidence", "weighting", "difference")
MAX_WEIGHT = 20.0  # times the mean weight of an example
MAX_ROWS = 4000  # of a pool for importance weights
SLOPE, SLOPE_SPREAD = 1.5, 1.0  # prior mean and standard deviation of the slope of a line
OFFSET_SPREAD, NOISE = 0.05, 0.03  # prior standard deviation of its offset, and of domains around it
FIT_STEPS = 30
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
        return row_weights(self.domain)

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
    unseen: float  # distance from the training domains, relative to that between them: 0 without drift of features
    validation: float  # accuracy on held-out examples of the training domains: the naive estimate
    coverage: float | None  # share of left-out domains whose accuracy is inside such an interval
    domains: int  # left-out domains
    slope: float | None = None  # of the line that converts a change of confidence; None without drift of features

    @property
    def text(self) -> str:
        """The estimate and its interval: `0.812 (0.744 to 0.880)`."""
        return f"{self.estimate:.3f}" + ("" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})")

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
    from sklearn.linear_model import LogisticRegression  # slow to import

    x = np.concatenate([_summary(batch), _summary(pool.probabilities)])
    centre, scale = x.mean(axis=0), x.std(axis=0)
    x = (x - centre) / np.where(scale > 0, scale, 1.0)
    label = np.repeat([1, 0], [len(batch), len(pool.y)])
    weight = np.concatenate([np.full(len(batch), 1.0 / len(batch)), pool.weights]) * len(batch)
    with quiet_fit():
        fitted = LogisticRegression(C=1.0, solver="newton-cholesky", max_iter=200).fit(x, label, sample_weight=weight)
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


@dataclass(frozen=True)
class Change:
    """Changes of the mean confidence and of the accuracy from known domains to a left-out one of `count` examples."""

    confidence: float
    accuracy: float
    validation: float
    count: int


def fit_line(changes: Sequence[Change]) -> tuple[float, float]:
    """Return slope and offset: accuracy on a new domain = validation accuracy + offset + slope * change of confidence.

    They are the posterior mean of a linear regression with normal priors; the noise is estimated in turns.
    """
    x = np.asarray([min(0.0, change.confidence) for change in changes])
    y = np.asarray([change.accuracy for change in changes])
    design, prior = np.stack([x, np.ones_like(x)], axis=1), np.asarray([SLOPE, 0.0])
    noise, solved = NOISE**2, prior
    for _ in range(FIT_STEPS):
        weight = np.diag([noise / SLOPE_SPREAD**2, noise / OFFSET_SPREAD**2])
        solved = np.linalg.solve(design.T @ design + weight, design.T @ y + weight @ prior)
        noise = (((y - design @ solved) ** 2).sum() + NOISE**2) / (len(x) + 1)
    return float(solved[0]), float(solved[1])


def on_line(line: tuple[float, float], validation: float, confidence: float) -> float:
    """Return the accuracy for a change of the mean confidence.

    A rise of the confidence counts as no change, because a new domain seldom increases the accuracy.
    """
    slope, offset = line
    return min(1.0, max(0.0, validation + offset + slope * min(0.0, confidence)))


@dataclass(frozen=True, eq=False)
class AccuracyEstimator:
    """Estimates for batches of one model: held-out examples of its training domains, and left-out domains if any."""

    known: Labelled
    changes: tuple[Change, ...] = ()  # per left-out domain

    @staticmethod
    def of(known: Labelled, left_out: LeftOut | None, *, seed: int = 0) -> AccuracyEstimator:
        """Limit the size of the pool, and compare each left-out domain with the known domains of its run."""
        rng = np.random.default_rng(seed)
        changes = []
        for target in () if left_out is None else np.unique(left_out.target):
            assert left_out is not None
            own = left_out.take(left_out.target == target)
            new, valid = (pool_of(rows.outputs, rows.y, rows.domain) for rows in (own.unseen, own.valid))
            if new is not None:
                changes.append(_change(new, known if valid is None else valid))  # averages store no validation rows
        if len(known.y) > MAX_ROWS:
            known = known.take(np.sort(rng.permutation(len(known.y))[:MAX_ROWS]))
        return AccuracyEstimator(known, tuple(changes))

    @cached_property
    def validation(self) -> float:
        """Accuracy on held-out examples of the training domains."""
        return float(self.known.correct.mean())

    @cached_property
    def line(self) -> tuple[float, float]:
        """Slope and offset of the line through all left-out domains."""
        return fit_line(self.changes)

    @cached_property
    def errors(self) -> np.ndarray:
        """Error of the estimate for each left-out domain, with a line through the other left-out domains."""
        if len(self.changes) < 2:
            return np.zeros(0)
        estimated = []
        for i, own in enumerate(self.changes):
            line = fit_line([*self.changes[:i], *self.changes[i + 1 :]])
            estimated.append(on_line(line, own.validation, own.confidence) - own.validation - own.accuracy)
        return np.asarray(estimated)

    @cached_property
    def coverage(self) -> float | None:
        """Share of left-out domains inside the interval that the other ones determine; None for fewer than three."""
        if len(self.errors) < 3:
            return None
        inside = []
        for i, own in enumerate(self.changes):
            true = own.validation + own.accuracy
            half = _half_width(np.delete(self.errors, i), true * (1 - true) / own.count)
            inside.append(abs(self.errors[i]) <= half)
        return float(np.mean(inside))

    def estimate(self, batch: np.ndarray, *, unseen: float) -> Accuracy:
        """Estimate the accuracy on a batch of probabilities (n, c).

        `unseen` is 0 for a batch that resembles the training domains and 1 for one that differs from them as they
        differ from one another.
        """
        own = estimates(batch, self.known)
        drifted = unseen > 0 and bool(self.changes)
        value = combined(own)
        if drifted:
            value = on_line(self.line, self.validation, _confidence(batch) - _confidence(self.known.probabilities))
        low, high = self._interval(value, len(batch), unseen, drifted)
        return Accuracy(
            value, low, high, **own, unseen=unseen, validation=self.validation, coverage=self.coverage,
            domains=len(self.changes), slope=self.line[0] if drifted else None,
        )  # fmt: skip

    def _interval(self, value: float, count: int, unseen: float, drifted: bool) -> tuple[float | None, float | None]:
        """Return the ends of the interval; none for a batch of an unseen domain if two left-out domains are missing."""
        smoothed = (value * count + 1) / (count + 2)  # Laplace: an estimate of 1 is not certain
        noise = smoothed * (1 - smoothed) * (1 / count + 1 / len(self.known.y))
        if unseen > 0.5 and len(self.errors) < 2:
            return None, None
        half = _half_width(self.errors if drifted else np.zeros(0), noise)
        return max(0.0, value - half), min(1.0, value + half)


def _confidence(probabilities: np.ndarray) -> float:
    return float(probabilities.max(axis=1).mean())


def _change(new: Labelled, valid: Labelled) -> Change:
    confidence = _confidence(new.probabilities) - _confidence(valid.probabilities)
    before, after = float(valid.correct.mean()), float(new.correct.mean())
    return Change(confidence, after - before, before, len(new.y))


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

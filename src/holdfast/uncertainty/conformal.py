"""Prediction sets and intervals that cover a stated share of the examples of unseen domains.

Conformal prediction (Vovk et al., 2005) on the outputs of runs that left out a domain, so that the calibration examples
are as new to their networks as an unseen domain is to the model. The score of an example is 1 - p(true class), or the
distance of the number to the uncalibrated interval; a set has all classes whose score is at most a threshold.

- `split`: one threshold for all, every left-out domain with the same weight.
- `mondrian`: the threshold of the example's own domain; of an unknown domain, the largest of all domains.
- `weighted`: `split` with weights that follow the density of the new examples (Tibshirani et al., 2019).

Shapes: n examples, c classes, k outputs, d features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from holdfast.record import RunRecord
from holdfast.tasks.regress import interval
from holdfast.uncertainty.left_out import LeftOut, first_per_episode

METHODS = ("split", "mondrian", "weighted")
TASKS = ("classify", "ordinal", "regress")
LEVEL = 0.9  # coverage that model cards show
LEVELS = (0.8, 0.9, 0.95)  # coverage that reports show
LIMITS = (0.1, 10.0)  # of the density ratio of an example
FEW = 30.0  # effective number of calibration examples below which the weights are too uneven
SAMPLE = 2000  # new examples from which the density ratio is estimated


@dataclass(frozen=True)
class Measured:
    """Coverage on one left-out domain, calibrated on the other left-out domains."""

    domain: str
    examples: int
    coverage: float
    size: float  # mean number of classes per set, or mean width of the intervals


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of classes (n, c) of bool, or the ends (n, 2) of intervals, nan if they are unbounded."""

    values: np.ndarray

    def covers(self, y: np.ndarray) -> np.ndarray:
        """Return (n,) whether a set has the true class, or an interval the true number."""
        if self.values.dtype == bool:
            return self.values[np.arange(len(y)), y]
        return ~((y < self.values[:, 0]) | (y > self.values[:, 1]))  # an unbounded end is nan

    @property
    def sizes(self) -> np.ndarray:
        """Number of classes (n,), or width (n,); inf if it is unbounded."""
        if self.values.dtype == bool:
            return self.values.sum(axis=1).astype(np.float64)
        width = self.values[:, 1] - self.values[:, 0]
        return np.where(np.isnan(width), np.inf, width)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Thresholds of one method and one coverage, from scores (n,) of left-out domains with weights (n,)."""

    coverage: float
    method: str
    names: tuple[str, ...]
    domain: np.ndarray  # (n,)
    scores: np.ndarray
    weights: np.ndarray
    unit: float  # mean weight of an example before the density ratio
    numeric: bool
    ordered: bool = False  # whether a set of classes has no gaps
    ratio: DensityRatio | None = None

    @staticmethod
    def fit(
        left_out: LeftOut, coverage: float, method: str = "split", *, ordered: bool = False,
        new: np.ndarray | None = None,
    ) -> Calibrated:  # fmt: skip
        """Calibrate on the rows of left-out domains; `new` are features (m, d) of new examples, for `weighted`."""
        unseen = left_out.unseen
        counts = np.bincount(unseen.domain, minlength=len(unseen.domains))
        weights = 1.0 / counts[unseen.domain]
        unit, ratio = float(weights.mean()), None
        if method == "weighted" and unseen.coordinates is not None and new is not None:
            ratio = DensityRatio.fit(unseen.coordinates, weights, new)
            weights = weights * ratio(unseen.coordinates)
        return Calibrated(
            coverage, method, unseen.domains, unseen.domain, scores(unseen.outputs, unseen.y), weights,
            unit, unseen.y.dtype.kind == "f", ordered, ratio,
        )  # fmt: skip

    @property
    def effective(self) -> float:
        """Effective number of calibration examples, (sum of weights)^2 / sum of squared weights."""
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    @property
    def largest_group(self) -> int:
        """Number of calibration examples that share a threshold: all, or those of the largest domain."""
        return int(np.bincount(self.domain).max()) if self.method == "mondrian" else len(self.scores)

    def predict(
        self, outputs: np.ndarray, *, domains: Sequence[str] | None = None, features: np.ndarray | None = None
    ) -> Sets:
        """Return sets for probabilities (n, c), or intervals for predicted numbers (n, k) in units of the target.

        `domains` are the names of the domains (n,) for `mondrian`, `features` (n, d) those for `weighted`.
        """
        limits = self._thresholds(len(outputs), domains, features)
        if self.numeric:
            low, high = (edge.numpy() for edge in interval(torch.from_numpy(outputs.astype(np.float64)), 0.0))
            with np.errstate(invalid="ignore"):
                low, high = low - limits, high + limits
            middle = (low + high) / 2  # a negative margin may turn the ends around
            low, high = np.minimum(low, middle), np.maximum(high, middle)
            return Sets(np.where(np.isinf(limits)[:, None], np.nan, np.stack([low, high], axis=1)))
        chosen = 1 - outputs <= limits[:, None] + 1e-9
        chosen[np.arange(len(outputs)), outputs.argmax(axis=1)] = True  # a set is never empty
        if self.ordered:
            chosen = np.maximum.accumulate(chosen, axis=1) & np.maximum.accumulate(chosen[:, ::-1], axis=1)[:, ::-1]
        return Sets(chosen)

    def _thresholds(self, count: int, domains: Sequence[str] | None, features: np.ndarray | None) -> np.ndarray:
        """Return the threshold (n,) of every new example; inf if the calibration examples are too few for it."""
        if self.method != "mondrian":
            ratio = np.ones(count) if self.ratio is None or features is None else self.ratio(features)
            return quantiles(self.scores, self.weights, self.unit * ratio, self.coverage)
        own = {}
        for code in np.unique(self.domain):
            values = self.scores[self.domain == code]
            (threshold,) = quantiles(values, np.ones(len(values)), np.ones(1), self.coverage).tolist()
            if math.isfinite(threshold):
                own[self.names[code]] = threshold
        largest = max(own.values(), default=math.inf)
        return np.asarray([own.get(name, largest) for name in (domains or [""] * count)])


def scores(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return 1 - p(true class), or the distance of the number to the uncalibrated interval, negative inside.  # (n,)"""
    if y.dtype.kind == "f":
        low, high = (edge.numpy() for edge in interval(torch.from_numpy(outputs.astype(np.float64)), 0.0))
        return np.maximum(low - y, y - high)
    return 1.0 - outputs[np.arange(len(y)), y].astype(np.float64)


def quantiles(values: np.ndarray, weights: np.ndarray, new: np.ndarray, coverage: float) -> np.ndarray:
    """Return (m,) the smallest value up to which the weights reach `coverage` of all weights and a new example's.

    `new` are the weights (m,) of new examples, which count as infinitely large values. Equal weights give the
    ceil((n + 1) coverage)-th smallest value.
    """
    order = np.argsort(values, kind="stable")
    total, ranked = np.cumsum(weights[order]), np.append(values[order], np.inf)
    needed = coverage * (weights.sum() + new)
    return ranked[np.searchsorted(total, needed * (1 - 1e-12), side="left")]


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """Ratio of the densities of new and calibration examples, from a logistic regression that separates them."""

    coefficients: np.ndarray  # (d,)
    intercept: float
    scale: float  # mean over the calibration examples, so that their weights have mean 1

    @staticmethod
    def fit(known: np.ndarray, weights: np.ndarray, new: np.ndarray) -> DensityRatio:
        """Fit on features (n, d) with weights (n,) and features (m, d) of new examples; both count equally."""
        from sklearn.linear_model import LogisticRegression  # slow to import

        x, y = np.concatenate([known, new]), np.repeat([0, 1], [len(known), len(new)])
        shares = np.concatenate([weights / weights.sum(), np.full(len(new), 1 / len(new))]) * len(x) / 2
        model: Any = LogisticRegression(max_iter=1000).fit(x, y, sample_weight=shares)
        ratio = DensityRatio(model.coef_[0], float(model.intercept_[0]), 1.0)
        mean = float(np.average(ratio(known), weights=weights))
        return DensityRatio(ratio.coefficients, ratio.intercept, mean)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the ratio (n,), within limits."""
        logits = features.astype(np.float64) @ self.coefficients + self.intercept
        return np.exp(logits.clip(*np.log(LIMITS))) / self.scale


def measure(left_out: LeftOut, coverage: float, method: str = "split", *, ordered: bool = False) -> list[Measured]:
    """Return the coverage per left-out domain with thresholds of the other domains, as for an unseen domain.

    It is empty with fewer than two left-out domains, or if they have too few examples for the coverage.
    """
    unseen, measured = left_out.unseen, []
    for index in np.unique(unseen.domain):
        own, others = unseen.take(unseen.domain == index), unseen.take(unseen.domain != index)
        if not len(others.y):
            return []
        calibrated = Calibrated.fit(others, coverage, method, ordered=ordered, new=own.coordinates)
        predicted = calibrated.predict(own.outputs, features=own.coordinates)
        if not np.isfinite(predicted.sizes).all() or needed_examples(coverage) > calibrated.largest_group:
            return []
        covered, size = float(predicted.covers(own.y).mean()), float(predicted.sizes.mean())
        measured.append(Measured(unseen.domains[index], len(own.y), covered, size))
    return measured


def with_coverage(records: Sequence[RunRecord], left_out: LeftOut) -> list[RunRecord]:
    """Return the records whose domain was left out, with the coverage of prediction sets there.

    The last stage gets "sets": {domain: {nominal coverage: {method: {"examples", "coverage", "size"}}}}; of
    several seeds, only the records that the outputs come from.
    """
    ordered, measured = records[0].spec.get("task") == "ordinal", dict[str, dict[str, dict[str, Any]]]()
    for level in LEVELS:
        for method in ("split", "mondrian"):
            for each in measure(left_out, level, method, ordered=ordered):
                entry = {"examples": each.examples, "coverage": round(each.coverage, 6), "size": round(each.size, 6)}
                measured.setdefault(each.domain, {}).setdefault(f"{level:g}", {})[method] = entry
    changed = []
    for record in first_per_episode(records):
        *earlier, last = record.stages
        own = {domain: measured[domain] for domain in last["test"] if domain in measured}
        changed += [replace(record, stages=[*earlier, {**last, "sets": own}])] if own else []
    return changed


def needed_examples(coverage: float) -> int:
    """Return the smallest number of calibration examples for a finite threshold."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)

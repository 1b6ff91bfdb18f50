"""Logistic and ridge regression on dense or sparse features, with the strength of the penalty chosen on domains.

Shapes: n examples, d features, c classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import log_softmax

from holdfast.core.errors import quiet_fit

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # inverse strengths of the penalty, of features with norm 1
POWERS = (1.0, 0.5)  # of a feature's standard deviation that it is divided by
FOLDS = 5  # at most
ROWS = 10_000  # examples that the strength is chosen on, at most
ITERATIONS = 300
TINY = 1e-8


@dataclass(frozen=True)
class Design:
    """Features (n, d), an array or a sparse matrix, and targets (n, ...): classes, or numbers."""

    x: Any
    y: np.ndarray

    def take(self, rows: np.ndarray) -> Design:
        return Design(self.x[rows], self.y[rows])

    def labelled(self) -> Design:
        """Return the examples with a label."""
        known = self.y >= 0 if self.y.dtype.kind == "i" else np.isfinite(self.y).reshape(len(self.y), -1).all(axis=1)
        return self if bool(known.all()) else self.take(np.flatnonzero(known))

    @staticmethod
    def join(designs: Sequence[Design]) -> Design:
        y = np.concatenate([design.y for design in designs])
        if isinstance(designs[0].x, np.ndarray):
            return Design(np.concatenate([design.x for design in designs]), y)
        return Design(sparse.csr_matrix(sparse.vstack([design.x for design in designs], format="csr")), y)


@dataclass(frozen=True)
class LinearFit:
    """Weight (c, d) and bias (c,) for the features as they are, and metrics of the fit."""

    weight: np.ndarray
    bias: np.ndarray
    metrics: dict[str, float]


@dataclass(frozen=True)
class Scaling:
    """x -> (x - mean) / scale; dense features get mean 0 and a mean squared norm of 1, sparse ones stay as they are.

    With the power 1 all features get the same variance; with a lower one, features that vary more keep more of it.
    """

    mean: np.ndarray | None = None  # (d,)
    scale: np.ndarray | None = None  # (d,)

    @staticmethod
    def of(x: Any, power: float = 1.0) -> Scaling:
        if not isinstance(x, np.ndarray):
            return Scaling()
        std = x.std(axis=0, dtype=np.float64)
        constant = std <= TINY * (1 + np.abs(x).max(axis=0, initial=0.0))
        scale = np.where(constant, 1.0, std) ** power
        norm = np.sqrt(((std / scale) ** 2).sum())
        return Scaling(x.mean(axis=0, dtype=np.float64), scale * (norm if norm > 0 else 1.0))

    def apply(self, x: Any) -> Any:
        return x if self.mean is None else ((x - self.mean) / self.scale).astype(np.float32)

    def unscaled(self, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weight and bias for features that are not scaled."""
        if self.mean is None or self.scale is None:
            return weight, bias
        weight = weight / self.scale
        return weight, bias - weight @ self.mean


def log_frequencies(y: np.ndarray, classes: int) -> np.ndarray:
    """Return the logarithm of each class's share (c,); a class without examples counts as a tenth of an example."""
    counts = np.maximum(np.bincount(y, minlength=classes), 0.1)
    return np.log(counts / counts.sum())


def fit_linear(design: Design, classes: int, strength: float, power: float = 1.0) -> LinearFit:
    """Minimise C * sum of losses + |W|^2 / 2 over weights of scaled features; the bias has no penalty."""
    scaling = Scaling.of(design.x, power)
    x = scaling.apply(design.x)
    weight, bias = _Path(x, design.y, classes).solve(strength)
    log_p = log_softmax(np.asarray(x @ weight.T) + bias, axis=1)
    risk = float(-log_p[np.arange(len(design.y)), design.y].mean())
    weight, bias = scaling.unscaled(weight, bias)
    metrics = {"risk": risk, "C": float(strength), "power": power}
    return LinearFit(weight.astype(np.float32), bias.astype(np.float32), metrics)


def choose_strength(
    designs: Sequence[Design], classes: int, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, float]:
    """Return the inverse strength and the power of the scaling that are best on held-out domains.

    The criterion is the mean accuracy, with ties decided by the mean log-likelihood.
    """
    design, fold = Design.join(designs), _folds([len(design.y) for design in designs])
    if len(fold) > ROWS:
        rows = np.linspace(0, len(fold) - 1, ROWS).astype(int)
        design, fold = design.take(rows), fold[rows]
    scores: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for power in POWERS if isinstance(design.x, np.ndarray) else POWERS[:1]:
        x, y = Scaling.of(design.x, power).apply(design.x), design.y
        for held_out in np.unique(fold):
            train, valid = np.flatnonzero(fold != held_out), np.flatnonzero(fold == held_out)
            path = _Path(x[train], y[train], classes)
            for strength in strengths:  # in ascending order, each from the solution before
                weight, bias = path.solve(strength)
                log_p = log_softmax(np.asarray(x[valid] @ weight.T) + bias, axis=1)
                right = float((log_p.argmax(axis=1) == y[valid]).mean())
                likelihood = float(log_p[np.arange(len(valid)), y[valid]].mean())
                scores.setdefault((strength, power), []).append((right, likelihood))
    return max(scores, key=lambda pair: tuple(np.mean(scores[pair], axis=0)))


def fit_labels(design: Design, folds: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> LinearFit:
    """Fit one regression per label, with the strength that is best for the label nearest to half of the examples.

    The targets are 0 or 1, (n, c); `folds` holds the examples of each domain.
    """
    balanced = int(np.abs(design.y.mean(axis=0) - 0.5).argmin())
    chosen = choose_strength([Design(f.x, f.y[:, balanced].astype(np.int64)) for f in folds], 2, strengths)
    fits = [fit_linear(Design(design.x, y.astype(np.int64)), 2, *chosen) for y in design.y.T]
    metrics = {"risk": float(np.mean([fit.metrics["risk"] for fit in fits])), "C": chosen[0], "power": chosen[1]}
    weight = np.stack([fit.weight[1] - fit.weight[0] for fit in fits])
    return LinearFit(weight, np.asarray([fit.bias[1] - fit.bias[0] for fit in fits], dtype=np.float32), metrics)


def ridge(design: Design, strength: float, power: float = 1.0) -> LinearFit:
    """Minimise C * sum of squared errors + |w|^2 over weights of scaled features; targets are (n,)."""
    from sklearn.linear_model import Ridge  # its import takes a second

    scaling = Scaling.of(design.x, power)
    x = scaling.apply(design.x)
    model = Ridge(alpha=1 / strength).fit(x, design.y)
    errors = np.asarray(model.predict(x)) - design.y
    weight, bias = scaling.unscaled(np.asarray(model.coef_)[None], np.atleast_1d(model.intercept_))
    metrics = {"risk": float((errors**2).mean()), "C": float(strength), "power": power}
    return LinearFit(weight.astype(np.float32), bias.astype(np.float32), metrics)


def choose_ridge(designs: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> tuple[float, float]:
    """Return the inverse strength and the power of the scaling with the lowest squared error on held-out domains."""
    design, fold = Design.join(designs), _folds([len(design.y) for design in designs])
    if len(fold) > ROWS:
        rows = np.linspace(0, len(fold) - 1, ROWS).astype(int)
        design, fold = design.take(rows), fold[rows]
    errors: dict[tuple[float, float], list[float]] = {}
    for power in POWERS if isinstance(design.x, np.ndarray) else POWERS[:1]:
        for held_out in np.unique(fold):
            train, valid = (design.take(np.flatnonzero(mask)) for mask in (fold != held_out, fold == held_out))
            for strength in strengths:
                fit = ridge(train, strength, power)
                predicted = np.asarray(valid.x @ fit.weight[0]) + fit.bias[0]
                errors.setdefault((strength, power), []).append(float(((predicted - valid.y) ** 2).mean()))
    return min(errors, key=lambda pair: float(np.mean(errors[pair])))


def _folds(sizes: Sequence[int]) -> np.ndarray:
    """Return the fold (n,) of each example: its domain, or every third example if there is one domain."""
    if len(sizes) == 1:
        return np.arange(sizes[0]) % 3
    return np.repeat(np.arange(len(sizes)) % FOLDS, sizes)


class _Path:
    """Solutions for ascending inverse strengths on the same examples."""

    def __init__(self, x: Any, y: np.ndarray, classes: int) -> None:
        from sklearn.linear_model import LogisticRegression  # its import takes a second

        self.x, self.y, self.classes = x, y, classes
        self.known = np.unique(y)
        self.model = LogisticRegression(max_iter=ITERATIONS, warm_start=True, tol=1e-4)

    def solve(self, strength: float) -> tuple[np.ndarray, np.ndarray]:
        """Return weight (c, d) and bias (c,); a class without examples has the bias of a tenth of an example."""
        weight = np.zeros((self.classes, self.x.shape[1]))
        bias = log_frequencies(self.y, self.classes)
        if len(self.known) < 2:
            return weight, bias
        with quiet_fit():
            self.model.set_params(C=strength).fit(self.x, self.y)
        coefficients, intercepts = np.asarray(self.model.coef_), np.asarray(self.model.intercept_)
        if len(self.known) == 2:  # one row for the second class
            coefficients, intercepts = (np.concatenate([-part / 2, part / 2]) for part in (coefficients, intercepts))
        weight[self.known] = coefficients
        missing = np.setdiff1d(np.arange(self.classes), self.known)
        bias[missing] += intercepts.min() - bias[self.known].max()
        bias[self.known] = intercepts
        return weight, bias

"""Logistic and ridge regression on dense or sparse features, with the strength of the penalty chosen on domains.

Shapes: n examples, d features, c classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.special import log_softmax

from holdfast.methods.solver import Binary, Loss, solve, space_of
from holdfast.methods.strength import (
    FOLDS,
    best_strength,
    first_bias,
    loss_of,
    scores,
    splits_of,
    stratified_sample,
)

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # inverse strengths of the penalty, of features with norm 1
SPARSE_STRENGTHS = (1.0, 10.0, 100.0)
POWERS = (1.0, 0.5)  # of a feature's standard deviation that it is divided by
ROWS = 5_000  # examples that the strength is chosen on, at most, with dense features
FEW_CLASSES = 10  # with more classes, fewer examples are used
SPARSE_ROWS, SPARSE_SHARE = (800, 2_000), 4  # with sparse features: a quarter of all, between these numbers
SPARSE_FOLDS = 3  # of domains, with sparse features
TOLERANCE, SPARSE_TOLERANCE = 3e-7, 3e-5  # expected decrease of the mean loss at the end
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
        if len(designs) == 1:
            return designs[0]
        features, y = [design.x for design in designs], np.concatenate([design.y for design in designs])
        if sparse.issparse(features[0]):
            return Design(sparse.csr_matrix(sparse.vstack(features, format="csr")), y)
        return Design(np.concatenate(features), y)


@dataclass(frozen=True)
class LinearFit:
    """Weight (c, d) and bias (c,) for the features as they are, and metrics of the fit."""

    weight: np.ndarray
    bias: np.ndarray
    metrics: dict[str, float]

    @staticmethod
    def of(weight: np.ndarray, bias: np.ndarray, **metrics: Any) -> LinearFit:
        """Return a fit in single precision."""
        numbers = {name: float(value) for name, value in metrics.items()}
        return LinearFit(weight.astype(np.float32), bias.astype(np.float32), numbers)


def scaled(x: Any, power: float) -> tuple[Any, np.ndarray, np.ndarray | float]:
    """Return (x - mean) / scale, mean and scale (d,); sparse features stay as they are.

    The scaled features have mean 0 and a mean squared norm of 1. With the power 1 all get the same variance; with a
    lower one, features that vary more keep more of it.
    """
    if sparse.issparse(x):
        return x, np.zeros(x.shape[1]), 1.0
    values = torch.from_numpy(x).double()
    std, mean = values.std(0, correction=0), values.mean(0)
    largest = values.abs().amax(0) if len(x) else std
    scale = torch.where(std <= TINY * (1 + largest), 1.0, std) ** power
    norm = (std / scale).square().sum().sqrt()
    scale = scale * torch.where(norm > 0, norm, 1.0)
    return ((values - mean) / scale).float(), mean.numpy(), scale.numpy()


def log_frequencies(y: np.ndarray, classes: int) -> np.ndarray:
    """Return the logarithm of each class's share (c,); a class without examples counts as a tenth of an example."""
    counts = np.maximum(np.bincount(y, minlength=classes), 0.1)
    return np.log(counts / counts.sum())


def fit_linear(design: Design, classes: int, strength: float, power: float = 1.0) -> LinearFit:
    """Minimise C * sum of losses + |W|^2 / 2 over weights of scaled features; the bias has no penalty.

    A class without examples has the bias of a tenth of an example.
    """
    known, y = np.unique(design.y, return_inverse=True)
    weight, bias = np.zeros((classes, design.x.shape[1])), log_frequencies(design.y, classes)
    log_p = np.broadcast_to(bias[known], (len(y), len(known)))
    if len(known) > 1:
        weight[known], own_bias, outputs = _solved(design.x, y, len(known), strength, power)
        missing = np.setdiff1d(np.arange(classes), known)
        bias[missing] += own_bias.min() - bias[known].max()
        bias[known], log_p = own_bias, log_softmax(outputs, axis=1)
    return LinearFit.of(weight, bias, risk=-log_p[np.arange(len(y)), y].mean(), C=strength, power=power)


def ridge(design: Design, strength: float, power: float = 1.0) -> LinearFit:
    """Minimise C * sum of squared errors + |w|^2 over weights of scaled features; targets are (n,)."""
    y, mean, std = _standardised(design.y)
    weight, bias, outputs = _solved(design.x, y, 0, strength, power)
    risk = ((outputs[:, 0] * std + mean - design.y) ** 2).mean()
    return LinearFit.of(weight * std, bias * std + mean, risk=risk, C=strength, power=power)


def fit_labels(design: Design, folds: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> LinearFit:
    """Fit one regression per label, with the strength that is best for the label nearest to half of the examples.

    The targets are 0 or 1, (n, c); `folds` holds the examples of each domain. A label that all or no examples have
    gets a bias alone.
    """
    labels = (design.y > 0.5).astype(np.int64)
    balanced = int(np.abs(labels.mean(axis=0) - 0.5).argmin())
    strength, power = choose_strength([Design(fold.x, fold.y[:, balanced] > 0.5) for fold in folds], strengths)
    frequencies = np.stack([log_frequencies(y, 2) for y in labels.T])
    bias, weight = frequencies[:, 1] - frequencies[:, 0], np.zeros((labels.shape[1], design.x.shape[1]))
    outputs = np.repeat(bias[None], len(labels), axis=0)
    varying = np.flatnonzero((labels.max(axis=0) > 0) & (labels.min(axis=0) < 1))
    if len(varying):
        loss = Binary(torch.from_numpy(labels[:, varying, None]).float())
        fitted = _minimised(design.x, loss, bias[varying, None], strength, power)
        weight[varying], bias[varying], outputs[:, varying] = fitted
    risk = (np.logaddexp(0, outputs) - labels * outputs).mean()
    return LinearFit.of(weight, bias, risk=risk, C=strength, power=power)


def _solved(
    x: Any, y: np.ndarray, classes: int, strength: float, power: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights (c, d), biases (c,) and outputs (n, c); two classes share one regression in equal parts."""
    begin = first_bias(y, classes, np.ones((len(y), 1), dtype=bool))
    weight, bias, outputs = _minimised(x, loss_of(y, classes), begin, strength, power)
    if classes != 2:
        return weight, bias, outputs
    weight, bias = (np.concatenate([-part / 2, part / 2]) for part in (weight, bias))
    return weight, bias, np.concatenate([-outputs / 2, outputs / 2], axis=1)


def _minimised(
    x: Any, loss: Loss, begin: np.ndarray, strength: float, power: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, biases and outputs of all problems and outputs that begin with these biases (k, c), joined."""
    tolerance = SPARSE_TOLERANCE if sparse.issparse(x) else TOLERANCE
    features, mean, scale = scaled(x, power)
    bias = torch.from_numpy(begin).float()
    solution = solve(space_of(features), loss, bias.new_full((len(bias),), strength), bias, tolerance=tolerance)
    tensors = (solution.weight.flatten(0, 1), solution.bias.flatten(), solution.outputs.flatten(1))
    weight, offset, outputs = (tensor.double().numpy() for tensor in tensors)
    weight = weight / scale
    return weight, offset - weight @ mean, outputs


def _standardised(y: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return numbers with mean 0 and variance 1, and their mean and standard deviation before."""
    y = y.astype(np.float64)
    mean, std = y.mean(), y.std() or 1.0
    return (y - mean) / std, mean, std


def choose_strength(designs: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> tuple[float, float]:
    """Return the inverse strength and the power of the scaling that are best on held-out domains.

    The criterion is the log-likelihood of the held-out rows of all folds, in which classes have equal weights, shrunk
    towards that of a random split. A sample of the rows with all domains and classes decides.
    """
    known, y = np.unique(np.concatenate([design.y for design in designs]), return_inverse=True)
    if len(known) < 2:
        return strengths[len(strengths) // 2], POWERS[0]
    return _chosen(designs, y, len(known), strengths)


def choose_ridge(designs: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> tuple[float, float]:
    """Return the inverse strength and the power of the scaling with the lowest squared error on held-out domains."""
    return _chosen(designs, _standardised(np.concatenate([design.y for design in designs]))[0], 0, strengths)


def _chosen(designs: Sequence[Design], y: np.ndarray, classes: int, strengths: Sequence[float]) -> tuple[float, float]:
    """Return the best strength and power for the joined targets (n,): classes from 0, or numbers for 0 classes."""
    dense = not sparse.issparse(designs[0].x)
    powers = POWERS if dense else POWERS[:1]
    if len(strengths) == len(powers) == 1:
        return strengths[0], powers[0]
    domain = np.repeat(np.arange(len(designs)), [len(design.y) for design in designs])
    least, most = SPARSE_ROWS
    many = max(least, ROWS * FEW_CLASSES // max(FEW_CLASSES, classes))  # the time grows with rows and classes
    rows = stratified_sample(domain, y, many if dense else min(most, max(least, len(domain) // SPARSE_SHARE)))
    x, y, domain = Design.join(designs).x[rows], y[rows], domain[rows]
    held_out = splits_of(domain, y, FOLDS if dense else SPARSE_FOLDS)
    best: dict[tuple[float, float], float] = {}
    for power in powers:
        score = partial(scores, space_of(scaled(x, power)[0]), y, classes, held_out)
        strength, value = best_strength(score, strengths)
        best[strength, power] = value
    return max(best, key=lambda pair: best[pair])

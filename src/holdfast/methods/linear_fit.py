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
from torch import Tensor

from holdfast.methods.solver import Binary, Loss, solve, space_of
from holdfast.methods.strength import (
    FOLDS,
    Splits,
    best_strength,
    first_bias,
    loss_of,
    scores,
    stratified_sample,
    tensor_device,
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
    """Features (n, d), an array, a tensor or a sparse matrix, and targets (n, ...): classes, or numbers."""

    x: Any
    y: np.ndarray

    def take(self, rows: np.ndarray) -> Design:
        at = torch.from_numpy(rows).to(self.x.device) if isinstance(self.x, Tensor) else rows
        return Design(self.x[at], self.y[rows])

    def labelled(self) -> Design:
        """Return the examples with a label."""
        known = self.y >= 0 if self.y.dtype.kind == "i" else np.isfinite(self.y).reshape(len(self.y), -1).all(axis=1)
        return self if bool(known.all()) else self.take(np.flatnonzero(known))

    @staticmethod
    def join(designs: Sequence[Design]) -> Design:
        y = np.concatenate([design.y for design in designs])
        if len(designs) == 1:
            return designs[0]
        if isinstance(designs[0].x, Tensor):
            return Design(torch.cat([torch.as_tensor(design.x) for design in designs]), y)
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

    mean: Tensor | None = None  # (d,)
    scale: Tensor | None = None  # (d,)

    @staticmethod
    def of(x: Any, power: float = 1.0) -> Scaling:
        if sparse.issparse(x):
            return Scaling()
        x = torch.as_tensor(x).double()
        std = x.std(0, correction=0)
        largest = x.abs().amax(0) if len(x) else std
        scale = torch.where(std <= TINY * (1 + largest), 1.0, std) ** power
        norm = (std / scale).square().sum().sqrt()
        return Scaling(x.mean(0), scale * torch.where(norm > 0, norm, 1.0))

    def apply(self, x: Any) -> Any:
        if self.mean is None or self.scale is None:
            return x
        return ((torch.as_tensor(x) - self.mean) / self.scale).float()

    def unscaled(self, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weight and bias for features that are not scaled."""
        if self.mean is None or self.scale is None:
            return weight, bias
        weight = weight / self.scale.cpu().numpy()
        return weight, bias - weight @ self.mean.cpu().numpy()


def log_frequencies(y: np.ndarray, classes: int) -> np.ndarray:
    """Return the logarithm of each class's share (c,); a class without examples counts as a tenth of an example."""
    counts = np.maximum(np.bincount(y, minlength=classes), 0.1)
    return np.log(counts / counts.sum())


def fit_linear(design: Design, classes: int, strength: float, power: float = 1.0) -> LinearFit:
    """Minimise C * sum of losses + |W|^2 / 2 over weights of scaled features; the bias has no penalty.

    A class without examples has the bias of a tenth of an example.
    """
    known = np.unique(design.y)
    weight, bias = np.zeros((classes, design.x.shape[1])), log_frequencies(design.y, classes)
    log_p = np.broadcast_to(bias, (len(design.y), classes))
    if len(known) > 1:
        own_weight, own_bias, outputs = _solved(design, np.searchsorted(known, design.y), len(known), strength, power)
        missing = np.setdiff1d(np.arange(classes), known)
        bias[missing] += own_bias.min() - bias[known].max()
        weight[known], bias[known] = own_weight, own_bias
        log_p = np.full((len(design.y), classes), -np.inf)
        log_p[:, known] = log_softmax(outputs, axis=1)
    risk = float(-log_p[np.arange(len(design.y)), design.y].mean())
    metrics = {"risk": risk, "C": float(strength), "power": power}
    return LinearFit(weight.astype(np.float32), bias.astype(np.float32), metrics)


def _solved(
    design: Design, y: np.ndarray, classes: int, strength: float, power: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights (c, d), biases (c,) and outputs (n, c); two classes share one regression in equal parts."""
    begin = first_bias(y, classes, np.ones((len(y), 1), dtype=bool))
    weight, bias, outputs = _minimised(design, loss_of(y, classes, tensor_device(design.x)), begin, strength, power)
    if classes != 2:
        return weight, bias, outputs
    weight, bias = (np.concatenate([-part / 2, part / 2]) for part in (weight, bias))
    return weight, bias, np.concatenate([-outputs / 2, outputs / 2], axis=1)


def _minimised(
    design: Design, loss: Loss, begin: np.ndarray, strength: float, power: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, biases and outputs of all problems and outputs that begin with these biases (k, c), joined."""
    scaling = Scaling.of(design.x, power)
    x = scaling.apply(design.x)
    bias = torch.tensor(begin, dtype=torch.float32, device=tensor_device(design.x))
    tolerance = SPARSE_TOLERANCE if sparse.issparse(x) else TOLERANCE
    solution = solve(space_of(x), loss, bias.new_full((len(bias),), strength), bias, tolerance=tolerance)
    tensors = (solution.weight.flatten(0, 1), solution.bias.flatten(), solution.outputs.flatten(1))
    weight, offset, outputs = (tensor.double().cpu().numpy() for tensor in tensors)
    return *scaling.unscaled(weight, offset), outputs


def choose_strength(
    designs: Sequence[Design], classes: int, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, float]:
    """Return the inverse strength and the power of the scaling that are best on held-out domains.

    The criterion is the log-likelihood of the held-out rows of all folds, in which classes have equal weights, shrunk
    towards that of a random split. A sample of the rows with all domains and classes decides.
    """
    known = np.unique(np.concatenate([design.y for design in designs]))
    if len(known) < 2:
        return strengths[len(strengths) // 2], POWERS[0]
    coded = [Design(design.x, np.searchsorted(known, design.y)) for design in designs]
    return _chosen(coded, len(known), strengths)


def choose_ridge(designs: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> tuple[float, float]:
    """Return the inverse strength and the power of the scaling with the lowest squared error on held-out domains."""
    y = np.concatenate([design.y for design in designs]).astype(np.float64)
    mean, std = y.mean(), y.std() or 1.0
    return _chosen([Design(design.x, (design.y - mean) / std) for design in designs], 0, strengths)


def _chosen(designs: Sequence[Design], classes: int, strengths: Sequence[float]) -> tuple[float, float]:
    dense = not sparse.issparse(designs[0].x)
    powers = POWERS if dense else POWERS[:1]
    if len(strengths) == len(powers) == 1:
        return strengths[0], powers[0]
    domain = np.repeat(np.arange(len(designs)), [len(design.y) for design in designs])
    design = Design.join(designs)
    least, most = SPARSE_ROWS
    many = max(least, ROWS * FEW_CLASSES // max(FEW_CLASSES, classes))  # the time grows with rows and classes
    rows = stratified_sample(domain, design.y, many if dense else min(most, max(least, len(domain) // SPARSE_SHARE)))
    design, domain = design.take(rows), domain[rows]
    splits = Splits.of(domain, design.y, FOLDS if dense else SPARSE_FOLDS)
    best: dict[tuple[float, float], float] = {}
    for power in powers:
        space, device = space_of(Scaling.of(design.x, power).apply(design.x)), tensor_device(design.x)
        score = partial(scores, space, design.y, classes, splits, device=device)
        strength, value = best_strength(score, strengths)
        best[strength, power] = value
    return max(best, key=lambda pair: best[pair])


def fit_labels(design: Design, folds: Sequence[Design], strengths: Sequence[float] = STRENGTHS) -> LinearFit:
    """Fit one regression per label, with the strength that is best for the label nearest to half of the examples.

    The targets are 0 or 1, (n, c); `folds` holds the examples of each domain. A label that all or no examples have
    gets a bias alone.
    """
    labels = (design.y > 0.5).astype(np.int64)
    balanced = int(np.abs(labels.mean(axis=0) - 0.5).argmin())
    chosen = choose_strength([Design(f.x, (f.y[:, balanced] > 0.5).astype(np.int64)) for f in folds], 2, strengths)
    frequencies = np.stack([log_frequencies(y, 2) for y in labels.T])
    bias, weight = frequencies[:, 1] - frequencies[:, 0], np.zeros((labels.shape[1], design.x.shape[1]))
    outputs = np.repeat(bias[None], len(labels), axis=0)
    varying = np.flatnonzero((labels.max(axis=0) > 0) & (labels.min(axis=0) < 1))
    if len(varying):
        targets = torch.from_numpy(labels[:, varying]).float().to(tensor_device(design.x))
        fitted = _minimised(design, Binary(targets[..., None]), bias[varying, None], *chosen)
        weight[varying], bias[varying], outputs[:, varying] = fitted
    risk = float((np.logaddexp(0, outputs) - labels * outputs).mean())
    metrics = {"risk": risk, "C": float(chosen[0]), "power": chosen[1]}
    return LinearFit(weight.astype(np.float32), bias.astype(np.float32), metrics)


def ridge(design: Design, strength: float, power: float = 1.0) -> LinearFit:
    """Minimise C * sum of squared errors + |w|^2 over weights of scaled features; targets are (n,)."""
    y = design.y.astype(np.float64)
    mean, std = y.mean(), y.std() or 1.0
    weight, bias, outputs = _solved(Design(design.x, design.y), (y - mean) / std, 0, strength, power)
    risk = float(((outputs[:, 0] * std + mean - y) ** 2).mean())
    metrics = {"risk": risk, "C": float(strength), "power": power}
    return LinearFit((weight * std).astype(np.float32), (bias * std + mean).astype(np.float32), metrics)

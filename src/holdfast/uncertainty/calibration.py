"""Calibrated probabilities, and how far examples are from the training data (n examples, c classes, d width)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.tape import Tape, tape
from holdfast.data.splits import Part
from holdfast.nn.model import Model, OutputScale
from holdfast.tasks.multilabel import MultiLabel
from holdfast.tasks.regress import Regress, in_units
from holdfast.train.assemble import Assembly
from holdfast.uncertainty.arrays import StoredArrays

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
MAX_WIDTH = 2048  # wider features are scaled per feature, since their covariance would be too large
MAX_DISTANCES = 2000  # stored validation distances; quantiles if there are more
ROWS = 2000  # training rows, and validation rows, used for the calibration
READS = ("memory/weights", "heterogeneous/across")  # recorded memory reads with weights (b, h, m)


def probabilities(outputs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return softmax(outputs / temperature), (n, c), in double precision."""
    return softmax(outputs.astype(np.float64) / temperature, axis=-1)


def nll(outputs: np.ndarray, y: np.ndarray, temperature: float = 1.0) -> float:
    """Return the mean of -log p(y)."""
    log_p = log_softmax(outputs.astype(np.float64) / temperature, axis=-1)
    return float(-np.take_along_axis(log_p, y[:, None], axis=-1).mean())


def fit_temperature(outputs: np.ndarray, y: np.ndarray) -> float:
    """Return the temperature with the lowest NLL (Guo et al., 2017), or 1 if no other improves it.

    One example with a uniform label is added, as Platt (1999) smooths targets: without it, the optimum for a few
    examples that are all correct would be 0.
    """
    from scipy.optimize import minimize_scalar  # importing it takes a fifth of a second

    known = y >= 0
    outputs, y = outputs[known], y[known]
    if not len(y):
        return 1.0

    def smoothed_nll(log_temperature: float) -> float:
        log_p = log_softmax(outputs.astype(np.float64) / np.exp(log_temperature), axis=-1)
        correct = np.take_along_axis(log_p, y[:, None], axis=-1)
        return float(-(correct.sum() + log_p.mean()) / (len(y) + 1))

    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    optimum = minimize_scalar(smoothed_nll, bounds=bounds, method="bounded")
    temperature = float(np.exp(optimum.x))  # pyright: ignore[reportAttributeAccessIssue]
    return temperature if nll(outputs, y, temperature) < nll(outputs, y) else 1.0


@dataclass(frozen=True, eq=False)
class ForeignScore:
    """Mahalanobis distance to the nearest class mean (Lee et al., 2018), as a percentile among validation examples.

    The covariance is fitted on training features with the shrinkage of Ledoit and Wolf (2004).
    """

    scale: np.ndarray  # (d, d) Cholesky factor of the covariance, or (d,) standard deviations
    centres: np.ndarray  # (c, d) scaled class means
    known: np.ndarray  # sorted distances of validation examples

    @staticmethod
    def fit(features: np.ndarray, y: np.ndarray, valid: np.ndarray) -> ForeignScore:
        """Fit on labelled training features (n, d) and validation features."""
        features = features.astype(np.float64)
        labels, index = np.unique(y, return_inverse=True)
        means = np.stack([features[index == i].mean(axis=0) for i in range(len(labels))])
        scale = _covariance_factor(features - means[index]).astype(np.float32)
        score = ForeignScore(scale, _whitened(means, scale).astype(np.float32), np.zeros(0))
        distances = np.sort(score.distances(valid))
        if len(distances) > MAX_DISTANCES:
            distances = np.quantile(distances, np.linspace(0, 1, MAX_DISTANCES))
        return ForeignScore(score.scale, score.centres, distances)

    def distances(self, features: np.ndarray) -> np.ndarray:
        """Return distances (n,) to the nearest class mean, in standard deviations."""
        from scipy.spatial.distance import cdist

        return cdist(_whitened(features.astype(np.float64), self.scale), self.centres.astype(np.float64)).min(axis=1)

    def percentiles(self, features: np.ndarray) -> np.ndarray:
        """Return the percentage (n,) of validation examples that are at most as far away."""
        return percentiles(self.distances(features), self.known)


def percentiles(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the percentage (n,) of the sorted known values that are at most each value."""
    return 100.0 * np.searchsorted(known, values, side="right") / max(1, len(known))


def _covariance_factor(centred: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of the shrunk covariance of centred features."""
    from sklearn.covariance import ledoit_wolf  # importing it takes a second

    n, d = centred.shape
    floor = 1e-6 * float((centred**2).mean()) + 1e-12  # keeps constant features finite
    if d > MAX_WIDTH:
        return np.sqrt((centred**2).mean(axis=0) + floor)
    if n < 2:
        return np.eye(d)
    covariance, _ = ledoit_wolf(centred, assume_centered=True)
    return np.linalg.cholesky(covariance + floor * np.eye(d))


def _whitened(features: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if scale.ndim == 1:
        return features / scale
    # torch instead of scipy: a second thread pool would compete with torch's in a server
    lower, columns = torch.from_numpy(scale.astype(np.float64)), torch.from_numpy(features.T)
    return torch.linalg.solve_triangular(lower, columns, upper=False).numpy().T


class Observations(NamedTuple):
    """Outputs (n, c), features (n, d), and entropy of memory reads (n,) or None."""

    outputs: np.ndarray
    features: np.ndarray
    entropy: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Calibration(StoredArrays):
    """Temperature, foreign score and entropy of memory reads, fitted once and stored in the model folder.

    `margin` is that of the intervals of a regression, in standardised units; `thresholds` are those of a set of labels.
    """

    temperature: float
    foreign: ForeignScore
    entropies: np.ndarray | None = None  # sorted; None without a memory that records its reads
    margin: float | None = None
    thresholds: np.ndarray | None = None  # (c,)
    inline: ClassVar[str] = "foreign"

    def undecided(self, entropy: np.ndarray | None) -> np.ndarray | None:
        """Return the percentage (n,) of validation examples whose memory read has at most this entropy."""
        return None if entropy is None or self.entropies is None else percentiles(entropy, self.entropies)


def temperature_of(calibration: Calibration | None) -> float:
    """Return the temperature of a calibration; 1 without one."""
    return 1.0 if calibration is None else calibration.temperature


def network_predictions(
    outputs: np.ndarray, predicts: str, calibration: Calibration | None, scale: OutputScale | None, *,
    calibrated: bool = True,
) -> np.ndarray:  # fmt: skip
    """Return probabilities (n, c), or numbers in units of the target and the ends of their intervals (n, 1 or 3)."""
    if predicts == "numbers":
        margin = None if calibration is None else calibration.margin
        values = torch.from_numpy(outputs.astype(np.float64))
        return in_units(values, margin, scale or OutputScale(0.0, 1.0)).numpy()
    if predicts == "labels":
        return 1 / (1 + np.exp(-outputs.astype(np.float64)))
    return probabilities(outputs, temperature_of(calibration) if calibrated else 1.0)


def observer(model: Model) -> Callable[[Inputs], Tensor]:
    """Return a function that concatenates outputs, features and read entropy; `observations` separates them."""

    def observe(x: Inputs) -> Tensor:
        with tape() as recorded:
            features = model.encode(x)
            outputs = model.classify(model.apply_neck(features))
        entropy = read_entropy(recorded, len(outputs))
        last = torch.full_like(outputs[:, 0], torch.nan) if entropy is None else entropy
        return torch.cat([outputs.float(), features.float().flatten(1), last[:, None].float()], dim=1)

    return observe


def output_count(model: Model) -> int:
    """Return the number of outputs of a network."""
    return int(model.head.outputs)  # pyright: ignore[reportArgumentType]


def observations(values: Tensor, model: Model) -> Observations:
    """Separate what the `observer` of a network returned for n examples."""
    outputs, features, entropy = np.split(values.numpy(), [output_count(model), values.shape[1] - 1], axis=1)
    return Observations(outputs, features, None if np.isnan(entropy).any() else entropy[:, 0])


def observe_rows(assembly: Assembly, rows: np.ndarray) -> Observations:
    """Return what the trained network of a run computes for some rows of its examples."""
    model = assembly.deployed
    was_training = model.training
    model.eval()
    values = assembly.examples.map(observer(model), rows, prediction_batch=model.prediction_batch)
    model.train(was_training)
    return observations(values, model)


def fit_calibration(
    assembly: Assembly, train: Sequence[Part], valid: Sequence[Part], *, seed: int
) -> Calibration | None:
    """Fit the calibration of a trained network; None without labelled training and validation rows.

    Without classes, the foreign score is the distance to the mean of all training examples.
    """
    task = assembly.task
    if assembly.method is None or not task.predicts:
        return None
    samples = [_sample(splits, assembly, derive(seed, "gauge", i)) for i, splits in enumerate((train, valid))]
    if not all(len(rows) for rows, _ in samples):
        return None
    (training, y), (held_out, truth) = ((observe_rows(assembly, rows), targets) for rows, targets in samples)
    entropies = None if held_out.entropy is None else np.sort(held_out.entropy)
    is_class = task.predicts == "classes"
    labels = y.numpy() if is_class else np.zeros(len(y), dtype=np.int64)
    foreign = ForeignScore.fit(training.features, labels, held_out.features)
    temperature = fit_temperature(held_out.outputs, truth.numpy()) if is_class else 1.0
    fitted = task.calibrated(torch.from_numpy(held_out.outputs), truth)
    margin = fitted.margin if isinstance(fitted, Regress) else None
    thresholds = fitted.thresholds if isinstance(fitted, MultiLabel) else None
    return Calibration(temperature, foreign, entropies, margin, thresholds)


def _sample(splits: Sequence[Part], assembly: Assembly, seed: int) -> tuple[np.ndarray, Tensor]:
    """Return at most ROWS labelled rows, balanced over domains, and their targets."""
    sampled, rng = [], np.random.default_rng(seed)
    share = -(-ROWS // max(1, len(splits)))
    for split in splits:
        y = assembly.examples.targets(torch.from_numpy(split.rows)).cpu()
        known = y.isfinite().view(len(y), -1).all(dim=1) if y.is_floating_point() else y >= 0
        rows = split.rows[known.numpy()]
        sampled.append(np.sort(rng.choice(rows, share, replace=False)) if len(rows) > share else rows)
    chosen = np.concatenate([np.zeros(0, dtype=np.int64), *sampled])
    return chosen, assembly.examples.targets(torch.from_numpy(chosen)).cpu()


def read_entropy(recorded: Tape, count: int) -> Tensor | None:
    """Return the normalised entropy (b,) of memory reads, averaged over heads and memories; None without reads."""
    reads = [weights for name in READS for weights in recorded[name]]
    entropies = []
    for weights in reads:
        if len(weights) == count and weights.shape[-1] > 1:
            entropy = torch.special.entr(weights.float()).sum(dim=-1) / math.log(weights.shape[-1])  # (b, h)
            entropies.append(entropy.flatten(1).mean(dim=1))
    return torch.stack(entropies).mean(dim=0) if entropies else None

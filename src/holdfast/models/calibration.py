"""One temperature that makes probabilities as sure as they are right, fitted on validation examples.

n examples, c classes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, softmax
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.tape import Tape, tape
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.model import Model

COLDEST, HOTTEST = 0.05, 20.0


def probabilities(outputs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """(n, c) softmax(outputs / temperature), in double precision."""
    return softmax(outputs.astype(np.float64) / temperature, axis=-1)


def nll(outputs: np.ndarray, y: np.ndarray, temperature: float = 1.0) -> float:
    """The mean of -log p(y)."""
    told = log_softmax(outputs.astype(np.float64) / temperature, axis=-1)
    return float(-np.take_along_axis(told, y[:, None], axis=-1).mean())


def fit_temperature(outputs: np.ndarray, y: np.ndarray) -> float:
    """The temperature with the lowest NLL on these examples (Guo et al., 2017); never one that is worse than 1.

    One more example of an even label is counted among them, as Platt (1999) smooths targets: where all of a few
    examples are right, the best temperature would otherwise be zero.
    """
    known = y >= 0
    outputs, y = outputs[known], y[known]
    if not len(y):
        return 1.0

    def smoothed(logarithm: float) -> float:
        told = log_softmax(outputs.astype(np.float64) / np.exp(logarithm), axis=-1)
        right = np.take_along_axis(told, y[:, None], axis=-1)
        return float(-(right.sum() + told.mean()) / (len(y) + 1))

    found = minimize_scalar(smoothed, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    temperature = float(np.exp(found.x))  # pyright: ignore[reportAttributeAccessIssue]
    return temperature if nll(outputs, y, temperature) < nll(outputs, y) else 1.0


WIDEST = 2048  # wider features are scaled one by one: their covariance would be larger than most networks
MOST = 2000  # validation distances that are kept; of more, as many quantiles


@dataclass(frozen=True, eq=False)
class Foreignness:
    """Class means and one covariance of training features (Lee et al., 2018), and distances of validation examples.

    The covariance is shrunk as Ledoit and Wolf (2004) do. It is fitted on training examples and compared with
    validation examples, so that new examples of the same domains lie as far out as those.
    """

    scale: np.ndarray  # (d, d) a lower triangle that undoes the covariance, or (d,) one number a feature
    centres: np.ndarray  # (c, d) class means, scaled
    known: np.ndarray  # sorted distances of validation examples

    @staticmethod
    def fit(features: np.ndarray, y: np.ndarray, valid: np.ndarray) -> Foreignness:
        """From training features (n, d) with labels, and validation features."""
        features = features.astype(np.float64)
        labels, place = np.unique(y, return_inverse=True)
        means = np.stack([features[place == i].mean(axis=0) for i in range(len(labels))])
        scale = _unscaled(features - means[place]).astype(np.float32)
        bare = Foreignness(scale, _scaled(means, scale).astype(np.float32), np.zeros(0))
        found = np.sort(bare.distances(valid))
        if len(found) > MOST:
            found = np.quantile(found, np.linspace(0, 1, MOST))
        return Foreignness(bare.scale, bare.centres, found)

    def distances(self, features: np.ndarray) -> np.ndarray:
        """(n,) to the nearest class mean, in standard deviations."""
        return cdist(_scaled(features.astype(np.float64), self.scale), self.centres.astype(np.float64)).min(axis=1)

    def percentiles(self, features: np.ndarray) -> np.ndarray:
        """(n,) of 100 validation examples, how many lie nearer, or as near."""
        return percentiles(self.distances(features), self.known)


def percentiles(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(n,) the share, in percent, of the sorted known values that are not above each value."""
    return 100.0 * np.searchsorted(known, values, side="right") / max(1, len(known))


def _unscaled(apart: np.ndarray) -> np.ndarray:
    """The lower triangle L of the shrunk covariance L L' of what features are apart from their means."""
    n, d = apart.shape
    floor = 1e-6 * float((apart**2).mean()) + 1e-12  # a feature that never moves still has a scale
    if d > WIDEST:
        return np.sqrt((apart**2).mean(axis=0) + floor)
    if n < 2:
        return np.eye(d)
    covariance, _ = ledoit_wolf(apart, assume_centered=True)
    return np.linalg.cholesky(covariance + floor * np.eye(d))


def _scaled(features: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if scale.ndim == 1:
        return features / scale
    # by torch, whose threads are at work already: those of another library would go on spinning beside them
    lower, columns = torch.from_numpy(scale.astype(np.float64)), torch.from_numpy(features.T)
    return torch.linalg.solve_triangular(lower, columns, upper=False).numpy().T


ROWS = 2000  # training rows, and validation rows, that are looked at


class Seen(NamedTuple):
    """What one pass tells of n examples: outputs (n, c), features (n, d), entropy of reads (n,) or None."""

    outputs: np.ndarray
    features: np.ndarray
    entropy: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Gauge:
    """A temperature for outputs, a measure of foreignness, and how undecided reads of a memory were."""

    temperature: float
    foreign: Foreignness
    entropies: np.ndarray | None = None  # sorted, of validation examples; None without a memory that can be heard

    def undecided(self, entropy: np.ndarray | None) -> np.ndarray | None:
        """(n,) of 100 validation examples, how many read their memory more decidedly, or as much."""
        return None if entropy is None or self.entropies is None else percentiles(entropy, self.entropies)

    def save(self, path: Path) -> Path:
        parts = {"scale": self.foreign.scale, "centres": self.foreign.centres, "known": self.foreign.known}
        if self.entropies is not None:
            parts["entropies"] = self.entropies
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in parts.items()}
        return save_tree(path, {"temperature": self.temperature, **tensors})

    @staticmethod
    def load(path: Path) -> Gauge:
        tree = load_tree(path)
        parts = {name: value.numpy() for name, value in tree.items() if isinstance(value, Tensor)}
        entropies = parts.pop("entropies", None)
        return Gauge(tree["temperature"], Foreignness(**parts), entropies)


def seeing(model: Model) -> Callable[[Inputs], Tensor]:
    """A function of inputs (b, ..) that gives outputs, features and entropy side by side, for `seen` to take apart."""

    def look(x: Inputs) -> Tensor:
        with tape() as heard:
            features = model.encode(x)
            outputs = model.head(model.apply_neck(features))
        entropy = read_entropy(heard, len(outputs))
        last = torch.full_like(outputs[:, 0], torch.nan) if entropy is None else entropy
        return torch.cat([outputs.float(), features.float().flatten(1), last[:, None].float()], dim=1)

    return look


def seen(found: Tensor, classes: int) -> Seen:
    """What `seeing` gave of n examples, taken apart."""
    outputs, features, entropy = np.split(found.numpy(), [classes, found.shape[1] - 1], axis=1)
    return Seen(outputs, features, None if np.isnan(entropy).any() else entropy[:, 0])


def measure(
    model: Model, examples: Examples, train: Sequence[Part], valid: Sequence[Part], *, classes: int, seed: int
) -> Gauge | None:
    """The gauge of a trained classifier; None where there are no labelled rows of both kinds to measure it on."""
    drawn = [_drawn(parts, examples, derive(seed, "gauge", i)) for i, parts in enumerate((train, valid))]
    if not all(map(len, drawn)):
        return None
    training = model.training
    model.eval()
    sides = []
    for rows in drawn:
        found = examples.map(seeing(model), rows, prediction_batch=model.prediction_batch)
        sides.append((seen(found, classes), examples.targets(torch.from_numpy(rows)).cpu().numpy()))
    model.train(training)
    (known, y), (held, truth) = sides
    entropies = None if held.entropy is None else np.sort(held.entropy)
    foreign = Foreignness.fit(known.features, y, held.features)
    return Gauge(fit_temperature(held.outputs, truth), foreign, entropies)


def _drawn(parts: Sequence[Part], examples: Examples, seed: int) -> np.ndarray:
    """At most ROWS labelled rows, as many of each domain as can be."""
    found, chance = [], np.random.default_rng(seed)
    share = -(-ROWS // max(1, len(parts)))
    for part in parts:
        rows = part.rows[(examples.targets(torch.from_numpy(part.rows)) >= 0).cpu().numpy()]
        found.append(np.sort(chance.choice(rows, share, replace=False)) if len(rows) > share else rows)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


HEARD = ("memory/weights", "heterogeneous/across")  # one read an example, with weights (b, h, m)


def read_entropy(heard: Tape, count: int) -> Tensor | None:
    """(b,) the mean entropy of reads over heads and memories, 1 where all slots are alike; None without such reads."""
    found = []
    for name in HEARD:
        for weights in heard[name]:
            if len(weights) == count and weights.shape[-1] > 1:
                each = torch.special.entr(weights.float()).sum(dim=-1) / math.log(weights.shape[-1])  # (b, h)
                found.append(each.flatten(1).mean(dim=1))
    return torch.stack(found).mean(dim=0) if found else None

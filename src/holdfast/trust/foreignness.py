"""How far an example lies from what a network was trained on: Mahalanobis' distance to the nearest class.

n examples, d width, c classes
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf

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

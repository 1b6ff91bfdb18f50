"""One temperature that makes probabilities as sure as they are right, fitted on validation examples.

n examples, c classes
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

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

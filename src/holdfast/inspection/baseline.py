"""What a shift costs a quick linear classifier: trained inside each domain, and on all others.

n examples, k domains
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from holdfast.inspection.distances import LEAST
from holdfast.inspection.examples import Examples

HELD = 0.3


@dataclass(frozen=True)
class Quick:
    """Accuracy on the same held-out rows of one domain."""

    domain: str
    inside: float  # trained on the other rows of the domain
    outside: float  # trained on as many rows of the other domains, evenly drawn
    everything: float  # trained on all rows of the other domains
    majority: float  # the share of the domain's commonest label: what needs no input
    error: float  # standard error of the difference, over the held-out rows
    scored: int

    @property
    def cost(self) -> float:
        return self.inside - self.outside


def quick_scores(examples: Examples, rows: Mapping[str, np.ndarray]) -> list[Quick]:
    """Every domain with enough labelled rows, each of which is in chance order: the first are held out."""
    y = examples.dataset.y
    parts = {name: own[y[own] >= 0] for name, own in rows.items()}
    parts = {name: own for name, own in parts.items() if len(own) >= LEAST}
    if len(parts) < 2:
        return []
    features = {name: examples.phrases(own) for name, own in parts.items()}
    if not issparse(next(iter(features.values()))):
        scale = np.concatenate(list(features.values())).std(axis=0) + 1e-6
        features = {name: x / scale for name, x in features.items()}
    held = {name: max(1, int(HELD * len(own))) for name, own in parts.items()}
    found = []
    for name, own in parts.items():
        cut = held[name]
        test, inner = features[name][:cut], features[name][cut:]
        others = [(features[other][held[other] :], y[parts[other][held[other] :]]) for other in parts if other != name]
        few = -(-(len(own) - cut) // len(others))  # rounded up
        truth = y[own[:cut]]
        inside = _predicted([(inner, y[own[cut:]])], test) == truth
        outside = _predicted([(x[:few], labels[:few]) for x, labels in others], test) == truth
        everything = _predicted(others, test) == truth
        error = float((inside.astype(int) - outside).std() / np.sqrt(cut))
        found.append(
            Quick(
                domain=name,
                inside=float(inside.mean()),
                outside=float(outside.mean()),
                everything=float(everything.mean()),
                majority=float(np.bincount(truth).max() / cut),
                error=error,
                scored=cut,
            )
        )
    return found


def _predicted(parts: list[tuple[Any, np.ndarray]], test: Any) -> np.ndarray:
    """What a linear classifier that learned these parts says of the test rows."""
    x = [features for features, _ in parts]
    y = np.concatenate([labels for _, labels in parts])
    if len(np.unique(y)) < 2:
        return np.full(test.shape[0], y[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one that stopped early is a linear classifier too
        fitted = LinearSVC(C=1.0 if issparse(test) else 0.1, max_iter=200, random_state=0)
        fitted.fit(vstack(x, format="csr") if issparse(test) else np.concatenate(x), y)
    return np.asarray(fitted.predict(test))

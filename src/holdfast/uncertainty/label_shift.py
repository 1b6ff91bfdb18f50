"""Change of the class mix between the source domains and unlabelled examples: estimate it, test it, correct for it.

Black-box shift estimation (Lipton et al., 2018) with soft predictions: the mean prediction of the target is a mixture
of the mean predictions per class. Shapes: n source examples, m target examples, c classes.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from holdfast.train.evaluate import class_mix, collapsed

LEVEL = 0.05  # of the test against the null control
RESAMPLES = 200
MARGIN = 2.0  # by which a distance must exceed errors and random variation
LIMITS = (0.1, 10.0)  # of a weight that is applied
SMALLEST = 20  # labelled examples per class, and unlabelled examples, below which nothing is estimated


@dataclass(frozen=True)
class LabelShift:
    """Estimated weights p(class in target) / p(class in sources), and why they are applied or not."""

    weights: list[float]  # (c,) as applied: within the limits
    sources: list[float]  # (c,) class mix of the sources
    target: list[float]  # (c,) estimated class mix of the target
    distance: float  # total variation of the two
    null: float  # 95% quantile of the distance for samples of the sources: the null control
    p_value: float
    error: float | None  # largest distance of estimated and true mix of a source domain; None with a single one
    gain: float | None  # accuracy in points that such a correction gains on the source domains
    refused: str = ""  # why the weights are not applied; empty if they are

    def json(self) -> dict[str, Any]:
        return asdict(self)


def estimate_shift(
    outputs: np.ndarray, y: np.ndarray, domain: np.ndarray, target: np.ndarray, *, seed: int = 0
) -> LabelShift | None:
    """Estimate the shift from probabilities (n, c) of held-out source examples and (m, c) of the target.

    Every domain has the same weight, as in training. None if there are too few examples.
    """
    if len(target) < SMALLEST or np.bincount(y, minlength=outputs.shape[1]).min() < SMALLEST:
        return None
    sources = _Sources(outputs, y, domain)
    prior, weights = sources.prior, sources.weights_for(target.mean(axis=0))
    distance, rng = _distance(weights, prior), np.random.default_rng(seed)
    null = np.asarray([_null_distance(sources, len(target), rng) for _ in range(RESAMPLES)])
    p_value = float((1 + (null >= distance).sum()) / (1 + RESAMPLES))
    applied = weights.clip(*LIMITS)
    tried = _trial_on_sources(sources, applied)
    error, gain = (max(tried[0]), float(np.mean(tried[1]))) if tried[0] else (None, None)
    limit = float(np.quantile(null, 1 - LEVEL))
    refused = _refusal(distance, p_value, limit, error, gain) or _collapse(target, applied)
    shares = weights * prior
    return LabelShift(
        weights=_rounded(applied),
        sources=_rounded(prior),
        target=_rounded(shares / shares.sum()),
        distance=round(distance, 4),
        null=round(limit, 4),
        p_value=round(p_value, 4),
        error=None if error is None else round(error, 4),
        gain=None if gain is None else round(gain, 2),
        refused=refused,
    )


def _refusal(distance: float, p_value: float, limit: float, error: float | None, gain: float | None) -> str:
    """Return why the weights should not be applied; sources that were trained on underestimate errors elsewhere."""
    if p_value >= LEVEL:
        return "the class mix of the unlabelled examples does not differ from the sources beyond random variation"
    if error is None or gain is None:
        return "a single source domain does not show whether a correction helps on another one"
    for bound, name in ((error, "its largest error on the source domains"), (limit, "that of samples of the sources")):
        if distance <= MARGIN * bound:
            return f"the distance of the estimated class mix, {distance:.2f}, is below twice {name}, {bound:.2f}"
    return "" if gain > 0 else f"such a correction changes the accuracy on the source domains by {gain:+.1f} points"


def _collapse(target: np.ndarray, weights: np.ndarray) -> str:
    before, after = (class_mix(probabilities) for probabilities in (target, target * weights))
    return "the corrected predictions collapse to few classes" if collapsed(before, after) else ""


def row_weights(domain: np.ndarray) -> np.ndarray:
    """Return (n,) weights with equal sums per domain and a total of 1."""
    _, index, counts = np.unique(domain, return_inverse=True, return_counts=True)
    return 1.0 / (counts[index] * len(counts))


class _Sources:
    """Labelled predictions (n, c) of source domains that have the same weight, and what follows from them."""

    def __init__(self, outputs: np.ndarray, y: np.ndarray, domain: np.ndarray) -> None:
        self.outputs, self.y, self.domain, self.rows = outputs, y, domain, row_weights(domain)
        self.classes = outputs.shape[1]
        self.prior = np.bincount(y, weights=self.rows, minlength=self.classes)

    def take(self, rows: np.ndarray) -> "_Sources":
        """Return some of the examples."""
        return _Sources(self.outputs[rows], self.y[rows], self.domain[rows])

    def has_all_classes(self) -> bool:
        return len(np.unique(self.y)) == self.classes

    def weights_for(self, mean: np.ndarray) -> np.ndarray:
        """(c,) non-negative weights w with confusion @ w = mean and an expected weight of 1."""
        confusion = (self.outputs * self.rows[:, None]).T @ np.eye(self.classes)[self.y]  # (c, c): prediction, class
        weights, _ = nnls(np.vstack([confusion, self.prior]), np.append(mean, 1.0))
        total = float(weights @ self.prior)
        return weights / total if total > 0 else np.ones(self.classes)


def _distance(weights: np.ndarray, prior: np.ndarray) -> float:
    return float(0.5 * (prior * np.abs(weights - 1)).sum())


def _null_distance(sources: _Sources, count: int, rng: np.random.Generator) -> float:
    """Return the distance for a target that is a sample of the sources, with the confusion of another sample."""
    n = len(sources.y)
    known = sources.take(rng.choice(n, n))
    if not known.has_all_classes():
        return 0.0
    drawn = rng.choice(n, count, p=sources.rows)
    return _distance(known.weights_for(sources.outputs[drawn].mean(axis=0)), known.prior)


def _trial_on_sources(sources: _Sources, weights: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the error of the estimate per source domain, and the gain in accuracy if it had the mix of the target."""
    errors, gains = [], []
    for name in np.unique(sources.domain):
        own, others = sources.take(sources.domain == name), sources.take(sources.domain != name)
        if not others.has_all_classes():
            continue
        true = np.bincount(own.y, minlength=own.classes)
        estimated = others.weights_for(own.outputs.mean(axis=0)) * others.prior
        errors.append(float(0.5 * np.abs(estimated - true / true.sum()).sum()))
        share = weights[own.y] / weights[own.y].sum()  # (n,) the domain with the mix of the target
        solved = others.weights_for(share @ own.outputs).clip(*LIMITS)
        right = [share @ (p.argmax(axis=1) == own.y) for p in (own.outputs, own.outputs * solved)]
        gains.append(100 * float(right[1] - right[0]))
    return errors, gains


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in values]

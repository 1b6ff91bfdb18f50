"""Weighted averages of class probabilities, with weights chosen on source validation rows.

Shapes: m members, n examples, c classes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.models.calibration import fit_temperature, probabilities

STEPS = 200  # of expectation maximisation; the likelihood is concave in the weights
PRIOR = 0.1  # pseudo-count of a uniform distribution over the members, per 100 examples
SMALLEST = 0.02  # smaller weights are set to zero
EPSILON = 1e-12

Outputs = Mapping[str, np.ndarray]  # domain -> (n, c)


def calibrated(valid: Outputs, y: Outputs, outputs: Outputs) -> dict[str, np.ndarray]:
    """Return probabilities per domain, with the temperature that fits the validation rows of all domains."""
    temperature = validation_temperature(valid, y)
    return {domain: probabilities(values, temperature) for domain, values in outputs.items()}


def validation_temperature(valid: Outputs, y: Outputs) -> float:
    """Return the temperature with the lowest NLL on the validation rows of all domains."""
    names = list(valid)
    return fit_temperature(np.concatenate([valid[d] for d in names]), np.concatenate([y[d] for d in names]))


def mixture_weights(members: Sequence[Outputs], y: Outputs) -> np.ndarray:
    """Return weights (m,), at least 0 with sum 1, that maximise the likelihood of the labels.

    `members` are probabilities of validation rows per domain; every domain has the same influence. Expectation
    maximisation finds the optimum; a weak uniform prior decides between members that agree.
    """
    observed = []
    for domain, labels in y.items():
        known = labels >= 0
        own = np.stack([member[domain][known, labels[known]] for member in members], axis=1)  # (n, m)
        observed.append((own + EPSILON, np.full(len(own), 1.0 / max(1, len(own)))))
    likelihood, share = np.concatenate([p for p, _ in observed]), np.concatenate([s for _, s in observed])
    share = share / share.sum()
    count = likelihood.shape[1]
    weights = np.full(count, 1.0 / count)
    for _ in range(STEPS):
        joint = likelihood * weights
        weights = share @ (joint / joint.sum(axis=1, keepdims=True)) + PRIOR / 100 / count
        weights /= weights.sum()
    weights[weights < SMALLEST] = 0.0
    return weights / weights.sum()


def mix(members: Sequence[Outputs], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weighted average of probabilities per domain; a single weight of 1 returns that member."""
    chosen = [(member, weight) for member, weight in zip(members, weights, strict=True) if weight > 0]
    if len(chosen) == 1:
        return dict(chosen[0][0])
    return {domain: sum(weight * member[domain] for member, weight in chosen) for domain in members[0]}  # pyright: ignore[reportReturnType]

"""Weighted averages of predictions, with weights chosen on source validation rows.

Predictions are probabilities of classes or of labels, or numbers. Shapes: m members, n examples, c classes or labels.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from holdfast.models.calibration import fit_temperature, probabilities

STEPS = 200  # of expectation maximisation; the likelihood is concave in the weights
PRIOR = 0.1  # pseudo-count of a uniform distribution over the members, per 100 examples
SMALLEST = 0.02  # smaller weights are set to zero
PRIORS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # to choose from; the last one is almost a uniform average
ROWS = 2000  # validation rows per domain that choose a prior
EPSILON = 1e-12
SUM = 1e4  # weight of the condition that the weights of numbers sum to 1

Outputs = Mapping[str, np.ndarray]  # domain -> (n, c), or (n,) for targets


def calibrated(valid: Outputs, y: Outputs, outputs: Outputs) -> dict[str, np.ndarray]:
    """Return probabilities per domain, with the temperature that fits the validation rows of all domains."""
    temperature = validation_temperature(valid, y)
    return {domain: probabilities(values, temperature) for domain, values in outputs.items()}


def validation_temperature(valid: Outputs, y: Outputs) -> float:
    """Return the temperature with the lowest NLL on the validation rows of all domains."""
    names = list(valid)
    return fit_temperature(np.concatenate([valid[d] for d in names]), np.concatenate([y[d] for d in names]))


def mixture_weights(members: Sequence[Outputs], y: Outputs, *, prior: float = PRIOR) -> np.ndarray:
    """Return weights (m,), at least 0 with sum 1, that maximise the likelihood of the labels.

    `members` are probabilities of validation rows per domain, and `y` the classes (n,), or 0 or 1 per label
    (n, c); every domain has the same influence. Expectation maximisation finds the optimum; a weak uniform prior
    decides between members that agree.
    """
    observed = []
    for domain, labels in y.items():
        own = np.stack([_of_truth(member[domain], labels) for member in members], axis=1)  # (n, m)
        observed.append((own + EPSILON, np.full(len(own), 1.0 / max(1, len(own)))))
    likelihood, share = np.concatenate([p for p, _ in observed]), np.concatenate([s for _, s in observed])
    share = share / share.sum()
    count = likelihood.shape[1]
    weights = np.full(count, 1.0 / count)
    for _ in range(STEPS):
        weights = weights * ((share / (likelihood @ weights)) @ likelihood) + prior / 100 / count
        weights /= weights.sum()
    return _without_small(weights)


def _of_truth(probability: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the probability (n,) of each known class, or (n * c,) of the presence or absence of each label."""
    if y.ndim == 2:
        return np.where(y > 0.5, probability, 1 - probability).ravel()
    known = y >= 0
    return probability[known, y[known]]


def number_weights(members: Sequence[Outputs], y: Outputs, *, prior: float = PRIOR) -> np.ndarray:
    """Return weights (m,), at least 0 with sum 1, with the lowest squared error of the first column.

    Every domain has the same influence, and a weak uniform prior decides between members that agree.
    """
    from scipy.optimize import nnls

    rows = []
    for domain, truth in y.items():
        errors = np.stack([member[domain][:, 0] - truth for member in members], axis=1)  # (n, m)
        rows.append(errors / np.sqrt(max(1, len(errors))))
    errors = np.concatenate(rows)
    count, unit = errors.shape[1], np.sqrt((errors**2).sum() / errors.shape[1]) + EPSILON
    strength = np.sqrt(prior / 100)
    design = np.concatenate([errors / unit, strength * np.eye(count), np.full((1, count), SUM)])
    goal = np.concatenate([np.zeros(len(errors)), np.full(count, strength / count), [SUM]])
    return _without_small(nnls(design, goal)[0])


def _without_small(weights: np.ndarray) -> np.ndarray:
    weights = np.where(weights / weights.sum() < SMALLEST, 0.0, weights)
    return weights / weights.sum()


def shrunk_weights(members: Sequence[Outputs], y: Outputs, *, numbers: bool) -> np.ndarray:
    """Return weights with the strongest uniform prior that loses nothing clear on left-out source domains.

    For every prior in `PRIORS`, the weights of the other domains are scored on the validation rows of each domain. Of
    the priors within one standard error of the best loss, the strongest is taken (Breiman et al., 1984). Weights that
    few rows determine, or that differ between domains, are almost uniform.
    """
    fit = number_weights if numbers else mixture_weights
    groups = _groups(members, y)
    losses = {prior: [_left_out(fit, groups, held_out, prior) for held_out in range(len(groups))] for prior in PRIORS}
    means = {prior: float(np.mean([each.mean() for each in rows])) for prior, rows in losses.items()}
    best = min(means, key=lambda prior: means[prior])
    variances = [rows.var() / max(1, len(rows) - 1) for rows in losses[best]]
    limit = means[best] + np.sqrt(sum(variances)) / len(variances)
    return fit(members, y, prior=max(prior for prior in PRIORS if means[prior] <= limit))


Group = tuple[list[np.ndarray], np.ndarray]  # predictions of every member, and targets


def _groups(members: Sequence[Outputs], y: Outputs) -> list[Group]:
    """Return one group per domain with some of its labelled rows, or three groups of a single domain."""
    groups = []
    for domain, truth in y.items():
        known = np.flatnonzero(truth >= 0) if truth.dtype.kind == "i" else np.arange(len(truth))
        rows = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), ROWS)).astype(int))]
        for fold in [rows] if len(y) > 1 else [rows[i::3] for i in range(3)]:
            if len(fold):
                groups.append(([member[domain][fold] for member in members], truth[fold]))
    return groups


def _left_out(fit: Callable[..., np.ndarray], groups: Sequence[Group], held_out: int, prior: float) -> np.ndarray:
    """Return the loss of each row of a group, with the weights of the other groups."""
    own, truth = groups[held_out]
    others = {str(i): group for i, group in enumerate(groups) if i != held_out or len(groups) == 1}
    each = [{name: values[number] for name, (values, _) in others.items()} for number in range(len(own))]
    weights = fit(each, {name: y for name, (_, y) in others.items()}, prior=prior)
    mixed = np.asarray(sum(weight * values for weight, values in zip(weights, own, strict=True)))
    if fit is number_weights:
        return (mixed[:, 0] - truth) ** 2
    return -np.log(_of_truth(mixed, truth) + EPSILON)


def mix(members: Sequence[Outputs], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weighted average of predictions per domain; a single weight of 1 returns that member."""
    chosen = [(member, weight) for member, weight in zip(members, weights, strict=True) if weight > 0]
    if len(chosen) == 1:
        return dict(chosen[0][0])
    return {domain: sum(weight * member[domain] for member, weight in chosen) for domain in members[0]}  # pyright: ignore[reportReturnType]

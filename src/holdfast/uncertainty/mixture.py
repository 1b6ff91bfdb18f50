"""Weighted averages of predictions of runs, for every task with one prediction per example.

The weights are chosen on source validation rows.

| task predicts | averaged per example |
|---|---|
| classes | calibrated probabilities (c,) |
| sets of labels | probabilities (c,), and the thresholds per label |
| numbers | prediction and ends of its interval (3,) in the units of the target; without an interval, prediction (1,) |

Shapes: m members, n examples, c classes or labels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit
from torch import Tensor

from holdfast.nn.model import OutputScale
from holdfast.record import Scores, packed
from holdfast.tasks.base import Task
from holdfast.tasks.multilabel import MultiLabel, best_thresholds
from holdfast.tasks.regress import Regress, conformal_margin, in_units
from holdfast.train.run import SCALE
from holdfast.uncertainty.calibration import fit_temperature, probabilities

STEPS = 200  # of expectation maximisation; the likelihood is concave in the weights
PRIOR = 0.1  # pseudo-count of a uniform distribution over the members, per 100 examples
SMALLEST = 0.02  # smaller weights are set to zero
PRIORS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # to choose from; the last one is almost a uniform average
ROWS = 2000  # validation rows per domain that choose a prior
FOLDS = 10  # of the domains that are left out to choose a prior, at most
EPSILON = 1e-12
SUM = 1e4  # weight of the condition that the weights of numbers sum to 1

ByDomain = Mapping[str, np.ndarray]  # domain -> (n, c), or (n,) for targets


def calibrated(outputs: Mapping[str, ByDomain], y: ByDomain) -> Predictions:
    """Return probabilities, with the temperature that fits the validation rows of all domains."""
    truth = np.concatenate([y[domain] for domain in outputs["valid"]])
    temperature = fit_temperature(_joined(outputs["valid"]), truth)
    valid, test = ({d: probabilities(v, temperature) for d, v in outputs[split].items()} for split in ("valid", "test"))
    return Predictions(valid, test, temperature)


def best_weights(members: Sequence[ByDomain], y: ByDomain, *, numbers: bool, prior: float = PRIOR) -> np.ndarray:
    """Return weights (m,), at least 0 with sum 1, that are best on validation rows; every domain counts equally.

    `members` are predictions per domain. For probabilities, `y` are the classes (n,), or 0 or 1 per label (n, c), and
    expectation maximisation finds the largest likelihood; for `numbers`, the squared error of the first column is the
    lowest. A weak uniform prior decides between members that agree.
    """
    values, fit = KINDS[numbers]
    return fit([values([member[domain] for member in members], truth) for domain, truth in y.items()], prior)


def _likeliest(rows: Sequence[np.ndarray], prior: float) -> np.ndarray:
    """Return the weights (m,) for the probabilities (n, m) of the truth in every domain."""
    likelihood = np.concatenate(rows) + EPSILON
    share = np.concatenate([np.full(len(own), 1.0 / max(1, len(own))) for own in rows])
    share = share / share.sum()
    count = likelihood.shape[1]
    weights = np.full(count, 1.0 / count)
    for _ in range(STEPS):
        weights = weights * ((share / (likelihood @ weights)) @ likelihood) + prior / 100 / count
        weights /= weights.sum()
    return _without_small(weights)


def _of_truth(members: Sequence[np.ndarray], y: np.ndarray) -> np.ndarray:
    """Return the probabilities (n, m) of each known class, or (n * c, m) of the presence or absence of each label."""
    if y.ndim == 2:
        return np.stack([np.where(y > 0.5, each, 1 - each).ravel() for each in members], axis=1)
    known = y >= 0
    return np.stack([each[known, y[known]] for each in members], axis=1)


def _closest(rows: Sequence[np.ndarray], prior: float) -> np.ndarray:
    """Return the weights (m,) for the errors (n, m) in every domain."""
    from scipy.optimize import nnls

    errors = np.concatenate([own / np.sqrt(max(1, len(own))) for own in rows])
    count, unit = errors.shape[1], np.sqrt((errors**2).sum() / errors.shape[1]) + EPSILON
    strength, triangle = np.sqrt(prior / 100), np.linalg.qr(errors / unit, mode="r")
    design = np.concatenate([triangle, strength * np.eye(count), np.full((1, count), SUM)])
    goal = np.concatenate([np.zeros(len(triangle)), np.full(count, strength / count), [SUM]])
    return _without_small(nnls(design, goal)[0])


def _errors(members: Sequence[np.ndarray], truth: np.ndarray) -> np.ndarray:
    """Return the errors (n, m) of the first column."""
    return np.stack([each[:, 0] - truth for each in members], axis=1)


KINDS = {False: (_of_truth, _likeliest), True: (_errors, _closest)}  # of predictions, by whether they are numbers


def _without_small(weights: np.ndarray) -> np.ndarray:
    weights = np.where(weights / weights.sum() < SMALLEST, 0.0, weights)
    return weights / weights.sum()


def shrunk_weights(members: Sequence[ByDomain], y: ByDomain, *, numbers: bool) -> np.ndarray:
    """Return weights with the strongest uniform prior that loses nothing clear on left-out source domains.

    For every prior in `PRIORS`, the rows of each domain are scored with the weights of the other domains; of many
    domains, some are left out together. Of the priors within one standard error of the best loss, the strongest is
    taken (Breiman et al., 1984). Weights that few rows determine, or that differ between domains, are almost uniform.
    """
    values, fit = KINDS[numbers]
    rows = _groups(members, y, values)
    losses = {prior: _left_out(rows, fit, prior) for prior in PRIORS}
    means = {prior: float(np.mean([each.mean() for each in own])) for prior, own in losses.items()}
    best = min(means, key=lambda prior: means[prior])
    variances = [own.var() / max(1, len(own) - 1) for own in losses[best]]
    limit = means[best] + np.sqrt(sum(variances)) / len(variances)
    return best_weights(members, y, numbers=numbers, prior=max(prior for prior in PRIORS if means[prior] <= limit))


def _groups(
    members: Sequence[ByDomain], y: ByDomain, values: Callable[[Sequence[np.ndarray], np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Return values (n, m) of some labelled rows per domain, or of three groups of a single domain."""
    groups = []
    for domain, truth in y.items():
        known = np.flatnonzero(truth >= 0) if truth.dtype.kind == "i" else np.arange(len(truth))
        rows = known[np.unique(np.linspace(0, len(known) - 1, min(len(known), ROWS)).astype(int))]
        for fold in [rows] if len(y) > 1 else [rows[i::3] for i in range(3)]:
            if len(fold):
                groups.append(values([member[domain][fold] for member in members], truth[fold]))
    return groups


def _left_out(
    rows: Sequence[np.ndarray], fit: Callable[[Sequence[np.ndarray], float], np.ndarray], prior: float
) -> list[np.ndarray]:
    """Return the losses of the rows of every group, with weights of groups of other folds."""
    losses = []
    folds = min(len(rows), FOLDS)
    for fold in range(folds):
        others = [own for i, own in enumerate(rows) if i % folds != fold or folds == 1]
        weights = fit(others, prior)
        for own in rows[fold::folds]:
            mixed = own @ weights
            losses.append(mixed**2 if fit is _closest else -np.log(mixed + EPSILON))
    return losses


def mix(members: Sequence[ByDomain], weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weighted average of predictions per domain; a single weight of 1 returns that member."""
    chosen = [(member, weight) for member, weight in zip(members, weights, strict=True) if weight > 0]
    if len(chosen) == 1:
        return dict(chosen[0][0])
    return {domain: sum(weight * member[domain] for member, weight in chosen) for domain in members[0]}  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a run or a combination per domain, for its validation and test rows."""

    valid: ByDomain
    test: ByDomain
    temperature: float = 1.0  # of a classifier, on its validation rows
    thresholds: np.ndarray | None = None  # (c,) of sets of labels


def predictions_of(task: Task, outputs: Mapping[str, ByDomain], y: ByDomain, scale: OutputScale | None) -> Predictions:
    """Convert the outputs of a run per split and domain; everything that is chosen depends on validation rows only.

    `y` are the targets of the validation rows, and `scale` that of the outputs of a regression.
    """
    if task.predicts == "classes":
        return calibrated(outputs, y)
    if task.predicts == "labels":
        valid, test = ({d: expit(v.astype(np.float64)) for d, v in outputs[s].items()} for s in ("valid", "test"))
        thresholds = best_thresholds(_joined(valid), _joined(y) > 0.5)
        return Predictions(valid, test, thresholds=thresholds)
    assert isinstance(task, Regress)
    assert scale is not None
    truth = torch.from_numpy((_joined(y) - scale.mean) / scale.scale)
    margin = conformal_margin(torch.from_numpy(_joined(outputs["valid"])).double(), truth, task.level)
    valid, test = (
        {d: in_units(torch.from_numpy(v).double(), margin, scale).numpy() for d, v in outputs[split].items()}
        for split in ("valid", "test")
    )
    return Predictions(valid, test)


def _joined(values: ByDomain) -> np.ndarray:
    return np.concatenate(list(values.values()))


def weights_of(task: Task, members: Sequence[Predictions], y: ByDomain, *, shrink: bool) -> np.ndarray:
    """Return the weights (m,) of the members that are best on the validation rows; `shrink` draws them together."""
    numbers, each = task.predicts == "numbers", [member.valid for member in members]
    return (shrunk_weights if shrink else best_weights)(each, y, numbers=numbers)


def averaged(members: Sequence[Predictions], weights: np.ndarray, *, with_valid: bool) -> Predictions:
    """Return the weighted average; validation rows of different seeds differ and have none."""
    columns = min(values.shape[1] for member in members for values in member.test.values())
    tests = [{d: values[:, :columns] for d, values in member.test.items()} for member in members]
    valid = mix([member.valid for member in members], weights) if with_valid else {}
    each = [member.thresholds for member in members if member.thresholds is not None]
    return Predictions(valid, mix(tests, weights), thresholds=np.asarray(weights) @ np.stack(each) if each else None)


def stored_outputs(task: Task, predictions: Predictions) -> dict[str, Tensor]:
    """Return tensors per split and domain in the form of runs: log-probabilities, logits, or numbers with a scale."""
    outputs = {}
    for split, values in (("test", predictions.test), ("valid", predictions.valid)):
        for domain, each in values.items():
            own = each[:, :1] if isinstance(task, Regress) else each
            outputs[f"{split}/{domain}"] = _as_outputs(task, own)
    return outputs | ({SCALE: torch.tensor([0.0, 1.0])} if isinstance(task, Regress) else {})


def test_fields(task: Task, values: ByDomain, y: ByDomain, thresholds: np.ndarray | None) -> dict[str, Any]:
    """Return what a record stores per domain: scores, correctness per example, and predicted numbers.

    The scores include those of intervals where predictions have one.
    """
    scored, scores, correct, summaries = copy.copy(task), dict[str, Scores](), {}, {}
    for domain, each in values.items():
        if isinstance(scored, Regress):  # its scale is that of the target
            scored.margin = 0.0 if each.shape[1] > 1 else None
        if isinstance(scored, MultiLabel):
            scored.thresholds = thresholds
        stats, own = _as_outputs(task, each), y[domain]
        truth = torch.from_numpy(np.ascontiguousarray(own) if task.predicts == "classes" else own.astype(np.float64))
        scores[domain] = scored.scores(stats, truth, scored.reported)
        if (right := scored.correct(stats, truth)) is not None:
            correct[domain] = packed(right.tolist())
        if summary := scored.summary(stats, truth):
            summaries[domain] = summary
    return {"test": scores, "right": correct, **({"predictions": summaries} if summaries else {})}


def _as_outputs(task: Task, values: np.ndarray) -> Tensor:
    """Return outputs that give these predictions."""
    if task.predicts == "numbers":
        return torch.from_numpy(np.ascontiguousarray(values))
    if task.predicts == "labels":
        return torch.from_numpy(logit(values.clip(EPSILON, 1 - EPSILON)))
    return torch.from_numpy(np.log(values.clip(EPSILON)))

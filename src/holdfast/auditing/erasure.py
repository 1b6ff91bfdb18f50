"""Erasure of domain information in closed form, and its effect on a linear probe of an unseen domain.

LEACE (Belrose et al., 2023) is the smallest affine change of features x after which no linear model can predict a
concept z: x - C (C' S^-1 C)^+ C' S^-1 (x - m), with mean m and covariance S of x, and C = cov(x, z). Here z is the
source domain. Everything is computed from the moments of each domain (n rows, d width, k domains, c outputs).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve
from scipy.sparse import issparse, vstack

from holdfast.auditing.examples import Examples
from holdfast.auditing.headroom import UNITS, Interval, fold_numbers, labelled_rows, measured, stratified_interval
from holdfast.auditing.probe import Probe, probe_for
from holdfast.report.sections import Cell, share_cell
from holdfast.report.terminal import Grid

WIDTH = 512  # columns: the most frequent words and pairs of words of texts, else the features themselves
RIDGES = (0.1, 1.0, 10.0)  # relative to the mean variance; chosen on held-out rows of the sources
ERASURE_RIDGE = 0.1
ALIGNMENT = ("coral", "mmd", "dann", "cdann", "pda")  # methods whose aim is invariance of the features


@dataclass(frozen=True)
class DomainErasure:
    """Score of a linear probe on one domain, trained on the others, without and with erased source domains."""

    domain: str
    plain: float
    erased: float
    folds: tuple[float, ...]  # improvement per fold: erased minus plain, or the opposite if lower is better


@dataclass(frozen=True)
class Erasure:
    """Effect of the erasure on all domains."""

    domains: tuple[DomainErasure, ...]
    gain: Interval
    metric: str = "accuracy"

    @property
    def helps(self) -> bool:
        return self.gain.positive


class Moments(NamedTuple):
    """Sums over the rows of some domains."""

    n: Any  # number of rows
    x: np.ndarray  # (d,)
    xx: np.ndarray  # (d, d)
    y: np.ndarray  # (c,)
    xy: np.ndarray  # (d, c)


def moments(x: np.ndarray, targets: np.ndarray) -> Moments:
    """Sum features (n, d), their products, and targets (n, c) over rows."""
    return Moments(len(x), x.sum(axis=0), x.T @ x, targets.sum(axis=0), x.T @ targets)


def leace(
    mean: np.ndarray, covariance: np.ndarray, means: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return U and V (d, k) of the erasure x -> x - U V' (x - m), from the mean (k, d) and share (k,) per domain.

    The ridge keeps directions without variance out of the solution; the covariance with z is zero for every ridge.
    """
    cross = (weights[:, None] * (means - mean)).T  # (d, k) = cov(x, z) for one-hot z
    d = len(mean)
    ridge = ERASURE_RIDGE * max(float(np.trace(covariance)) / d, 1e-12)
    coefficients = solve(covariance + ridge * np.eye(d), cross, assume_a="pos")  # (d, k) = S^-1 C
    return cross @ np.linalg.pinv(cross.T @ coefficients, rcond=1e-8), coefficients


def measure_erasure(examples: Examples, rows: Mapping[str, np.ndarray]) -> Erasure | None:
    """Score a linear probe on every domain in turn, with and without erasure; None for fewer than three domains.

    Folds divide the rows of every domain: the probe is trained without one fold of the sources and tested on that
    fold of the target, so both probes of a fold see the same rows.
    """
    labelled = labelled_rows(examples, rows)
    if len(labelled) < 3:
        return None
    probe = probe_for(examples.dataset)
    y = {name: probe.y[domain_rows] for name, domain_rows in labelled.items()}
    x = _dense({name: examples.phrases(domain_rows) for name, domain_rows in labelled.items()})
    fold = {name: fold_numbers(len(labels), len(y)) for name, labels in y.items()}
    count = max(int(numbers.max()) for numbers in fold.values()) + 1
    totals = {name: moments(x[name], probe.matrix(y[name])) for name in y}
    predicted = {name: np.stack([labels, labels]) for name, labels in y.items()}
    for number in range(count):
        held = {name: fold[name] == number for name in y}
        own = {name: moments(x[name][at], probe.matrix(y[name][at])) for name, at in held.items()}
        train = {name: Moments(*map(sub, totals[name], own[name])) for name in y}
        for name in y:
            sources = [other for other in y if other != name]
            valid = [(x[other][held[other]], y[other][held[other]]) for other in sources]
            pair = _probes([train[other] for other in sources], valid, probe)
            for which, (centre, weights, bias) in enumerate(pair):
                outputs = (x[name][held[name]] - centre) @ weights + bias
                predicted[name][which, held[name]] = probe.decide(outputs)
    results = []
    for name, (plain, erased) in predicted.items():
        folds = probe.fold_gains(erased, plain, y[name], fold[name])
        results.append(DomainErasure(name, probe.score(plain, y[name]), probe.score(erased, y[name]), folds))
    gain = stratified_interval([result.folds for result in results])
    return None if gain is None else Erasure(tuple(results), gain, probe.metric)


def _probes(
    sources: Sequence[Moments], valid: Sequence[tuple[np.ndarray, np.ndarray]], probe: Probe
) -> list[tuple[Any, ...]]:
    """Return centre (d,), weights (d, c) and bias (c,) of the plain probe and of the probe on erased features.

    Both are ridge regressions of the targets with one ridge, chosen on the validation rows of the sources.
    """
    total = Moments(*(np.sum(each, axis=0) for each in zip(*sources, strict=True)))
    centre, bias = total.x / total.n, total.y / total.n
    covariance = total.xx / total.n - np.outer(centre, centre)
    target = total.xy / total.n - np.outer(centre, bias)
    means = np.stack([source.x / source.n for source in sources])
    u, v = leace(centre, covariance, means, np.asarray([source.n / total.n for source in sources]))
    half = covariance - u @ (v.T @ covariance)
    erased, aim = half - (half @ v) @ u.T, target - u @ (v.T @ target)
    x, y = np.concatenate([each for each, _ in valid]) - centre, np.concatenate([labels for _, labels in valid])
    probes = []
    for ridge in RIDGES:
        weights = _ridge(erased, aim, ridge)
        pair = (_ridge(covariance, target, ridge), weights - v @ (u.T @ weights))
        scores = [probe.gain(probe.score(probe.decide(x @ weights + bias), y), 0.0) for weights in pair]
        probes.append((sum(scores), pair))
    _, best = max(probes, key=lambda each: each[0])
    return [(centre, weights, bias) for weights in best]


def _ridge(covariance: np.ndarray, target: np.ndarray, ridge: float) -> np.ndarray:
    """Return the weights (d, c) of a ridge regression."""
    penalty = ridge * max(float(np.trace(covariance)) / len(covariance), 1e-12)
    return solve(covariance + penalty * np.eye(len(covariance)), target, assume_a="pos")


def _dense(features: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return dense features (n, d) per domain: the most frequent columns with their idf, or scaled columns."""
    every = list(features.values())
    if issparse(every[0]):
        used: Any = vstack(every, format="csr")
        counts = np.asarray((used > 0).sum(axis=0)).ravel()
        columns = np.sort(np.argsort(-counts, kind="stable")[: min(WIDTH, max(1, np.count_nonzero(counts)))])
        idf = np.log((1 + used.shape[0]) / (1 + counts[columns]))
        return {name: x[:, columns].toarray() * idf for name, x in features.items()}
    spread = np.concatenate(every).astype(np.float64).std(axis=0)
    columns = np.sort(np.argsort(-spread, kind="stable")[:WIDTH])
    return {name: x[:, columns].astype(np.float64) / (spread[columns] + 1e-6) for name, x in features.items()}


def erasure_grid(erasure: Erasure) -> Grid:
    """Score of a linear probe with and without erased domain information."""
    about = (
        f"{measured(erasure.metric, model='ridge')} on the most frequent words, or on the features, trained on the "
        "other domains: unchanged, and after an erasure fitted on them, after which no linear model can tell them "
        "apart (LEACE, Belrose et al., 2023)."
    )
    lines = []
    for domain in erasure.domains:
        change: Cell = (f"{100 * (domain.erased - domain.plain):+.1f}", domain.erased - domain.plain)
        lines.append((domain.domain, [share_cell(domain.plain), share_cell(domain.erased), change]))
    return Grid("Erasing domain information", about, ("domain", "unchanged", "erased", "change"), lines)


def erasure_sentence(erasure: Erasure) -> str:
    """State in one sentence whether erasing domain information would help."""
    gain = erasure.gain
    score, unit, change = {
        "rmse": ("RMSE", UNITS["rmse"][0], (-gain.mean, -gain.high, -gain.low)),
        "micro_f1": ("micro-averaged F1", "points", (gain.mean, gain.low, gain.high)),
    }.get(erasure.metric, ("accuracy", "points", (gain.mean, gain.low, gain.high)))
    mean, low, high = (f"{100 * value:+.1f}" for value in change)
    effect = (
        f"Erasing domain information (LEACE) changes the {score} of a linear probe on an unseen domain by "
        f"{mean} {unit} (95% interval {low} to {high})"
    )
    if erasure.helps:
        return f"{effect}: it brings unseen domains closer, so methods that make features invariant are worth trying."
    return (
        f"{effect}: it does not bring unseen domains closer, so methods that make features invariant "
        f"({', '.join(ALIGNMENT)}) are unlikely to help."
    )

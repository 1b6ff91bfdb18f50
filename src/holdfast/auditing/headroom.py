"""Headroom: how much better a linear probe is inside a domain than on a domain it has never seen.

Folds are those of a cross-validation, so every row is scored once (n rows, k domains).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import stdtrit

from holdfast.auditing.examples import Examples
from holdfast.auditing.probe import MAX_LABELS, Probe, probe_for
from holdfast.auditing.shift import MIN_ROWS
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.record import RunRecord, load
from holdfast.report.sections import Cell, number_cell, share_cell
from holdfast.report.terminal import Grid
from holdfast.stats.decision import decide
from holdfast.stats.gap import HELD_OUT
from holdfast.stats.labels import CONSTANT
from holdfast.stats.statistics import summarise
from holdfast.stats.table import tabulate

FOLDS = 5
MANY_DOMAINS = 10  # with more domains, two folds suffice
LEVEL = 0.95
UNITS = {  # of the headroom, and the score of the probe
    "accuracy": ("points of accuracy", "a linear probe scores"),
    "micro_f1": ("points of micro-averaged F1", "a linear probe scores"),
    "rmse": ("percent of the standard deviation of the label", "in these units the RMSE of a linear probe is"),
}


@dataclass(frozen=True)
class Interval:
    """Mean over domains of a difference of scores, and its 95% interval for these domains."""

    mean: float
    low: float
    high: float
    stderr: float

    @property
    def positive(self) -> bool:
        return self.low > 0


@dataclass(frozen=True)
class ShiftCost:
    """Scores of linear probes on the rows of one domain: accuracy, or the metric of another task."""

    domain: str
    inside: float  # trained on the other rows of the domain
    outside: float  # trained on the same number of rows of the other domains
    everything: float  # trained on all rows of the other domains
    majority: float  # score of the best constant prediction, for classes the share of the most frequent one
    error: float  # standard error of the headroom, over folds
    scored: int
    folds: tuple[float, ...] = ()  # headroom per fold
    metric: str = "accuracy"
    lower: bool = False  # whether lower scores are better, as for the RMSE

    @property
    def cost(self) -> float:
        return self.outside - self.inside if self.lower else self.inside - self.outside


def stratified_interval(values: Sequence[Sequence[float]]) -> Interval | None:
    """Return the mean over domains of values per fold, with Student's interval; None without two folds.

    The domains are fixed: the standard error is sqrt(sum of the squared standard errors per domain) / k.
    """
    cells = [summarise(folds) for folds in values]
    errors = [cell.stderr for cell in cells if cell.stderr is not None]
    if not cells or len(errors) < len(cells):
        return None
    mean, error = fmean(cell.mean for cell in cells), math.hypot(*errors) / len(cells)
    half = float(stdtrit(sum(cell.n - 1 for cell in cells), (1 + LEVEL) / 2)) * error
    return Interval(mean, mean - half, mean + half, error)


def labelled_rows(examples: Examples, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows with a label per domain that has enough of them."""
    y = examples.dataset.y
    labelled = {name: domain_rows[y[domain_rows] >= 0] for name, domain_rows in rows.items()}
    return {name: domain_rows for name, domain_rows in labelled.items() if len(domain_rows) >= MIN_ROWS}


def fold_numbers(rows: int, domains: int) -> np.ndarray:
    """Return the fold of each row (n,); rows are in random order already."""
    return np.arange(rows) % (FOLDS if domains <= MANY_DOMAINS else 2)


def shift_costs(examples: Examples, rows: Mapping[str, np.ndarray]) -> list[ShiftCost]:
    """Score every domain with enough labelled rows by cross-validation; rows are in random order."""
    labelled = labelled_rows(examples, rows)
    if len(labelled) < 2:
        return []
    features = {name: examples.phrases(domain_rows) for name, domain_rows in labelled.items()}
    if not issparse(next(iter(features.values()))):
        scale = np.concatenate(list(features.values())).std(axis=0) + 1e-6
        features = {name: x / scale for name, x in features.items()}
    probe = probe_for(examples.dataset)
    sets = {name: (features[name], probe.y[labelled[name]]) for name in labelled}
    return [_cost(name, sets, probe) for name in sets]


def _cost(name: str, sets: Mapping[str, tuple[Any, np.ndarray]], probe: Probe) -> ShiftCost:
    """Score one domain inside and from the others."""
    x, y = sets[name]
    others = [pair for other, pair in sets.items() if other != name]
    fold = fold_numbers(len(y), len(sets))
    inside, outside = np.zeros_like(y), np.zeros_like(y)
    for number in range(fold.max() + 1):
        test, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        share = -(-len(train) // len(others))  # rows per other domain, rounded up
        sample = [_rotated(pair, share, number * share) for pair in others]
        inside[test] = probe.predictions([(x[train], y[train])], x[test])
        outside[test] = probe.predictions(sample, x[test])
    folds = probe.fold_gains(inside, outside, y, fold)
    predicted = {"inside": inside, "outside": outside, "everything": probe.predictions(others, x)}
    scores = {key: probe.score(values, y) for key, values in (predicted | {"majority": probe.constant(y)}).items()}
    error = summarise(folds).stderr or 0.0
    return ShiftCost(name, **scores, error=error, scored=len(y), folds=folds, metric=probe.metric, lower=probe.lower)


def _rotated(pair: tuple[Any, np.ndarray], count: int, start: int) -> tuple[Any, np.ndarray]:
    """Return up to `count` rows of a domain from `start` on, so that every fold trains on other rows if it can."""
    x, y = pair
    rows = (start + np.arange(min(count, len(y)))) % len(y)
    return x[rows], y[rows]


@dataclass(frozen=True)
class Compared:
    """Accuracy per domain of one configuration of the comparison."""

    label: str
    role: str  # choice, baseline or simple
    scores: dict[str, float]


def headroom_grid(costs: Sequence[ShiftCost], compared: Sequence[Compared], rows: int) -> Grid:
    """Score of a linear probe inside and outside each domain."""
    metric = costs[0].metric
    gap, constant, meaning = {
        "rmse": ("others minus inside", "constant", "constant predicts the mean of the domain"),
        "micro_f1": ("inside minus others", "constant", "constant predicts the labels that most rows have"),
    }.get(metric, ("inside minus others", "majority", "majority predicts the most frequent label"))
    about = (
        f"{measured(metric)} by {FOLDS}-fold cross-validation, up to {rows:,} rows per domain "
        "without duplicates: trained on the rest of the domain (inside), on the same number of rows of the other "
        f"domains (others), and on all their rows (all others). Headroom is {gap} ± its standard error "
        f"over folds; {meaning}."
    )
    if compared:
        about += " Columns of compare: its test accuracy on all rows of the domain."
    lines = []
    for cost in costs:
        room: Cell = (f"{100 * cost.cost:.1f} ± {100 * cost.error:.1f}", cost.cost)
        inside, outside, everything, majority = map(
            share_cell, (cost.inside, cost.outside, cost.everything, cost.majority)
        )
        others = [share_cell(each.scores.get(cost.domain)) for each in compared]
        lines.append((cost.domain, [inside, outside, room, everything, *others, majority, number_cell(cost.scored)]))
    beside = (f"compare: {each.label}" for each in compared)
    names = ("domain", "inside", "others", "headroom", "all others", *beside, constant, "scored")
    return Grid("Headroom", about, names, lines)


def measured(metric: str, model: str = "linear") -> str:
    """Describe the score of a probe."""
    if metric == "rmse":
        return "RMSE of a ridge regression in percent of the standard deviation of the label"
    if metric == "micro_f1":
        return f"Micro-averaged F1 in percent of a {model} classifier per label (at most {MAX_LABELS} labels)"
    return f"Accuracy in percent of a {model} classifier"


def compared_sentence(costs: Sequence[ShiftCost], compared: Sequence[Compared]) -> str:
    """Put the average of the linear probe next to those of the comparison; empty without both."""
    domains = [cost.domain for cost in costs if all(cost.domain in each.scores for each in compared)]
    if not compared or not domains:
        return ""
    probe = 100 * fmean(cost.everything for cost in costs if cost.domain in domains)
    scores = [
        f"{each.label} {100 * fmean(each.scores[domain] for domain in domains):.1f}"
        + (" (the choice)" if each.role == "choice" else "")
        for each in compared
    ]
    return (
        f"Held-out accuracy of the linear probe is {probe:.1f}; compare measured {', '.join(scores)} on the same data. "
        "The probe is trained and scored on a sample of rows without duplicates."
    )


def read_compared(folder: Path | None, dataset: Dataset) -> list[Compared]:
    """Return the choice, ERM and the best simple baseline of a comparison on exactly this data; empty without one."""
    if folder is None or not (folder / "records").is_dir():
        return []
    try:
        records = [r for r in load(folder) if r.spec.get("plan") in HELD_OUT]
    except BadInput:  # damaged records are the concern of `report`
        return []
    records = [r for r in records if r.spec.get("fingerprint") == dataset.fingerprint and _has_metric(r)]
    table = {row.label: row for row in tabulate(records, Probe.metric).rows if row.average is not None}
    decision = decide(records, str(records[0].spec["metric"])) if records else None
    roles: dict[str, str] = {}
    if decision is not None and decision.label in table:
        roles[decision.label] = "choice"
    for row in table.values():
        if row.baseline:
            roles.setdefault(row.label, "baseline")
    simple = {label: row.average.mean for label, row in table.items() if row.simple and row.average is not None}
    informed = [label for label in simple if label not in CONSTANT]
    if informed:
        roles.setdefault(max(informed, key=lambda label: simple[label]), "simple")
    return [
        Compared(label, role, {domain: cell.mean for domain, cell in table[label].cells.items()})
        for label, role in roles.items()
    ]


def _has_metric(record: RunRecord) -> bool:
    return bool(record.stages) and all(Probe.metric in scores for scores in record.stages[-1]["test"].values())

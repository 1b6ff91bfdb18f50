"""Tables of docs/studies/tables.md: heart disease and cars, with one domain left out, from the records of `compare`.

    holdfast compare heart-disease --data-dir DIR --methods erm --seeds 5 --out runs/heart-disease
    holdfast compare cars --data-dir DIR --methods erm --seeds 5 --out runs/cars

The folders `records` are packed as results/tables/NAME.jsonl.gz; NAME-unshrunk.jsonl.gz has the stacks of the same
runs with weights that are not drawn to equal ones. Scores are means over targets per seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from holdfast.record import LOWER_IS_BETTER
from holdfast.stats.statistics import holm, interval, paired_t
from studies.tables import header, records

DEFAULT, NETWORK, UNSHRUNK = "stack", "erm", "unshrunk"
ROWS = {  # method -> name on the page
    "majority": "most frequent class", "mean": "mean", "logistic": "logistic regression", "ridge": "ridge regression",
    "boosting": "HistGradientBoosting", NETWORK: "network", UNSHRUNK: "stack, weights not shrunk",
    DEFAULT: "default (stack)",
    "ensemble(stack)": "default, mean of 5 seeds",
}  # fmt: skip
OPPONENTS = ("logistic", "ridge", "boosting", NETWORK, UNSHRUNK)
Scores = dict[str, dict[str, dict[int, float]]]  # method -> target -> seed -> score


@dataclass(frozen=True)
class TableSet:
    """A data set of the study, its metric and the factor and digits of its scores."""

    title: str
    metric: str
    factor: float
    digits: int

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}"

    def gap(self, values: Sequence[float]) -> str:
        """Format a mean with its 95% interval."""
        bounds, digits = interval(values), self.digits + 1
        around = "" if bounds is None else f" ({bounds[0]:+.{digits}f} to {bounds[1]:+.{digits}f})"
        return f"{fmean(values):+.{digits}f}{around}"


SETS = {
    "heart-disease": TableSet("heart disease, accuracy in %", "accuracy", 100.0, 1),
    "cars": TableSet("cars, RMSE in miles per gallon", "rmse", 1.0, 2),
}


def scores_of(name: str) -> Scores:
    """Return the test scores of all rows of a data set; an average over seeds has the seed 0."""
    about, scores = SETS[name], Scores()
    rows = [(str(record.spec["method"]), record) for record in records(f"tables/{name}")]
    rows += [(UNSHRUNK, record) for record in records(f"tables/{name}-unshrunk")]
    for row, record in rows:
        for target, values in record.stages[-1]["test"].items():
            seeds = scores.setdefault(row, {}).setdefault(target, {})
            seeds[int(record.spec.get("seed", 0))] = about.factor * float(values[about.metric])
    return scores


def means(scores: Mapping[str, Mapping[int, float]]) -> list[float]:
    """Return the mean over targets per seed."""
    seeds = sorted(set.intersection(*(set(each) for each in scores.values())))
    return [fmean(each[seed] for each in scores.values()) for seed in seeds]


def result_table(name: str) -> list[str]:
    """Return one line per row: score per target, their mean, and the worst target."""
    about, scores = SETS[name], scores_of(name)
    targets = sorted(next(iter(scores.values())))
    worst = max if about.metric in LOWER_IS_BETTER else min
    lines = header(about.title, *targets, "mean", "worst")
    for method in (method for method in ROWS if method in scores):
        each = [fmean(scores[method][target].values()) for target in targets]
        cells = [about.shown(value) for value in [*each, fmean(means(scores[method])), worst(each)]]
        lines.append(f"| {' | '.join([ROWS[method], *cells])} |")
    return lines


def difference_table() -> list[str]:
    """Return one line per data set and opponent: paired difference of the default, with Holm's correction."""
    cells, ps = [], []
    for name, about in SETS.items():
        scores = scores_of(name)
        for other in (other for other in OPPONENTS if other in scores):
            ours, theirs = means(scores[DEFAULT]), means(scores[other])
            test = paired_t(ours, theirs)
            gains = [a - b for a, b in zip(ours, theirs, strict=True)]
            cells.append([about.title, ROWS[other], str(len(gains)), about.gap(gains)])
            ps.append(test.p)
    lines = header("data", "default against", "seeds", "difference", "p, Holm")
    for each, p in zip(cells, holm(ps), strict=True):
        lines.append(f"| {' | '.join([*each, '-' if p is None else f'{p:.4f}'])} |")
    return lines


def worse_than(name: str) -> list[str]:
    """Return the rows whose paired interval shows that they are better than the default."""
    scores, sign = scores_of(name), -1 if SETS[name].metric in LOWER_IS_BETTER else 1
    better = []
    for other in (other for other in OPPONENTS if other in scores):
        pairs = zip(means(scores[DEFAULT]), means(scores[other]), strict=True)
        bounds = interval([sign * (a - b) for a, b in pairs])
        if bounds is not None and bounds[1] < 0:
            better.append(other)
    return better


TABLES: dict[str, Callable[[], list[str]]] = {
    **{name: partial(result_table, name) for name in SETS},
    "differences": difference_table,
}

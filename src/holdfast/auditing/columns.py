"""Audit per column of a table: shift between domains, drift of missing values, and leakage of the label.

Each domain is compared with all others. Shapes: n rows, k domains, c classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import kolmogorov

from holdfast.auditing.examples import Examples
from holdfast.auditing.headroom import FOLDS
from holdfast.auditing.probe import probe_for
from holdfast.auditing.shift import LEVEL, MIN_ROWS, chi_square
from holdfast.data.copies import label_copies, table_columns
from holdfast.stats.statistics import holm

EXPECTED = 5  # rows per category and side for a chi-square test; rarer categories are merged
BINS = 64  # of a number column from which the label is predicted, at most
MAX_COUNTS = 20_000_000  # entries of a table of counts, above which the label is not predicted from a column
LEAK = 0.95  # share of the label that one column explains from which it is suspicious


@dataclass(frozen=True)
class Contrast:
    """Difference of the domain that differs most from all others."""

    domain: str
    distance: float  # 0 for equal distributions, 1 if they do not overlap
    p: float  # Holm-corrected over all columns and domains
    inside: float | None = None  # share of missing values in the domain
    outside: float | None = None  # and in the others

    @property
    def real(self) -> bool:
        return self.p < LEVEL


@dataclass(frozen=True)
class ColumnFacts:
    """Findings on one column; None where nothing could be measured."""

    column: str
    kind: str
    shift: Contrast | None  # Kolmogorov-Smirnov distance of numbers, total variation distance of categories
    missing: float  # share of rows
    drift: Contrast | None  # of missing values
    explained: float | None  # share of the label that the column alone explains, on held-out rows
    copy: bool  # whether it is the label under another name

    @property
    def leaks(self) -> bool:
        """Whether the column alone predicts the label suspiciously well."""
        return self.copy or (self.explained is not None and self.explained >= LEAK)


def column_facts(examples: Examples, rows: Mapping[str, np.ndarray]) -> list[ColumnFacts]:
    """Return findings per column from these rows per domain; empty if examples have no columns."""
    dataset = examples.dataset
    if not examples.columns:
        return []
    chosen = np.concatenate(list(rows.values()))
    if not len(chosen):
        return []
    domain = np.repeat(np.arange(len(rows)), [len(each) for each in rows.values()])
    labelled = dataset.y[chosen] >= 0
    relation = _Relation(probe_for(dataset).y[chosen[labelled]]) if labelled.any() else None
    copies, facts = set(label_copies(dataset)), []
    for name, kind, values in table_columns(dataset.raw.take(chosen, size=1), dataset.columns):
        missing = values < 0 if kind == "category" else np.isnan(values)
        codes = _bins(values, missing, categories=kind == "category")
        contrast = _category_contrast if kind == "category" else _number_contrast
        facts.append(ColumnFacts(
            name, kind, contrast(values[~missing], domain[~missing], list(rows)), float(missing.mean()),
            _missing_contrast(missing, domain, list(rows)),
            None if relation is None else relation.explained(codes[labelled], values[labelled], kind),
            name in copies,
        ))  # fmt: skip
    corrected = ([*_corrected([getattr(fact, key) for fact in facts], len(rows))] for key in ("shift", "drift"))
    return [
        replace(fact, shift=shift, drift=drift) for fact, shift, drift in zip(facts, *corrected, strict=True)
    ]  # fmt: skip


def _corrected(contrasts: Sequence[Contrast | None], domains: int) -> Iterator[Contrast | None]:
    """Correct the p values, each of which is the smallest of one test per domain."""
    tests = max(1, domains if domains > 2 else 1)
    ps = iter(holm([min(1.0, tests * contrast.p) for contrast in contrasts if contrast is not None]))
    for contrast in contrasts:
        yield None if contrast is None else replace(contrast, p=float(next(ps) or 0.0))


def _largest(contrasts: Sequence[Contrast]) -> Contrast | None:
    """Return the largest difference, with the smallest p value of all domains."""
    if not contrasts:
        return None
    best = max(contrasts, key=lambda contrast: contrast.distance)
    return replace(best, p=min(contrast.p for contrast in contrasts))


def _number_contrast(values: np.ndarray, domain: np.ndarray, names: Sequence[str]) -> Contrast | None:
    """Compare numbers (n,) of each domain with the others by the Kolmogorov-Smirnov test."""
    order = np.argsort(values, kind="stable")
    ordered, owner, n = values[order], domain[order], len(values)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if n else np.zeros(0, dtype=int)
    contrasts = []
    for index, name in enumerate(names):
        inside = np.cumsum(owner == index)
        size = int(inside[-1]) if n else 0
        if min(size, n - size) < MIN_ROWS:
            continue
        shares = inside[ends] / size, (ends + 1 - inside[ends]) / (n - size)
        distance = float(np.abs(shares[0] - shares[1]).max())
        contrasts.append(Contrast(name, distance, float(kolmogorov(np.sqrt(size * (n - size) / n) * distance))))
    return _largest(contrasts)


def _category_contrast(codes: np.ndarray, domain: np.ndarray, names: Sequence[str]) -> Contrast | None:
    """Compare categories (n,) of each domain with the others by the chi-square test."""
    if not len(codes):
        return None
    distinct, codes = np.unique(codes, return_inverse=True)
    table = np.bincount(domain * len(distinct) + codes.reshape(-1), minlength=len(names) * len(distinct))
    counts = table.reshape(len(names), -1)
    contrasts = []
    for index, name in enumerate(names):
        inside, outside = counts[index], counts.sum(axis=0) - counts[index]
        if min(inside.sum(), outside.sum()) < MIN_ROWS:
            continue
        share = min(inside.sum(), outside.sum()) / len(codes)
        rare = (inside + outside) * share < EXPECTED
        two = np.stack([np.append(side[~rare], side[rare].sum()) for side in (inside, outside)])
        shares = two / two.sum(axis=1, keepdims=True)
        contrasts.append(Contrast(name, float(np.abs(shares[0] - shares[1]).sum() / 2), chi_square(two)))
    return _largest(contrasts)


def _missing_contrast(missing: np.ndarray, domain: np.ndarray, names: Sequence[str]) -> Contrast | None:
    """Compare the share of missing values of each domain with that of the others; None without missing values."""
    if not missing.any():
        return None
    contrasts = []
    for index, name in enumerate(names):
        sides = [missing[domain == index], missing[domain != index]]
        if min(map(len, sides)) < MIN_ROWS:
            continue
        counts = np.asarray([[side.sum(), len(side) - side.sum()] for side in sides])
        inside, outside = (float(side.mean()) for side in sides)
        contrasts.append(Contrast(name, abs(inside - outside), chi_square(counts), inside, outside))
    return _largest(contrasts)


def _bins(values: np.ndarray, missing: np.ndarray, *, categories: bool) -> np.ndarray:
    """Return groups (n,) of equal categories or similar numbers; missing values are the group 0."""
    filled = values[~missing]
    groups = np.zeros(len(values), dtype=np.int64)
    distinct, inverse = np.unique(filled, return_inverse=True)
    if not categories and len(distinct) > BINS:
        inverse = np.searchsorted(np.quantile(filled, np.linspace(0, 1, BINS + 1)[1:-1]), filled, side="right")
    groups[~missing] = 1 + inverse.reshape(-1)
    return groups


class _Relation:
    """Targets (n,) or (n, c) of labelled rows, and how much of them a column explains."""

    def __init__(self, y: np.ndarray) -> None:
        self.y, self.fold = y, np.arange(len(y)) % FOLDS
        self.fold = np.random.default_rng(0).permutation(self.fold)

    def explained(self, groups: np.ndarray, values: np.ndarray, kind: str) -> float | None:
        """Return the share of the errors of a constant prediction that the groups (n,) remove on held-out rows."""
        if len(self.y) < MIN_ROWS * 2:
            return None
        if self.y.ndim == 2:
            shares = [self._explained_classes(groups, labels) for labels in self.y.T]
            return max((share for share in shares if share is not None), default=None)
        if self.y.dtype.kind != "f":
            return self._explained_classes(groups, self.y)
        return self._explained_numbers(groups, None if kind == "category" else values)

    def _explained_classes(self, groups: np.ndarray, y: np.ndarray) -> float | None:
        classes, bins = int(y.max()) + 1, int(groups.max()) + 1
        constant = float(np.bincount(y).max() / len(y))
        if constant == 1 or FOLDS * bins * classes > MAX_COUNTS:
            return None
        flat = (self.fold * bins + groups) * classes + y
        counts = np.bincount(flat, minlength=FOLDS * bins * classes).reshape(FOLDS, bins, classes)
        training = counts.sum(axis=0) - counts  # (folds, bins, classes)
        usual = training.sum(axis=1).argmax(axis=1)  # (folds,)
        best = np.where(training.any(axis=2), training.argmax(axis=2), usual[:, None])
        accuracy = float((best[self.fold, groups] == y).mean())
        return max(0.0, (accuracy - constant) / (1 - constant))

    def _explained_numbers(self, groups: np.ndarray, values: np.ndarray | None) -> float | None:
        total = float(((self.y - self.y.mean()) ** 2).sum())
        if total == 0:
            return None
        bins = int(groups.max()) + 1
        cells = self.fold * bins + groups
        sums = np.bincount(cells, weights=self.y, minlength=FOLDS * bins).reshape(FOLDS, bins)
        counts = np.bincount(cells, minlength=FOLDS * bins).reshape(FOLDS, bins)
        sums, counts = sums.sum(axis=0) - sums, counts.sum(axis=0) - counts
        usual = sums.sum(axis=1, keepdims=True) / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), usual)
        explained = 1 - float(((means[self.fold, groups] - self.y) ** 2).sum()) / total
        return max(0.0, explained, 0.0 if values is None else _squared_correlation(values, self.y))


def _squared_correlation(values: np.ndarray, y: np.ndarray) -> float:
    """Return the share of the variance of y that is linear in the values; 0 if many of these are missing."""
    filled = np.isfinite(values)
    x, y = values[filled].astype(np.float64), y[filled]
    if filled.mean() < LEAK or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1] ** 2)

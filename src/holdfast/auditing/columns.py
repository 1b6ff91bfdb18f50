"""Audit per column of a table: shift between domains, drift of missing values, and leakage of the label.

Each domain is compared with all others. Shapes: n rows, k domains, c classes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.auditing.examples import Examples
from holdfast.auditing.headroom import FOLDS
from holdfast.auditing.probe import probe_for
from holdfast.auditing.shift import LEVEL, MIN_ROWS
from holdfast.data.copies import label_copies, table_columns
from holdfast.report.sections import EMPTY, Cell, share_cell, word_cell
from holdfast.report.terminal import Grid
from holdfast.stats.formatting import MAX_NAMES, listed
from holdfast.stats.statistics import holm
from holdfast.stats.two_sample import chi_square, ks_test_of_counts, merge_rare, total_variation

BINS = 64  # of a number column from which the label is predicted, at most
MAX_COUNTS = 20_000_000  # entries of a table of counts, above which the label is not predicted from a column
Compare = Callable[[np.ndarray], tuple[float, ...]]  # counts (2, c) per value -> distance, p value, and shares
MAX_COLUMNS = 20  # columns of the data that are listed
NOTABLE = 0.1  # smallest distance of a column between domains that a sentence mentions
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
    # rows of all domains (n,) one domain after another, and the number of the domain of each
    chosen = np.concatenate(list(rows.values()))
    if not len(chosen):
        return []
    domain = np.repeat(np.arange(len(rows)), [len(each) for each in rows.values()])
    # leakage needs labels; shift and missing values are measured on all rows
    labelled = dataset.y[chosen] >= 0
    relation = _Relation(probe_for(dataset).y[chosen[labelled]]) if labelled.any() else None
    copies, facts = set(label_copies(dataset)), []
    for name, kind, values in table_columns(dataset.raw.take(chosen, size=1), dataset.columns):
        # values that are missing are left out of the shift, since their drift is a finding of its own
        missing = values < 0 if kind == "category" else np.isnan(values)
        codes = _bins(values, missing, categories=kind == "category")
        compare = _categories if kind == "category" else ks_test_of_counts
        facts.append(ColumnFacts(
            name, kind, _contrast(values[~missing], domain[~missing], list(rows), compare), float(missing.mean()),
            _contrast(missing, domain, list(rows), _gaps) if missing.any() else None,
            None if relation is None else relation.explained(codes[labelled], values[labelled], kind),
            name in copies,
        ))  # fmt: skip
    # all columns are known only now; shift and drift are corrected as two families of tests
    corrected = ([*_corrected([getattr(fact, key) for fact in facts], len(rows))] for key in ("shift", "drift"))
    return [
        replace(fact, shift=shift, drift=drift) for fact, shift, drift in zip(facts, *corrected, strict=True)
    ]  # fmt: skip


def _corrected(contrasts: Sequence[Contrast | None], domains: int) -> Iterator[Contrast | None]:
    """Correct the p values, each of which is the smallest of one test per domain."""
    # Bonferroni over the domains of a column, then Holm over columns; two domains have one contrast in common
    tests = max(1, domains if domains > 2 else 1)
    ps = iter(holm([min(1.0, tests * contrast.p) for contrast in contrasts if contrast is not None]))
    for contrast in contrasts:
        yield None if contrast is None else replace(contrast, p=float(next(ps) or 0.0))


def _contrast(values: np.ndarray, domain: np.ndarray, names: Sequence[str], compare: Compare) -> Contrast | None:
    """Return the largest difference of a domain from the others in their values (n,), with the smallest p value."""
    if not len(values):
        return None
    distinct, codes = np.unique(values, return_inverse=True)
    # counts (k, v) per domain and distinct value in one pass; values are sorted, as the test of numbers needs
    table = np.bincount(domain * len(distinct) + codes.reshape(-1), minlength=len(names) * len(distinct))
    counts = table.reshape(len(names), -1)
    contrasts = []
    for name, inside in zip(names, counts, strict=True):
        two = np.stack([inside, counts.sum(axis=0) - inside])
        if two.sum(axis=1).min() >= MIN_ROWS:
            contrasts.append(Contrast(name, *compare(two)))
    if not contrasts:
        return None
    # the domain that differs most is named, but the p value is the smallest of all, which `_corrected` expects
    best = max(contrasts, key=lambda contrast: contrast.distance)
    return replace(best, p=min(contrast.p for contrast in contrasts))


def _categories(two: np.ndarray) -> tuple[float, float]:
    """Compare counts (2, c) of categories by the chi-square test."""
    merged = merge_rare(two)
    return total_variation(merged), chi_square(merged)


def _gaps(two: np.ndarray) -> tuple[float, float, float, float]:
    """Compare counts (2, c) of known and missing values, the last ones, by the chi-square test."""
    inside, outside = (two[:, -1] / two.sum(axis=1)).tolist()
    return abs(inside - outside), chi_square(two[:, ::-1]), inside, outside


def _bins(values: np.ndarray, missing: np.ndarray, *, categories: bool) -> np.ndarray:
    """Return groups (n,) of equal categories or similar numbers; missing values are the group 0."""
    filled = values[~missing]
    groups = np.zeros(len(values), dtype=np.int64)
    distinct, inverse = np.unique(filled, return_inverse=True)
    # inner quantiles as edges: groups of similar size, each with enough rows to learn a prediction from
    if not categories and len(distinct) > BINS:
        inverse = np.searchsorted(np.quantile(filled, np.linspace(0, 1, BINS + 1)[1:-1]), filled, side="right")
    groups[~missing] = 1 + inverse.reshape(-1)
    return groups


class _Relation:
    """Targets (n,) or (n, c) of labelled rows, and how much of them a column explains."""

    def __init__(self, y: np.ndarray) -> None:
        self.y, self.fold = y, np.arange(len(y)) % FOLDS
        # rows come one domain after another, so folds of random rows, of equal size, with a fixed seed
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
        training = _outside((self.fold * bins + groups) * classes + y, (FOLDS, bins, classes))
        # each group predicts its most frequent class; a group without training rows that of all rows
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
        sums, counts = _outside(cells, (FOLDS, bins), self.y), _outside(cells, (FOLDS, bins))
        usual = sums.sum(axis=1, keepdims=True) / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), usual)
        # groups lose differences inside them, so a copy of the target in other units is recognised by its correlation
        explained = 1 - float(((means[self.fold, groups] - self.y) ** 2).sum()) / total
        return max(0.0, explained, 0.0 if values is None else _squared_correlation(values, self.y))


def _outside(cells: np.ndarray, shape: tuple[int, ...], weights: np.ndarray | None = None) -> np.ndarray:
    """Return the counts, or sums of weights, per cell over the rows outside each fold, the first axis."""
    # cross-validation from one table: subtracting a fold leaves the counts of its training rows
    table = np.bincount(cells, weights=weights, minlength=math.prod(shape)).reshape(shape)
    return table.sum(axis=0) - table


def _squared_correlation(values: np.ndarray, y: np.ndarray) -> float:
    """Return the share of the variance of y that is linear in the values; 0 if many of these are missing."""
    filled = np.isfinite(values)
    x, y = values[filled].astype(np.float64), y[filled]
    if filled.mean() < LEAK or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def column_grid(columns: Sequence[ColumnFacts]) -> Grid:
    """Shift, missing values and relation to the label per column, the most suspicious first."""

    def rank(column: ColumnFacts) -> tuple[bool, bool, float]:
        distances = [each.distance for each in (column.shift, column.drift) if each is not None and each.real]
        return not column.copy, not column.leaks, -max(distances, default=0.0)

    def contrast(each: Contrast | None) -> list[Cell]:
        if each is None:
            return [EMPTY, EMPTY]
        return [(f"{each.distance:.2f}{'*' if each.real else ''}", each.distance), word_cell(each.domain)]

    about = (
        "Shift: distance of the domain that differs most from the others (Kolmogorov-Smirnov for numbers, total "
        "variation for categories). Missing: percentage of the rows, then the difference of its share in the domain "
        "that differs most. * is significant (Kolmogorov-Smirnov or chi-square test, p < 0.01 after Holm's "
        "correction). Label: percentage of the errors of a constant prediction, or of the variance of a number, that "
        'this column alone removes on held-out rows; "copy" is the label under another name.'
    )
    lines = []
    for column in sorted(columns, key=rank)[:MAX_COLUMNS]:
        label: Cell = ("copy", 1.0) if column.copy else share_cell(column.explained)
        cells = [
            word_cell(column.kind),
            *contrast(column.shift),
            share_cell(column.missing),
            *contrast(column.drift),
            label,
        ]
        lines.append((column.column, cells))
    if len(columns) > MAX_COLUMNS:
        about += f" {len(columns) - MAX_COLUMNS:,} more columns are in the JSON output."
    names = ("column", "kind", "shift", "in", "missing", "drift", "of", "label")
    return Grid("Columns", about, names, lines)


def column_advice(columns: Sequence[ColumnFacts]) -> list[str]:
    """Return what is suspicious about single columns: leakage of the label, then drift of values and missing ones."""
    advice = []
    copies = [column.column for column in columns if column.copy]
    if copies:
        which = "is the label under another name" if len(copies) == 1 else "are the label under other names"
        fix = f"leave {'it' if len(copies) == 1 else 'them'} out with --column ignore={','.join(copies[:MAX_NAMES])}"
        advice.append(f"{listed(list(map(repr, copies)))} {which}: {fix}.")
    leaking = [column for column in columns if column.leaks and not column.copy]
    for column in sorted(leaking, key=lambda each: -(each.explained or 0.0))[:MAX_NAMES]:
        fix = f"check that it is known before the label, or leave it out with --column ignore={column.column}"
        advice.append(f"'{column.column}' alone explains {column.explained or 0.0:.0%} of the label: {fix}.")
    shifted = [(c.column, c.shift) for c in columns if c.shift and c.shift.real and c.shift.distance >= NOTABLE]
    if shifted:
        shifted.sort(key=lambda pair: -pair[1].distance)
        listing = listed([f"'{name}' ({shift.distance:.2f} in {shift.domain})" for name, shift in shifted])
        advice.append(f"Columns with the largest shift of a domain from the others: {listing}.")
    drifting = [(c.column, c.drift) for c in columns if c.drift and c.drift.real and c.drift.distance >= NOTABLE]
    for name, drift in sorted(drifting, key=lambda pair: -pair[1].distance)[:MAX_NAMES]:
        shares = (
            f"{drift.inside or 0.0:.0%} of the rows of {drift.domain} and in {drift.outside or 0.0:.0%} of the others"
        )
        advice.append(f"'{name}' is missing in {shares}: a model may use the gap to recognise the domain.")
    return advice

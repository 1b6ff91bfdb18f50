"""Counts of an audit: duplicates per domain, and rows that leak between splits (n rows, k domains)."""

from dataclasses import dataclass

import numpy as np

from holdfast.auditing.duplicates import KEPT, REASONS, Choice, Duplicates
from holdfast.auditing.examples import Examples
from holdfast.data.dataset import SPLITS, Dataset

LEAKS = (("valid", "train"), ("test", "train"), ("test", "valid"))
SHOWN = 5  # examples per kind of duplicate


@dataclass(frozen=True)
class DomainFacts:
    """Counts of one domain; a row may count in several fields, which are keys of the JSON output."""

    domain: str
    examples: int
    splits: dict[str, int]
    labels: dict[str, int]
    again: int  # rows whose input occurs earlier in the domain
    elsewhere: int  # rows whose input occurs in another domain
    near: int  # rows with a near duplicate in the domain
    near_elsewhere: int  # rows with a near duplicate, but no equal row, in another domain
    conflicts: int  # rows whose input occurs with another target
    kept: int  # rows of a clean table
    numbers: dict[str, float] | None = None  # statistics of numeric labels


@dataclass(frozen=True)
class Leak:
    """Number of rows of one split whose input occurs in another split."""

    split: str
    also_in: str
    examples: int
    equal: int
    near: int


@dataclass(frozen=True)
class Example:
    """A group of duplicate rows, counted from 1 in file order."""

    what: str  # equal, near or conflict
    rows: tuple[int, ...]
    domains: tuple[str, ...]
    labels: tuple[str, ...]
    text: str


def domain_facts(
    dataset: Dataset, duplicates: Duplicates, choice: Choice, conflict: np.ndarray, names: tuple[str, ...],
    counts: np.ndarray,
) -> list[DomainFacts]:  # fmt: skip
    k = len(dataset.domains)
    equal, near = duplicates.presence(dataset.domain, k)
    repeated, near_within = duplicates.repeated(dataset.domain), duplicates.near_within(dataset.domain, k)
    facts = []
    for index, name in enumerate(dataset.domains):
        rows = np.flatnonzero(dataset.domain == index)
        others = np.arange(k) != index
        splits = np.full(len(rows), -1) if dataset.split is None else dataset.split[rows]
        elsewhere = equal[rows][:, others].any(axis=1)
        by_split = {split: int((splits == i).sum()) for i, split in enumerate(SPLITS)}
        near_elsewhere = near[rows][:, others].any(axis=1) & ~elsewhere
        numbers = (repeated[rows], elsewhere, near_within[rows], near_elsewhere, conflict[rows])
        facts.append(DomainFacts(
            name, len(rows), {split: count for split, count in by_split.items() if count},
            dict(zip(names, counts[index].tolist(), strict=True)), *(int(mask.sum()) for mask in numbers),
            kept=int((choice.reason[rows] == KEPT).sum()), numbers=_number_facts(dataset, rows),
        ))  # fmt: skip
    return facts


def _number_facts(dataset: Dataset, rows: np.ndarray) -> dict[str, float] | None:
    """Return statistics of the numeric labels of some rows; None for other labels, or without any."""
    if dataset.targets is None or dataset.targets.ndim == 2:
        return None
    values = dataset.targets[rows][np.isfinite(dataset.targets[rows])]
    if not len(values):
        return None
    statistics = {"mean": np.mean, "sd": np.std, "min": np.min, "median": np.median, "max": np.max}
    return {name: float(function(values)) for name, function in statistics.items()}


def leaks(dataset: Dataset, duplicates: Duplicates) -> list[Leak]:
    """Count validation and test rows that also occur in a split used for training or selection."""
    if dataset.split is None:
        return []
    equal, near = duplicates.presence(dataset.split, len(SPLITS))
    counted = []
    for split, other in LEAKS:
        rows, column = np.flatnonzero(dataset.split == SPLITS.index(split)), SPLITS.index(other)
        if len(rows) and (dataset.split == column).any():
            sums = int(equal[rows, column].sum()), int(near[rows, column].sum())
            counted.append(Leak(split, other, len(rows), *sums))
    return counted


def overlaps(dataset: Dataset, duplicates: Duplicates) -> dict[str, dict[str, int]]:
    """Count the rows of each domain that occur, exactly or nearly, in each other domain."""
    equal, near = duplicates.presence(dataset.domain, len(dataset.domains))
    either = equal | near
    return {
        one: {other: int(either[dataset.domain == a, b].sum()) for b, other in enumerate(dataset.domains) if b != a}
        for a, one in enumerate(dataset.domains)
    }


def examples_of(examples: Examples, duplicates: Duplicates, conflict: np.ndarray) -> list[Example]:
    """Return a few examples per kind: the largest conflicts and groups of equal rows, and the most similar pairs."""
    sizes = np.bincount(duplicates.group)
    in_conflict = np.zeros(len(sizes), dtype=bool)
    in_conflict[duplicates.group[conflict]] = True
    kinds = {"conflict": np.flatnonzero(in_conflict), "equal": np.flatnonzero((sizes > 1) & ~in_conflict)}
    shown = []
    for what, groups in kinds.items():
        for group in groups[np.argsort(-sizes[groups], kind="stable")][:SHOWN]:
            shown.append(_example(examples, what, np.flatnonzero(duplicates.group == group)))
    for pair in duplicates.pairs[np.argsort(-duplicates.similarity, kind="stable")][:SHOWN]:
        shown.append(_example(examples, "near", duplicates.first[pair]))
    return shown


def _example(examples: Examples, what: str, rows: np.ndarray) -> Example:
    dataset = examples.dataset
    labels = tuple(dict.fromkeys(_label(dataset, row) for row in rows.tolist() if dataset.y[row] >= 0))
    domains = tuple(dict.fromkeys(dataset.domains[i] for i in dataset.domain[rows]))
    return Example(what, tuple((rows + 1).tolist()), domains, labels, examples.show(int(rows[0])))


def dropped(choice: Choice) -> list[dict[str, int | str]]:
    """Return every row a clean table omits, the reason, and the row it duplicates; counted from 1 in file order."""
    return [
        {"row": int(row) + 1, "reason": REASONS[choice.reason[row]], "of": int(choice.because[row]) + 1}
        for row in np.flatnonzero(choice.reason != KEPT)
    ]


def _label(dataset: Dataset, row: int) -> str:
    """Return the label of a row as shown to the user; numbers are shortened."""
    numbers = dataset.targets if dataset.targets is not None and dataset.targets.ndim == 1 else None
    return dataset.label_text(row) if numbers is None else f"{numbers[row]:g}"

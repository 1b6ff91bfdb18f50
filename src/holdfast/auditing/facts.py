"""Counts of an audit: duplicates per domain, and rows that leak between splits (n rows, k domains, c labels)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.auditing.duplicates import KEPT, REASONS, Choice, Duplicates
from holdfast.auditing.examples import Examples
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.report.sections import number_cell, share_cell, word_cell
from holdfast.report.terminal import Grid
from holdfast.stats.formatting import listed

LEAKS = (("valid", "train"), ("test", "train"), ("test", "valid"))
SHOWN = 5  # examples per kind of duplicate
MAX_LABELS = 12  # columns; further labels are summed
MAX_ROWS = 4  # row numbers per example


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
    """Count duplicates and labels per domain; `names` and `counts` (k, c) are those of the labels."""
    k = len(dataset.domains)
    equal, near = duplicates.presence(dataset.domain, k)
    equal[np.arange(len(dataset)), dataset.domain] = near[np.arange(len(dataset)), dataset.domain] = False
    elsewhere = equal.any(axis=1)
    masks = {
        "again": duplicates.repeated(dataset.domain),
        "elsewhere": elsewhere,
        "near": duplicates.near_within(dataset.domain, k),
        "near_elsewhere": near.any(axis=1) & ~elsewhere,
        "conflicts": conflict,
        "kept": choice.reason == KEPT,
    }
    facts = []
    for index, name in enumerate(dataset.domains):
        rows = np.flatnonzero(dataset.domain == index)
        by_split = Counter[int]() if dataset.split is None else Counter(dataset.split[rows].tolist())
        splits = {split: by_split[i] for i, split in enumerate(SPLITS) if by_split[i]}
        labels = dict(zip(names, counts[index].tolist(), strict=True))
        sums = {key: int(mask[rows].sum()) for key, mask in masks.items()}
        facts.append(DomainFacts(name, len(rows), splits, labels, **sums, numbers=_number_facts(dataset, rows)))
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


def domain_grid(facts: Sequence[DomainFacts], task: str) -> Grid:
    """Sizes, splits and label distribution per domain."""
    splits = list(dict.fromkeys(split for domain in facts for split in domain.splits))
    names = list(facts[0].labels)
    totals = {name: sum(domain.labels[name] for domain in facts) for name in names}
    common = sorted(names, key=lambda name: -totals[name])[:MAX_LABELS] if len(names) > MAX_LABELS else names
    rest = [name for name in names if name not in common]
    numbers = next((list(domain.numbers) for domain in facts if domain.numbers), [])
    lines = []
    for domain in facts:
        total = max(1, domain.examples if task == "multilabel" else sum(domain.labels.values()))
        cells = [number_cell(domain.examples), *(number_cell(domain.splits.get(split, 0)) for split in splits)]
        cells += [share_cell(domain.labels[name] / total) for name in common]
        cells += [share_cell(sum(domain.labels[name] for name in rest) / total)] if rest else []
        cells += [number_cell((domain.numbers or {}).get(name), ".4g") for name in numbers]
        lines.append((domain.domain, cells))
    columns = ("domain", "rows", *splits, *common, *([f"{len(rest)} more labels"] if rest else []), *numbers)
    about = "Labels in percent." if names else "Statistics of the label." if numbers else "There are no labels."
    if task == "multilabel":
        about = "Percentage of the rows that have a label."
    return Grid("Domains", about, columns, lines)


def duplicate_grid(facts: Sequence[DomainFacts], near: str) -> Grid:
    """Exact and near duplicates per domain."""
    keys = ("examples", "again", "elsewhere", "near", "near_elsewhere", "conflicts", "kept")
    about = (
        "Rows whose input occurs earlier in the domain (repeated) or in another domain (elsewhere); rows with a near "
        f"duplicate: {near}; rows whose input occurs with another label (conflict); rows of a clean table (clean)."
    )
    names = ("domain", "rows", "repeated", "elsewhere", "near", "near elsewhere", "conflict", "clean")
    counts = {domain.domain: [getattr(domain, key) for key in keys] for domain in facts}
    lines = [(name, list(map(number_cell, values))) for name, values in counts.items()]
    if len(facts) > 1:
        lines.append(("all", [number_cell(sum(values)) for values in zip(*counts.values(), strict=True)]))
    return Grid("Duplicates", about, names, lines)


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


def leak_grid(leaks: Sequence[Leak]) -> Grid:
    lines = [
        (f"{leak.split} in {leak.also_in}", list(map(number_cell, (leak.examples, leak.equal, leak.near))))
        for leak in leaks
    ]
    about = "Rows of one split whose input occurs in another split."
    return Grid("Leaks between splits", about, ("split", "rows", "equal", "near"), lines)


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


def example_grid(examples: Sequence[Example]) -> Grid:
    lines = []
    for example in examples:
        rows = listed(list(map(str, example.rows)), most=MAX_ROWS)
        domains, labels = (", ".join(names[:MAX_ROWS]) for names in (example.domains, example.labels))
        lines.append((rows, list(map(word_cell, (example.what, domains, labels, example.text)))))
    names = ("rows", "kind", "domains", "labels", "text")
    return Grid("Examples of duplicates", "Rows are counted from 1.", names, lines, words=True)


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

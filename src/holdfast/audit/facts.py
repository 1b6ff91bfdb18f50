"""What an audit counts: domains with their copies, and rows of one split that are in another.

n rows, k domains
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.audit.copies import KEPT, REASONS, Choice, Copies
from holdfast.audit.examples import Examples
from holdfast.data.dataset import SPLITS, Dataset

LEAKS = (("valid", "train"), ("test", "train"), ("test", "valid"))
SHOWN = 5  # of each kind of copies


@dataclass(frozen=True)
class DomainFacts:
    """One domain; a row may be counted in several columns."""

    domain: str
    examples: int
    splits: dict[str, int]
    labels: dict[str, int]
    again: int  # rows whose input is in the domain before
    elsewhere: int  # rows whose input is in another domain too
    near: int  # rows with a nearly equal one in the domain
    near_elsewhere: int  # rows with a nearly equal one in another domain, and no equal one there
    conflicts: int  # rows whose input occurs with another target
    kept: int


@dataclass(frozen=True)
class Leak:
    """Rows of one split whose input is in an earlier one."""

    split: str
    also_in: str
    examples: int
    equal: int
    near: int


@dataclass(frozen=True)
class Example:
    """Rows, counted from 1 in file order, that belong together, and what they say."""

    what: str  # equal, near or conflict
    rows: tuple[int, ...]
    domains: tuple[str, ...]
    labels: tuple[str, ...]
    text: str


def domain_facts(
    dataset: Dataset, copies: Copies, choice: Choice, conflict: np.ndarray, names: tuple[str, ...], counts: np.ndarray
) -> list[DomainFacts]:
    """A line for every domain."""
    k = len(dataset.domains)
    equal, near = copies.there(dataset.domain, k)
    twice, beside = copies.twice(dataset.domain), copies.near_inside(dataset.domain, k)
    found = []
    for at, name in enumerate(dataset.domains):
        rows = np.flatnonzero(dataset.domain == at)
        others = np.arange(k) != at
        splits = np.full(len(rows), -1) if dataset.split is None else dataset.split[rows]
        same = equal[rows][:, others].any(axis=1)
        found.append(
            DomainFacts(
                domain=name,
                examples=len(rows),
                splits={split: int((splits == i).sum()) for i, split in enumerate(SPLITS) if (splits == i).any()},
                labels={label: int(count) for label, count in zip(names, counts[at], strict=True)},
                again=int(twice[rows].sum()),
                elsewhere=int(same.sum()),
                near=int(beside[rows].sum()),
                near_elsewhere=int((near[rows][:, others].any(axis=1) & ~same).sum()),
                conflicts=int(conflict[rows].sum()),
                kept=int((choice.reason[rows] == KEPT).sum()),
            )
        )
    return found


def leaks(dataset: Dataset, copies: Copies) -> list[Leak]:
    """Validation and test rows that a model may have been trained on, or chosen by."""
    if dataset.split is None:
        return []
    equal, near = copies.there(dataset.split, len(SPLITS))
    found = []
    for split, other in LEAKS:
        rows, at = np.flatnonzero(dataset.split == SPLITS.index(split)), SPLITS.index(other)
        if len(rows) and (dataset.split == at).any():
            found.append(Leak(split, other, len(rows), int(equal[rows, at].sum()), int(near[rows, at].sum())))
    return found


def overlaps(dataset: Dataset, copies: Copies) -> dict[str, dict[str, int]]:
    """How many rows of a domain are, or nearly are, in each other domain."""
    k = len(dataset.domains)
    equal, near = copies.there(dataset.domain, k)
    either = equal | near
    return {
        one: {other: int(either[dataset.domain == a, b].sum()) for b, other in enumerate(dataset.domains) if b != a}
        for a, one in enumerate(dataset.domains)
    }


def shown(examples: Examples, copies: Copies, conflict: np.ndarray) -> list[Example]:
    """A few of each kind: the largest groups of equal rows, of conflicts, and the pairs most alike."""
    sizes = np.bincount(copies.group)
    odd = np.zeros(len(sizes), dtype=bool)
    odd[copies.group[conflict]] = True
    found = []
    for what, groups in (("conflict", np.flatnonzero(odd)), ("equal", np.flatnonzero((sizes > 1) & ~odd))):
        for group in groups[np.argsort(-sizes[groups], kind="stable")][:SHOWN]:
            found.append(_example(examples, what, np.flatnonzero(copies.group == group)))
    for pair in copies.pairs[np.argsort(-copies.likeness, kind="stable")][:SHOWN]:
        found.append(_example(examples, "near", copies.first[pair]))
    return found


def _example(examples: Examples, what: str, rows: np.ndarray) -> Example:
    dataset = examples.dataset
    labels = [dataset.classes[y] for y in dataset.y[rows] if y >= 0]
    domains = [dataset.domains[i] for i in dataset.domain[rows]]
    return Example(
        what,
        tuple(int(row) + 1 for row in rows),
        tuple(dict.fromkeys(domains)),
        tuple(dict.fromkeys(labels)),
        examples.show(int(rows[0])),
    )


def dropped(choice: Choice) -> list[dict[str, int | str]]:
    """Every row that a clean table lacks, why, and the row that it is a copy of; counted from 1 in file order."""
    return [
        {"row": int(row) + 1, "reason": REASONS[choice.reason[row]], "of": int(choice.because[row]) + 1}
        for row in choice.dropped()
    ]

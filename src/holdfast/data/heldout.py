"""Which examples a model was never trained on: their ids and hashes by domain, to find them again in other files.

n examples
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.data.domain import SPLITS, Dataset
from holdfast.data.join import Joined
from holdfast.data.splits import Part

TRAIN, TEST = SPLITS.index("train"), SPLITS.index("test")


@dataclass(frozen=True)
class HeldOut:
    """By domain, the ids of held-out examples and hashes of their content and label; the examples are not here."""

    ids: Mapping[str, Sequence[str]]
    hashes: Mapping[str, Sequence[str]]

    @staticmethod
    def of(dataset: Dataset, parts: Sequence[Part]) -> HeldOut:
        """Those of some parts of a data set."""
        named = {part.domain: [_id(dataset, row) for row in part.rows.tolist()] for part in parts}
        return HeldOut(named, {part.domain: row_hashes(dataset, part.rows) for part in parts})

    def joined(self, other: HeldOut) -> HeldOut:
        return HeldOut(_both(self.ids, other.ids), _both(self.hashes, other.hashes))

    def json(self) -> dict[str, Any]:
        return {name: {"ids": list(self.ids[name]), "hashes": list(self.hashes[name])} for name in self.hashes}

    @staticmethod
    def read(found: Mapping[str, Any]) -> HeldOut:
        """What `json` gave."""
        return HeldOut(
            {name: each["ids"] for name, each in found.items()}, {name: each["hashes"] for name, each in found.items()}
        )

    def marked(self, dataset: Dataset) -> Dataset:
        """A data set's rows of these domains: those that were held out marked test, the others train.

        A row is known by its hash, so its domain need not be told. A row that was not held out counts as one of its own
        domain, if that is one of these; in a file without domains, of the one whose held-out rows are in it. Others are
        left out, and so are copies of a held-out row beyond those that were held out.
        """
        domains = tuple(self.hashes)
        own = np.asarray([domains.index(name) if name in domains else -1 for name in dataset.domains], dtype=np.int64)
        held, copies = self._found(row_hashes(dataset, np.arange(len(dataset))), own[dataset.domain].tolist())
        found = np.unique(held[held >= 0])
        if dataset.domains == ("all",) and len(found) == 1:
            own = found
        domain = np.where(held >= 0, held, np.where(copies, -1, own[dataset.domain]))
        split = np.where(held >= 0, TEST, TRAIN)
        kept = np.flatnonzero(domain >= 0)
        marked = replace(dataset, domain=domain, domains=domains, split=split, ids=None, time=None)
        return marked if len(kept) == len(dataset) else marked.subset(kept)

    def _found(self, hashes: Sequence[str], own: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(n,) the domain each row was held out in, or -1; (n,) whether it is a copy of a held-out row."""
        left = [Counter(each) for each in self.hashes.values()]
        known = {each for counted in left for each in counted}
        held = np.full(len(hashes), -1, dtype=np.int64)
        for first in (True, False):  # rows of the domain itself come before those of others
            for row, (each, home) in enumerate(zip(hashes, own, strict=True)):
                if held[row] >= 0 or each not in known:
                    continue
                for at in (home,) if first and home >= 0 else () if first else range(len(left)):
                    if left[at][each]:
                        left[at][each] -= 1
                        held[row] = at
                        break
        return held, np.asarray([each in known for each in hashes], dtype=bool) & (held < 0)


def _both(a: Mapping[str, Sequence[str]], b: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    return {name: [*a.get(name, ()), *b.get(name, ())] for name in {**a, **b}}


def merged(datasets: Sequence[Dataset]) -> Dataset:
    """Marked data sets of the same domains and classes, one after another."""
    first, *others = datasets
    if not others:
        return first
    y, domain, split = (np.concatenate([getattr(d, name) for d in datasets]) for name in ("y", "domain", "split"))
    return Dataset(first.name, Joined([d.raw for d in datasets]), y, first.classes, domain, first.domains, split)


def row_hashes(dataset: Dataset, rows: np.ndarray) -> list[str]:
    """(n) one hash a row, of its content and its label by name."""
    found = []
    for row in rows.tolist():
        label = dataset.classes[dataset.y[row]] if dataset.y[row] >= 0 else ""
        content = dataset.raw.digest(np.asarray([row]))
        found.append(hashlib.sha256(f"{content}|{label}".encode()).hexdigest()[:20])
    return found


def parts_of(dataset: Dataset, split: int) -> tuple[Part, ...]:
    """The rows of one split in each domain that has some."""
    assert dataset.split is not None
    found = (
        Part(n, np.flatnonzero((dataset.domain == i) & (dataset.split == split))) for i, n in enumerate(dataset.domains)
    )
    return tuple(part for part in found if len(part))


def _id(dataset: Dataset, row: int) -> str:
    return str(row + 1) if dataset.ids is None else str(dataset.ids[row])

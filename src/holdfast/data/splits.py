"""Cutting a domain's rows into parts: by the data's own split column where there is one, else by the seed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput, unknown
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset, Joined


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows of one domain: indices into the data set, nothing else."""

    domain: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Share:
    """All rows of one domain, and those that the data itself assigns to a split."""

    domain: str
    rows: np.ndarray
    given: Mapping[str, np.ndarray]  # empty, or rows for each of train, valid, test
    more: str = "bring more domains"  # what to do where a plan needs more domains than there are

    def everything(self) -> Part:
        return Part(self.domain, self.rows)

    def tested(self, split: str = "test") -> Part:
        """What a model that never saw this domain is scored on: its rows of that split if it names any, else all."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        marked = self.given.get(split, self.rows[:0])
        return Part(self.domain, marked if len(marked) else self.rows)

    def only_chooses(self) -> bool:
        """Whether it has rows to choose a model by and none to train one."""
        return bool(self.given) and len(self.given["valid"]) > 0 and not len(self.given["train"])

    def two(self, valid: float, seed: int) -> tuple[Part, Part]:
        """(train, valid); rows marked as test are left out of both."""
        if not self.given:
            return self._cut(self.rows, valid, seed, "valid")
        if len(self.given["valid"]) and len(self.given["train"]):
            return Part(self.domain, self.given["train"]), Part(self.domain, self.given["valid"])
        return self._cut(self.given["train"], valid, seed, "valid")

    def three(self, valid: float, test: float, seed: int) -> tuple[Part, Part, Part]:
        """(train, valid, test) inside the domain."""
        marked = self.given.get("test", self.rows[:0])
        if len(marked):
            return *self.two(valid, seed), Part(self.domain, marked)
        rest, held = self._cut(self.rows, test, seed, "test")
        if self.given and len(self.given["valid"]):  # no test rows named: the named valid rows are the test
            train, chosen = self._cut(self.given["train"], valid, seed, "valid")
            return train, chosen, Part(self.domain, self.given["valid"])
        return *self._cut(rest.rows, valid, seed, "valid"), held

    def _cut(self, rows: np.ndarray, fraction: float, seed: int, name: str) -> tuple[Part, Part]:
        if not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise BadInput(f"{name} must be a share between 0 and 1, not {fraction!r}")
        held = max(1, int(len(rows) * fraction))
        if len(rows) - held < 1:
            raise BadInput(
                f"domain '{self.domain}' has {len(rows)} example(s) to train and validate on, at least 2 are "
                "needed: give it more or leave it out"
            )
        order = torch.randperm(len(rows), generator=generator(seed, "split", name, self.domain)).numpy()
        return (
            Part(self.domain, np.sort(rows[order[held:]])),
            Part(self.domain, np.sort(rows[order[:held]])),
        )


Shares = Mapping[str, Share]


def shares(dataset: Dataset) -> dict[str, Share]:
    """The rows of each domain of a data set, in the order of its domains."""
    found = {}
    for name in dataset.domains:
        rows, given = dataset.rows_of(name), {}
        if dataset.split is not None and (dataset.split[rows] >= 0).any():
            given = {kind: rows[dataset.split[rows] == i] for i, kind in enumerate(SPLITS)}
        found[name] = Share(name, rows, given, dataset.more_domains)
    return found


def to_train_on(dataset: Dataset) -> Dataset:
    """Without the domains that are there to be tested on alone."""
    if dataset.split is None:
        return dataset
    learnt = dataset.split != SPLITS.index("test")
    kept = [i for i, name in enumerate(dataset.domains) if learnt[dataset.rows_of(name)].sum() > 1]
    if len(kept) == len(dataset.domains):
        return dataset
    found = dataset.subset(np.flatnonzero(np.isin(dataset.domain, kept)))
    return replace(found, domains=tuple(dataset.domains[i] for i in kept), domain=np.searchsorted(kept, found.domain))


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

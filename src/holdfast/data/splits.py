"""Split the rows of each domain by its split column or else randomly, and recognise held-out rows later."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput, check_known
from holdfast.core.seeds import generator
from holdfast.data.dataset import SPLITS, Dataset

TRAIN, TEST = SPLITS.index("train"), SPLITS.index("test")
BINS = 5  # quantile bins of numeric targets


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one domain, as indices into the data set."""

    domain: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class DomainRows:
    """All rows of one domain, and the rows that the data assigns to a split."""

    domain: str
    rows: np.ndarray
    splits: Mapping[str, np.ndarray]  # empty, or rows for each of train, valid, test
    more_domains_hint: str = "add more domains"  # how to provide more domains, for error messages
    strata: np.ndarray | None = None  # (n,) class or bin of the target per row

    @staticmethod
    def of(
        dataset: Dataset, domain: str, rows: np.ndarray, *, start: int = 0, strata: np.ndarray | None = None
    ) -> DomainRows:
        """Build the entry of one domain from its rows in the data set; `start` is added to every row.

        `strata` are those of all rows of the data set.
        """
        split = dataset.split_codes[rows]
        splits = {kind: rows[split == i] + start for i, kind in enumerate(SPLITS)} if (split >= 0).any() else {}
        return DomainRows(
            domain, rows + start, splits, dataset.more_domains_hint, None if strata is None else strata[rows]
        )

    def counts(self, strata: int) -> np.ndarray:
        """Return (strata,) the number of rows per stratum; without strata, all rows belong to the first."""
        codes = np.zeros(len(self.rows), dtype=np.int64) if self.strata is None else self.strata
        return np.bincount(codes, minlength=strata)

    def test_part(self, split: str = "test") -> Part:
        """Return the rows to score a model that was not trained on this domain: that split if present, else all."""
        check_known("split", split, SPLITS)
        marked = self.splits.get(split, self.rows[:0])
        return Part(self.domain, marked if len(marked) else self.rows)

    def validation_only(self) -> bool:
        """Whether the domain has validation rows but no training rows."""
        return bool(self.splits) and len(self.splits["valid"]) > 0 and not len(self.splits["train"])

    def only_tests(self) -> bool:
        """Whether the file marks splits and no row of this domain for training."""
        return bool(self.splits) and not len(self.splits["train"])

    def train_valid(self, valid: float, seed: int, *, least: int = 2) -> tuple[Part, Part]:
        """Return (train, valid); rows of the test split are in neither.

        Fewer than `least` rows are an error; if that is less than 2, a single row trains.
        """
        if self.splits and len(self.splits["valid"]) and len(self.splits["train"]):
            return Part(self.domain, self.splits["train"]), Part(self.domain, self.splits["valid"])
        rows = self.splits["train"] if self.splits else self.rows
        if least <= len(rows) < 2:
            return Part(self.domain, rows), Part(self.domain, rows[:0])
        return self._cut(rows, valid, seed, "valid")

    def train_valid_test(self, valid: float, test: float, seed: int) -> tuple[Part, Part, Part]:
        """Return (train, valid, test) of this domain."""
        marked = self.splits.get("test", self.rows[:0])
        if len(marked):
            return *self.train_valid(valid, seed), Part(self.domain, marked)
        rest, held = self._cut(self.rows, test, seed, "test")
        if self.splits and len(self.splits["valid"]):  # without a test split, the valid split is the test set
            train, chosen = self._cut(self.splits["train"], valid, seed, "valid")
            return train, chosen, Part(self.domain, self.splits["valid"])
        return *self._cut(rest.rows, valid, seed, "valid"), held

    def _cut(self, rows: np.ndarray, fraction: float, seed: int, name: str) -> tuple[Part, Part]:
        if not isinstance(fraction, int | float) or not 0 < fraction < 1:
            raise BadInput(f"{name} must be a fraction between 0 and 1, got {fraction!r}")
        held = max(1, int(len(rows) * fraction))
        if len(rows) - held < 1:
            fix = "add examples, at least 2, or remove the domain"
            raise BadInput(f"domain '{self.domain}' has {len(rows)} example(s) for training and validation: {fix}")
        order = torch.randperm(len(rows), generator=generator(seed, "split", name, self.domain)).numpy()
        return (Part(self.domain, np.sort(rows[order[held:]])), Part(self.domain, np.sort(rows[order[:held]])))


RowsByDomain = Mapping[str, DomainRows]


def rows_by_domain(dataset: Dataset) -> dict[str, DomainRows]:
    """Return the rows of each domain, in the order of the data set's domains; without rows that have no label to use.

    A domain of which no row is left is left out.
    """
    order = np.argsort(dataset.domain, kind="stable")
    ends = np.bincount(dataset.domain, minlength=len(dataset.domains)).cumsum()
    rows = dict(zip(dataset.domains, np.split(order, ends[:-1]), strict=True))
    if dataset.unlabelled:
        rows = {name: each[dataset.y[each] >= 0] for name, each in rows.items()}
        rows = {name: each for name, each in rows.items() if len(each)}
    strata = target_strata(dataset)
    return {name: DomainRows.of(dataset, name, each, strata=strata) for name, each in rows.items()}


def target_strata(dataset: Dataset) -> np.ndarray:
    """Return (n,) the class of every row, or the quantile bin of its number; several labels per row have no strata."""
    if dataset.targets is None:
        return np.maximum(dataset.y, 0)
    if dataset.targets.ndim > 1:
        return np.zeros(len(dataset), dtype=np.int64)
    known = dataset.targets[np.isfinite(dataset.targets)]
    limits = np.quantile(known, np.arange(1, BINS) / BINS) if len(known) else np.zeros(0)
    return np.searchsorted(np.unique(limits), np.nan_to_num(dataset.targets), side="right")


def drop_test_domains(dataset: Dataset) -> Dataset:
    """Return the data set without domains that have at most one row outside the test split."""
    if dataset.split is None:
        return dataset
    trainable = dataset.split != TEST
    codes = [i for i, name in enumerate(dataset.domains) if trainable[dataset.rows_of(name)].sum() > 1]
    if len(codes) == len(dataset.domains):
        return dataset
    subset = dataset.subset(np.flatnonzero(np.isin(dataset.domain, codes)))
    domains = tuple(dataset.domains[i] for i in codes)
    return replace(subset, domains=domains, domain=np.searchsorted(codes, subset.domain))


@dataclass(frozen=True)
class HeldOut:
    """IDs and hashes (of content and label) of held-out examples by domain, without the examples."""

    ids: Mapping[str, Sequence[str]]
    hashes: Mapping[str, Sequence[str]]

    @staticmethod
    def of(dataset: Dataset, domain_parts: Sequence[Part]) -> HeldOut:
        """Record the rows in these parts of a data set."""
        ids: Sequence[object] = range(1, len(dataset) + 1) if dataset.ids is None else dataset.ids
        named = {part.domain: [str(ids[row]) for row in part.rows.tolist()] for part in domain_parts}
        return HeldOut(named, {part.domain: row_hashes(dataset, part.rows) for part in domain_parts})

    def merge(self, other: HeldOut) -> HeldOut:
        pairs = ((self.ids, other.ids), (self.hashes, other.hashes))
        return HeldOut(*({name: [*a.get(name, ()), *b.get(name, ())] for name in {**a, **b}} for a, b in pairs))

    def to_json(self) -> dict[str, Any]:
        return {name: {"ids": list(self.ids[name]), "hashes": list(self.hashes[name])} for name in self.hashes}

    @staticmethod
    def from_json(domains: Mapping[str, Any]) -> HeldOut:
        ids, hashes = ({name: entry[key] for name, entry in domains.items()} for key in ("ids", "hashes"))
        return HeldOut(ids, hashes)

    def mark(self, dataset: Dataset) -> Dataset:
        """Return the rows of a data set that belong to these domains: held-out rows as test, others as train.

        A held-out row is recognised by its hash, whatever its domain in the data set. Other rows keep their domain if
        it is one of these; in a file without domains, they belong to the only domain with held-out rows in the file.
        Remaining rows are dropped, as are additional copies of held-out rows.
        """
        domains = tuple(self.hashes)
        home = np.asarray([domains.index(name) if name in domains else -1 for name in dataset.domains], dtype=np.int64)
        held, copies = self._match(row_hashes(dataset, np.arange(len(dataset))), home[dataset.domain].tolist())
        matched = np.unique(held[held >= 0])
        if dataset.domains == ("all",) and len(matched) == 1:
            home = matched
        domain = np.where(held >= 0, held, np.where(copies, -1, home[dataset.domain]))
        split = np.where(held >= 0, TEST, TRAIN)
        rows = np.flatnonzero(domain >= 0)
        marked = replace(dataset, domain=domain, domains=domains, split=split, ids=None, time=None)
        return marked if len(rows) == len(dataset) else marked.subset(rows)

    def _match(self, hashes: Sequence[str], home: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) the domain in which each row was held out, or -1, and (n,) whether it is an additional copy."""
        remaining = [Counter(values) for values in self.hashes.values()]
        known = {value for counter in remaining for value in counter}
        held = np.full(len(hashes), -1, dtype=np.int64)
        for home_only in (True, False):  # rows of the domain itself are matched before rows of others
            for row, (value, own) in enumerate(zip(hashes, home, strict=True)):
                if held[row] >= 0 or value not in known:
                    continue
                candidates = ([own] if own >= 0 else []) if home_only else range(len(remaining))
                for domain in candidates:
                    if remaining[domain][value]:
                        remaining[domain][value] -= 1
                        held[row] = domain
                        break
        return held, np.asarray([value in known for value in hashes], dtype=bool) & (held < 0)


def row_hashes(dataset: Dataset, rows: np.ndarray) -> list[str]:
    """Return one hash per row, of its content and the name of its label."""
    hashes = []
    for row in rows.tolist():
        label = dataset.label_text(row)
        content = dataset.raw.digest(np.asarray([row]))
        hashes.append(hashlib.sha256(f"{content}|{label}".encode()).hexdigest()[:20])
    return hashes


def split_parts(dataset: Dataset, split: int) -> tuple[Part, ...]:
    """Return the rows of one split per domain, without empty domains."""
    marked = dataset.split_codes == split
    rows = {name: np.flatnonzero(marked & (dataset.domain == i)) for i, name in enumerate(dataset.domains)}
    return tuple(Part(name, selected) for name, selected in rows.items() if len(selected))

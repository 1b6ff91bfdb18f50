"""Cutting a domain's rows into parts: by the data's own split column where there is one, else by the seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from holdfast.core.errors import BadInput, unknown
from holdfast.core.seeds import generator
from holdfast.data.domain import SPLITS, Dataset


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

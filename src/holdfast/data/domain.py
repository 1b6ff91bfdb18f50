"""A data set: raw examples in file order, and for each its label, its domain and, where given, its split.

n examples
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator
from holdfast.data.raw import Raw, Rows

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples of several domains; `y` and `domain` index into `classes` and `domains`."""

    name: str
    raw: Raw
    y: np.ndarray  # (n,) int64, -1 where the file has no labels
    classes: tuple[str, ...]
    domain: np.ndarray  # (n,) int64
    domains: tuple[str, ...]
    split: np.ndarray | None = None  # (n,) int64 into SPLITS, -1 in domains that name none
    ids: Sequence[str] | None = None
    time: np.ndarray | None = None
    notes: tuple[str, ...] = ()  # what a reader should tell the user, such as rows dropped
    columns: tuple[str, ...] | None = None  # of vectors that were a table, how it calls them

    def __post_init__(self) -> None:
        n = len(self.raw)
        assert n == len(self.y) == len(self.domain), (n, len(self.y), len(self.domain))

    def __len__(self) -> int:
        return len(self.raw)

    def rows_of(self, domain: str) -> np.ndarray:
        """The rows of one domain, in file order."""
        return np.flatnonzero(self.domain == self.domains.index(domain))

    @property
    def more_domains(self) -> str:
        """How examples that are all of one domain would be given several."""
        if self.raw.files() is not None:
            return "give each domain a folder of its own (DOMAIN/CLASS/FILE)"
        return "name another column with --column domain=NAME"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all content: examples, labels, domains, splits."""
        found = hashlib.sha256(self.raw.digest(np.arange(len(self))).encode())
        for part in (self.y, self.domain, self.split):
            found.update(b"-" if part is None else np.ascontiguousarray(part, dtype=np.int64).tobytes())
        found.update("|".join([*self.classes, "", *self.domains]).encode())
        return found.hexdigest()[:16]

    def checked(self, *, labels: bool = True) -> Dataset:
        """Itself, if a model, with labels a classifier, can be trained on it; else one sentence that says why not."""
        if len(self) == 0:
            raise BadInput(f"{self.name} has no examples")
        if labels and (not self.classes or bool((self.y < 0).all())):
            raise BadInput(f"{self.name} has no labels: a classifier needs them, and --task respond does not")
        if labels and len(self.classes) < 2:
            raise BadInput(f"{self.name} has a single label {list(self.classes)}: a classifier needs at least two")
        for name in self.domains:
            if not len(self.rows_of(name)):
                raise BadInput(f"domain '{name}' of {self.name} is empty: give it examples or leave it out")
        return self

    def limited(self, per_domain: int, seed: int = 0) -> Dataset:
        """At most this many examples of each domain, drawn with the seed, in file order."""
        if per_domain < 1:
            raise BadInput(f"examples of each domain must be at least 1, not {per_domain}")
        keep = []
        for name in self.domains:
            rows = self.rows_of(name)
            if len(rows) > per_domain:
                order = torch.randperm(len(rows), generator=generator(seed, "limit", name)).numpy()
                rows = np.sort(rows[order[:per_domain]])
            keep.append(rows)
        return self.subset(np.sort(np.concatenate(keep)))

    def subset(self, rows: np.ndarray) -> Dataset:
        """The same data set with these rows only."""
        return replace(
            self,
            raw=Rows(self.raw, rows),
            y=self.y[rows],
            domain=self.domain[rows],
            split=None if self.split is None else self.split[rows],
            ids=None if self.ids is None else [self.ids[i] for i in rows],
            time=None if self.time is None else self.time[rows],
        )


def encode(values: Sequence[object]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Names to indices: (n,) codes and the names, numbers in numeric and others in alphabetic order."""
    texts = np.asarray([str(v) for v in values], dtype=object)
    names = sorted(set(texts), key=_natural)
    index = {name: i for i, name in enumerate(names)}
    return np.asarray([index[t] for t in texts], dtype=np.int64), tuple(names)


def _natural(name: str) -> tuple[int, float, str]:
    try:
        value = float(name)
    except ValueError:
        return (1, 0.0, name)
    return (0, value, name) if math.isfinite(value) else (1, 0.0, name)

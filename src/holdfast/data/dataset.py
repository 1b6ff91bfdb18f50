"""A data set: raw examples in file order, and for each its label, its domain and, where given, its split.

n examples
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

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


class Joined(Raw):
    """Columns of one kind, end to end and without a copy."""

    def __init__(self, pieces: Sequence[Raw]) -> None:
        assert len({piece.kind for piece in pieces}) == 1, pieces
        self.pieces, self.kind = list(pieces), pieces[0].kind
        self.starts = np.cumsum([0, *map(len, pieces)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: np.ndarray, *, size: int | None = None) -> Any:
        owner = self._owner(rows)
        found: list[Any] = [None] * len(rows)
        for i, piece in enumerate(self.pieces):
            places = np.flatnonzero(owner == i)
            if len(places):
                examples = piece.take(rows[places] - self.starts[i], size=size)
                for place, example in zip(places, examples, strict=True):
                    found[place] = example
        return torch.stack(found) if found and isinstance(found[0], torch.Tensor) else found

    def digest(self, rows: np.ndarray) -> str:
        """That of the piece where all rows are of one, so that features kept of it alone serve here too."""
        owner = self._owner(rows)
        turns = np.flatnonzero(np.diff(owner)) + 1
        runs = [(owner[at[0]], rows[at]) for at in np.split(np.arange(len(rows)), turns) if len(at)]
        parts = [self.pieces[i].digest(own - self.starts[i]) for i, own in runs]
        return parts[0] if len(parts) == 1 else hashlib.sha256("|".join(parts).encode()).hexdigest()

    def files(self) -> list[Path] | None:
        found = [piece.files() for piece in self.pieces]
        return None if None in found else [path for each in found if each is not None for path in each]

    def _owner(self, rows: np.ndarray) -> np.ndarray:
        """(n,) which piece each row lies in."""
        return np.searchsorted(self.starts, rows, side="right") - 1


def join(datasets: Sequence[Dataset]) -> Dataset:
    """One data set with the domains of all, in their order; labels that are called the same are the same class.

    Each domain keeps its own splits; one whose data set names none has none.
    """
    assert datasets, "nothing to join"
    name = "+".join(each.name for each in datasets)
    forms = [_form(each.raw) for each in datasets]
    for form, other in zip(forms, datasets, strict=True):
        if form != forms[0]:
            raise BadInput(
                f"{datasets[0].name} and {other.name} cannot be joined: an example of the first is a {forms[0]}, "
                f"of the second a {form}"
            )
    domains = [domain for each in datasets for domain in each.domains]
    twice = sorted({domain for domain in domains if domains.count(domain) > 1})
    if twice:
        raise BadInput(f"the domain '{twice[0]}' occurs in two of {name}: rename it in one of them")
    classes = tuple(dict.fromkeys(label for each in datasets for label in each.classes))
    before = np.cumsum([0, *(len(each.domains) for each in datasets)])
    parts = [np.full(len(each), -1) if each.split is None else each.split for each in datasets]
    return Dataset(
        name=name,
        raw=Joined([each.raw for each in datasets]),
        y=np.concatenate([_codes(each, classes) for each in datasets]),
        classes=classes,
        domain=np.concatenate([each.domain + start for each, start in zip(datasets, before[:-1], strict=True)]),
        domains=tuple(domains),
        split=None if all(each.split is None for each in datasets) else np.concatenate(parts).astype(np.int64),
        notes=tuple(note for each in datasets for note in each.notes),
    )


def _codes(dataset: Dataset, classes: Sequence[str]) -> np.ndarray:
    """(n,) its labels as indices into the classes of all; -1 stays."""
    table = np.asarray([*(classes.index(label) for label in dataset.classes), -1], dtype=np.int64)
    return table[dataset.y]


def _form(raw: Raw) -> str:
    """The kind of one example, as far as two columns must share it."""
    if raw.kind == "image":
        return raw.kind  # every size is decoded to the one that a backbone asks for
    (example,) = raw.take(np.zeros(1, dtype=np.int64))
    if isinstance(example, torch.Tensor):
        return f"{raw.kind} of width {example.shape[-1]}"
    return "pair of texts" if isinstance(example, tuple) else raw.kind

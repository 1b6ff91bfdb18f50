"""A data set: raw examples in file order with labels, domains and optional splits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from holdfast.core.errors import BadInput, check_at_least
from holdfast.core.seeds import generator
from holdfast.core.table import TableRows
from holdfast.data.raw import Concat, Raw, Subset

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples from several domains; `y` and `domain` index into `classes` and `domains`.

    For tasks with other targets than one class, `targets` holds them, and `y` is 0 where an example has a target.
    """

    name: str
    raw: Raw
    y: np.ndarray  # (n,) int64, -1 where an example has no label
    classes: tuple[str, ...]
    domain: np.ndarray  # (n,) int64
    domains: tuple[str, ...]
    split: np.ndarray | None = None  # (n,) int64 into SPLITS, -1 in domains without splits
    ids: Sequence[str] | None = None
    time: np.ndarray | None = None
    notes: tuple[str, ...] = ()  # messages for the user, such as the number of dropped rows
    columns: tuple[str, ...] | None = None  # names of the input columns of a table
    unlabelled: bool = False  # rows without a label are examples to adapt to, and belong to no split
    targets: np.ndarray | None = None  # (n,) numbers, or (n, c) 0 or 1 per class; nan where an example has no label
    task: str = ""  # task for which the targets were converted
    carried: pa.Table | None = None  # input columns that `predict` copies to its output
    forms: Mapping[str, Any] = field(default_factory=dict)  # how columns of texts write numbers and dates
    file_rows: np.ndarray | None = None  # (n,) rows in the file, from 1, if rows with bad cells may be left out

    def __post_init__(self) -> None:
        n = len(self.raw)
        assert n == len(self.y) == len(self.domain), (n, len(self.y), len(self.domain))

    def __len__(self) -> int:
        return len(self.raw)

    @cached_property
    def split_codes(self) -> np.ndarray:
        """The split of each row (n,), -1 without one."""
        return np.full(len(self), -1) if self.split is None else self.split

    def rows_of(self, domain: str) -> np.ndarray:
        """Return the rows of one domain in file order."""
        return np.flatnonzero(self.domain == self.domains.index(domain))

    @property
    def more_domains_hint(self) -> str:
        """How the user can provide several domains, for error messages."""
        if self.raw.files() is not None:
            return "put each domain into a separate folder (DOMAIN/CLASS/FILE)"
        return "name another column with --column domain=NAME"

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all content: examples, labels, domains and splits."""
        sha = hashlib.sha256(self.raw.digest(np.arange(len(self))).encode())
        for codes in (self.y, self.domain, self.split):
            sha.update(b"-" if codes is None else np.ascontiguousarray(codes, dtype=np.int64).tobytes())
        if self.targets is not None:
            sha.update(np.ascontiguousarray(self.targets, dtype=np.float64).tobytes())
        sha.update("|".join([*self.classes, "", *self.domains]).encode())
        return sha.hexdigest()[:16]

    def checked(self, *, labels: bool = True) -> Dataset:
        """Return the data set itself, or raise if no model (with `labels`, no classifier) can be trained on it."""
        if len(self) == 0:
            raise BadInput(f"{self.name} has no examples")
        if labels and self.targets is not None:
            self._check_targets(self.targets)
        elif labels and (not self.classes or bool((self.y < 0).all())):
            raise BadInput(f"{self.name} has no labels: a classifier needs them, --task respond does not")
        elif labels and len(self.classes) < 2:
            raise BadInput(f"{self.name} has a single label {list(self.classes)}: a classifier needs at least two")
        for name in self.domains:
            if not len(self.rows_of(name)):
                raise BadInput(f"domain '{name}' of {self.name} is empty: add examples or remove the domain")
        return self

    def _check_targets(self, targets: np.ndarray) -> None:
        known = targets[self.y >= 0]
        if not len(known):
            raise BadInput(f"{self.name} has no labels: the task {self.task} needs them")
        if targets.ndim == 1 and known.min() == known.max():
            raise BadInput(f"{self.name} has the label {known[0]:g} in every row: regression needs different numbers")

    def label_text(self, row: int) -> str:
        """Return the label of a row as text; empty without a label."""
        if self.y[row] < 0:
            return ""
        if self.targets is None:
            return self.classes[self.y[row]]
        if self.targets.ndim == 1:
            return f"{self.targets[row]:.17g}"
        return "|".join(name for name, value in zip(self.classes, self.targets[row], strict=True) if value)

    def limited(self, per_domain: int) -> Dataset:
        """Draw at most `per_domain` examples per domain with a fixed seed; file order is preserved."""
        check_at_least(1, examples=per_domain)
        chosen = []
        for name in self.domains:
            rows = self.rows_of(name)
            order = torch.randperm(len(rows), generator=generator(0, "limit", name)).numpy()
            chosen.append(rows[order[:per_domain]])
        return self.subset(np.sort(np.concatenate(chosen)))

    def subset(self, rows: np.ndarray) -> Dataset:
        """Return a data set with only these rows; classes and domains are unchanged."""
        arrays = {name: getattr(self, name) for name in ("split", "time", "targets", "file_rows")}
        arrays = {name: None if values is None else values[rows] for name, values in arrays.items()}
        ids = None if self.ids is None else [self.ids[i] for i in rows]
        codes = {"y": self.y[rows], "domain": self.domain[rows], **arrays}
        carried = None if self.carried is None else self.carried.take(pa.array(rows))
        return replace(self, raw=Subset(self.raw, rows), ids=ids, carried=carried, **codes)

    def with_notes(self, *notes: str) -> Dataset:
        """Return the data set with further messages for the user; empty ones are left out."""
        added = tuple(filter(None, notes))
        return replace(self, notes=(*self.notes, *added)) if added else self

    def with_unlabelled_rows(self) -> Dataset:
        """Return the data set with its rows that have no label as unlabelled examples."""
        count = int((self.y < 0).sum())
        note = f"{count:,} rows without a label are unlabelled examples"
        return replace(self, unlabelled=True).with_notes(note) if count else self

    def recoded(self, classes: Sequence[str], codes: Sequence[int] | np.ndarray) -> Dataset:
        """Return the data set with other classes or labels; `codes` has the new code of each class, and -1 stays."""
        if self.targets is not None:
            targets = self.targets
            if targets.ndim > 1:  # a label that the data set lacks is 0
                targets = np.zeros((len(self), len(classes)))
                targets[:, codes] = self.targets
            return replace(self, classes=tuple(classes), targets=targets)
        return replace(self, y=np.append(codes, -1).astype(np.int64)[self.y], classes=tuple(classes))

    def as_one_domain(self, name: str) -> Dataset:
        """Return the same examples as a single domain of this name."""
        return replace(self, domain=np.zeros(len(self), dtype=np.int64), domains=(name,))


def encode(values: Sequence[object]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Map values to codes (n,) and sorted names: numbers in numeric order, then texts in alphabetic order."""
    texts = np.asarray([str(v) for v in values], dtype=object)
    names = sorted(set(texts), key=lambda name: (0, float(name), name) if is_finite(name) else (1, 0.0, name))
    index = {name: i for i, name in enumerate(names)}
    return np.asarray([index[t] for t in texts], dtype=np.int64), tuple(names)


def is_finite(name: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def join(datasets: Sequence[Dataset]) -> Dataset:
    """Concatenate data sets with distinct domains; classes with equal names are merged.

    Each domain keeps its splits; rows of data sets without splits get split -1.
    """
    first, name = datasets[0], "+".join(dataset.name for dataset in datasets)
    for other in datasets:
        if (form := example_form(first.raw)) != example_form(other.raw):
            examples = f"an example is a {form} in the first and a {example_form(other.raw)} in the second"
            raise BadInput(f"{first.name} and {other.name} cannot be joined: {examples}")
    domains = [domain for dataset in datasets for domain in dataset.domains]
    duplicates = sorted({domain for domain in domains if domains.count(domain) > 1})
    if duplicates:
        raise BadInput(f"the domain '{duplicates[0]}' occurs in two of {name}: rename it in one of them")
    classes = tuple(dict.fromkeys(label for dataset in datasets for label in dataset.classes))
    offsets = np.cumsum([0, *(len(dataset.domains) for dataset in datasets)])
    recoded = [
        replace(dataset.recoded(classes, [classes.index(name) for name in dataset.classes]), domains=tuple(domains),
                domain=dataset.domain + start)
        for dataset, start in zip(datasets, offsets[:-1], strict=True)
    ]  # fmt: skip
    return replace(concatenated(recoded), name=name)


def concatenated(datasets: Sequence[Dataset]) -> Dataset:
    """Concatenate data sets with the same classes and domains, without ids and times."""
    first = datasets[0]
    raw = first.raw if len(datasets) == 1 else Concat([dataset.raw for dataset in datasets])
    y, domain = (np.concatenate([getattr(dataset, name) for dataset in datasets]) for name in ("y", "domain"))
    split, targets = None, [dataset.targets for dataset in datasets if dataset.targets is not None]
    assert len(targets) in (0, len(datasets)), "targets of different tasks"
    if any(dataset.split is not None for dataset in datasets):
        split = np.concatenate([dataset.split_codes for dataset in datasets]).astype(np.int64)
    return Dataset(
        first.name, raw, y, first.classes, domain, first.domains, split, task=first.task,
        targets=np.concatenate(targets) if targets else None,
        notes=tuple(note for dataset in datasets for note in dataset.notes),
    )  # fmt: skip


def example_form(raw: Raw) -> str:
    """Describe one example as far as joined columns must agree."""
    if raw.kind == "image":
        return raw.kind  # every image is resized to the size that the backbone requests
    first = raw.take(np.zeros(1, dtype=np.int64))
    if isinstance(first, TableRows):
        return f"row of the columns {', '.join(sorted(f'{column.name} ({column.kind})' for column in first.schema))}"
    (example,) = first
    if isinstance(example, torch.Tensor):
        return f"{raw.kind} of width {example.shape[-1]}"
    return "pair of texts" if isinstance(example, tuple) else raw.kind

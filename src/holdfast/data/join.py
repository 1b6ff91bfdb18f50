"""Several data sets as one: the domains of all of them side by side, for training on some and scoring on others.

n examples
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.data.domain import Dataset
from holdfast.data.raw import Raw


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

"""What all data sets share that a user brings as a file: finding it, its size, its split, texts on both sides of it.

n examples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from holdfast.core.seeds import generator
from holdfast.data import formats
from holdfast.data.domain import SPLITS, Dataset

Sizes = Mapping[str, Mapping[str, int]]  # domain -> split, or `all` -> published number of examples


def find_table(stems: Sequence[str], folder: Path | None, more: Sequence[str] = ()) -> Path | None:
    """The first file of one of these names and a suffix of tables, or another one that is named."""
    for stem in stems if folder is not None else ():
        for suffix in (*formats.SUFFIXES, *more):
            path = Path(folder or "").expanduser() / f"{stem}{suffix}"
            if path.is_file():
                return path
    return None


def differences(name: str, published: Sizes, found: Dataset) -> list[str]:
    """One sentence where the file does not hold as many examples as were published."""
    told = []
    for domain, sizes in published.items():
        rows = found.rows_of(domain)
        for kind, size in sizes.items():
            here = len(rows)
            if kind != "all":
                here = 0 if found.split is None else int((found.split[rows] == SPLITS.index(kind)).sum())
            if here != size:
                where = "" if domain == name else f"{domain} "
                told.append(f"{where}{kind} {here:,} instead of {size:,}")
    return [f"{name} has not the published number of examples: {', '.join(told)}"] if told else []


def drawn(found: Dataset, sizes: Mapping[str, int], seed: int) -> np.ndarray:
    """(n,) a split drawn by the seed, in the published sizes or, of another number of rows, in their proportion."""
    held = [round(len(found) * sizes[kind] / sum(sizes.values())) for kind in SPLITS[1:]]
    order = torch.randperm(len(found), generator=generator(seed, "cut", found.name)).numpy()
    split = np.zeros(len(found), dtype=np.int64)
    split[order[: held[0]]] = 1
    split[order[held[0] : sum(held)]] = 2
    return split


def _leaked(found: Dataset) -> np.ndarray:
    """(n,) whether a row of valid or test has a text that train has too."""
    if found.split is None:
        return np.zeros(len(found), dtype=bool)
    texts = found.raw.take(np.arange(len(found)))
    seen = {text for text, split in zip(texts, found.split, strict=True) if split == 0}
    return np.asarray([split > 0 and text in seen for text, split in zip(texts, found.split, strict=True)])


def _counted(found: Dataset) -> str:
    """`52 of 139 test and 43 of 114 valid`."""
    assert found.split is not None
    leaked, told = _leaked(found), []
    for kind in ("test", "valid"):
        here = found.split == SPLITS.index(kind)
        told.append(f"{int((leaked & here).sum()):,} of {int(here.sum()):,} {kind}")
    return " and ".join(told)


def leaks_told(found: Dataset) -> list[str]:
    if not _leaked(found).any():
        return []
    return [f"{found.name}: {_counted(found)} texts are in train too; {found.name}@leaks=drop leaves them out"]


def without_leaks(found: Dataset) -> Dataset:
    leaked = _leaked(found)
    if not leaked.any():
        return found
    kept = found.subset(np.flatnonzero(~leaked))
    note = f"{found.name}: {_counted(found)} texts are in train too and are left out"
    return replace(kept, notes=(*kept.notes, note))

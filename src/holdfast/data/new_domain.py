"""One more domain for a model that is trained: its labels, its name, and what is there of the domains before it.

n examples
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.splits import HeldOut, Part, Share, row_hashes


def with_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The data set with its labels as numbers of these classes; one sentence where it has another label."""
    if not classes:
        return replace(dataset, y=np.full(len(dataset), -1, dtype=np.int64), classes=())
    known = {name: i for i, name in enumerate(classes)}
    table = np.asarray([*(known.get(name, -2) for name in dataset.classes), -1], dtype=np.int64)
    y = table[dataset.y]
    if (y == -2).any():
        row = int((y == -2).argmax())
        shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        raise BadInput(
            f"{dataset.name}: row {row + 1} has the label '{dataset.classes[dataset.y[row]]}', which this model does "
            f"not know ({shown}): a model learns new domains of the labels it has; fit it anew to have other labels"
        )
    if (y < 0).any():
        raise BadInput(f"{dataset.name}: row {int((y < 0).argmax()) + 1} has no label: fill it in or take the row out")
    return replace(dataset, y=y, classes=classes)


def one_domain(dataset: Dataset, name: str | None, known: Collection[str]) -> Dataset:
    """The rows of the domain that is to be learned: the named one of several, or all under one name."""
    there = [each for i, each in enumerate(dataset.domains) if (dataset.domain == i).any()]
    if not there:
        raise BadInput(f"{dataset.name} has no examples to learn from")
    if len(there) > 1:
        said = ", ".join(there[:10])
        if name is None:
            raise BadInput(f"{dataset.name} has several domains ({said}): name the one to learn with --domain NAME")
        if name not in there:
            raise BadInput(f"no domain '{name}' in {dataset.name}; its domains: {said}")
        dataset = dataset.subset(dataset.rows_of(name))
    own = name or (dataset.name if there == ["all"] else there[0])
    if own in known:
        mend = "name the new one with --domain NAME" if there == ["all"] else "give its rows another domain"
        raise BadInput(f"this model knows the domain '{own}' already: {mend}")
    if own not in there and there != ["all"]:
        raise BadInput(f"no domain '{own}' in {dataset.name}; its domain is {there[0]}: leave --domain out to learn it")
    return replace(dataset, domain=np.zeros(len(dataset), dtype=np.int64), domains=(own,), time=None)


def without_held_out(dataset: Dataset, held: HeldOut | None) -> tuple[Dataset, int]:
    """The rows that are no held-out examples of earlier domains, which are not to be learned; and how many were."""
    if held is None:
        return dataset, 0
    taken = {each for hashes in held.hashes.values() for each in hashes}
    rows = np.arange(len(dataset))
    fresh = np.asarray([each not in taken for each in row_hashes(dataset, rows)], dtype=bool)
    if not fresh.any():
        raise BadInput(
            f"every example of {dataset.name} is a held-out example of an earlier domain: bring new examples"
        )
    return (dataset if fresh.all() else dataset.subset(rows[fresh])), int((~fresh).sum())


def share_of(dataset: Dataset, start: int) -> Share:
    """The only domain of a data set whose rows begin at `start` among others, with the splits that it names."""
    rows, given = np.arange(start, start + len(dataset)), {}
    if dataset.split is not None and (dataset.split >= 0).any():
        given = {kind: rows[dataset.split == i] for i, kind in enumerate(SPLITS)}
    return Share(dataset.domains[0], rows, given)


def shifted(parts: Sequence[Part], by: int) -> list[Part]:
    """The same rows, counted from another place."""
    return [Part(part.domain, part.rows + by) for part in parts]

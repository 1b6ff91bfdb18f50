"""Examples without labels next to labelled ones, from the domain that a model will be used on."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.align import align_features
from holdfast.data.dataset import Dataset, concatenated, example_form
from holdfast.data.splits import Part

ALL = ("all",)  # domains of data without a domain column
EMPTY_LABELS = ("error", "unlabelled")


def add_unlabelled(dataset: Dataset, extra: Dataset) -> Dataset:
    """Append the examples of `extra` without their labels; its domains may be domains of the data set.

    Examples without a domain form a domain with the name of their file.
    """
    extra = align_features(extra, dataset.columns)
    if (form := example_form(dataset.raw)) != (other := example_form(extra.raw)):
        fix = "write both in the same form"
        raise BadInput(f"--unlabelled {extra.name} has a {other} per example but {dataset.name} has a {form}: {fix}")
    names = (_free_name(extra.name, dataset.domains),) if extra.domains == ALL else extra.domains
    domains = tuple(dict.fromkeys((*dataset.domains, *names)))
    codes = np.asarray([domains.index(name) for name in names], dtype=np.int64)
    count, targets = len(extra), dataset.targets
    blank = replace(
        extra, y=np.full(count, -1, dtype=np.int64), domain=codes[extra.domain], split=None, notes=(),
        targets=None if targets is None else np.full((count, *targets.shape[1:]), np.nan),
    )  # fmt: skip
    ids = None if dataset.ids is None else [*dataset.ids, *(f"unlabelled {i + 1}" for i in range(count))]
    joined = concatenated([replace(dataset, domains=domains), blank])
    joined = replace(joined, ids=ids, columns=dataset.columns, forms=dataset.forms, unlabelled=True)
    labels = " and their labels are not read" if (extra.y >= 0).any() else ""
    return joined.with_notes(f"{count:,} unlabelled examples of {', '.join(names)} are added{labels}")


def _free_name(name: str, known: Collection[str]) -> str:
    return name if name not in known else _free_name(f"{name} (unlabelled)", known)


def unlabelled_parts(dataset: Dataset, train_domains: Collection[str]) -> tuple[Part, ...]:
    """Return the unlabelled rows per domain: of domains that are not trained on, or of all if there are none."""
    if not dataset.unlabelled:
        return ()
    rows = {name: dataset.rows_of(name) for name in dataset.domains}
    groups = [Part(name, each[dataset.y[each] < 0]) for name, each in rows.items()]
    groups = [group for group in groups if len(group)]
    return tuple(group for group in groups if group.domain not in train_domains) or tuple(groups)

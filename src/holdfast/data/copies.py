"""Columns of a table that are the label under another name.

Shapes: n rows, c classes or labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.core.table import NUMERIC, TableRows
from holdfast.data.dataset import Dataset
from holdfast.data.readers.columns import listed

MIN_ROWS = 20  # with fewer, a column can equal the label by chance
SAMPLE = 1000  # rows that rule out most columns
LINEAR = 1e-8  # unexplained share of the variance up to which a number is a linear function of the label


def table_columns(rows: object, names: Sequence[str] | None = None) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, kind and values (n,) of each column of table rows or vectors.

    Numbers are floats, NaN where one is missing; categories are codes, negative where one is missing. Vectors have
    the columns `names`, or numbers from 1.
    """
    if isinstance(rows, TableRows):
        numbers, codes = iter(np.asarray(rows.numbers).T), iter(np.asarray(rows.codes).T)
        for column in rows.schema:
            yield column.name, column.kind, next(numbers) if column.kind in NUMERIC else next(codes)
        return
    values = np.asarray(rows)
    for i in range(values.shape[1]):
        yield names[i] if names is not None else f"feature {i + 1}", "number", values[:, i]


def label_copies(dataset: Dataset) -> list[str]:
    """Return the columns that have one value per label and one label per value, or are linear in a numeric label."""
    labelled = np.flatnonzero(dataset.y >= 0)
    if dataset.raw.kind not in ("vector", "table", "mixed") or len(labelled) < MIN_ROWS:
        return []
    if dataset.targets is None and not dataset.classes:
        return []
    spread = labelled[np.unique(np.linspace(0, len(labelled) - 1, SAMPLE).astype(int))]
    candidates = _copies(dataset, spread)
    return [name for name in _copies(dataset, labelled) if name in candidates] if candidates else []


def _copies(dataset: Dataset, rows: np.ndarray) -> list[str]:
    codes = _label_codes(dataset, rows)
    numbers = dataset.targets[rows] if dataset.targets is not None and dataset.targets.ndim == 1 else None
    copies = []
    for name, kind, values in table_columns(dataset.raw.take(rows, size=1), dataset.columns):
        missing = values < 0 if kind == "category" else np.isnan(values)
        if missing.any():
            continue
        if numbers is not None:
            equal = kind != "category" and _is_linear(values.astype(np.float64), numbers)
        else:
            equal = any(_one_to_one(values, each) for each in codes)
        copies += [name] if equal else []
    return copies


def _label_codes(dataset: Dataset, rows: np.ndarray) -> list[np.ndarray]:
    """Return codes (n,) that a column may repeat: the classes, or sets of labels and each label."""
    if dataset.targets is None:
        return [dataset.y[rows]]
    if dataset.targets.ndim == 1:
        return []
    sets = dataset.targets[rows].astype(np.int64)
    return [np.unique(sets, axis=0, return_inverse=True)[1].reshape(-1), *sets.T]


def _one_to_one(values: np.ndarray, codes: np.ndarray) -> bool:
    """Whether each of at least two codes has one value, and each value one code."""
    count = len(np.unique(codes))
    if count < 2 or len(np.unique(values[: 4 * SAMPLE])) > count:
        return False
    distinct, inverse = np.unique(values, return_inverse=True)
    pairs = np.unique(inverse.reshape(-1) * (codes.max() + 1) + codes)
    return len(distinct) == count == len(pairs)


def _is_linear(values: np.ndarray, numbers: np.ndarray) -> bool:
    """Whether values and numbers (n,) are linear functions of each other."""
    if values.min() == values.max() or numbers.min() == numbers.max():
        return False
    correlation = np.corrcoef(values, numbers)[0, 1]
    return bool(1 - correlation**2 < LINEAR)


def copies_note(dataset: Dataset) -> str:
    """Return a note on columns that may be the label under another name, or an empty string."""
    names = label_copies(dataset)
    if not names:
        return ""
    which = "the column" if len(names) == 1 else "each of the columns"
    fix = f"; --column ignore={','.join(names[:12])} leaves {'it' if len(names) == 1 else 'them'} out"
    which = f"{which} {listed(names)} determines"
    return f"{which} the label exactly and may be the label under another name{'' if dataset.columns is None else fix}"

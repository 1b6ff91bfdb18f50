"""Features of table rows for linear probes: standardised numbers, indicators of missing ones, and categories.

Shapes: n rows, p number columns, q category columns, d width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.core.table import NUMERIC, TableRows, category_columns
from holdfast.stats.formatting import shortened

CATEGORIES = 20  # most frequent categories per column with an indicator of their own
WIDTH = 2000  # indicators of categories in total, at most, if there is more than one per column
LIMIT = 10.0  # standardised numbers beyond it are clipped, so that one outlier does not decide a probe


@dataclass(frozen=True, eq=False)
class TableFeatures:
    """Statistics of some rows of a table, and the features of any rows of it."""

    centre: np.ndarray  # (p,)
    scale: np.ndarray  # (p,)
    gaps: np.ndarray  # number columns with missing values
    categories: tuple[np.ndarray, ...]  # per category column, the codes with an indicator

    @staticmethod
    def fit(rows: TableRows) -> TableFeatures:
        """Compute means, deviations and frequent categories."""
        numbers, codes = rows.numbers.numpy().astype(np.float64), rows.codes.numpy()
        missing = np.isnan(numbers)
        filled = np.maximum((~missing).sum(axis=0), 1)
        centre = np.where(missing, 0.0, numbers).sum(axis=0) / filled
        spread = np.sqrt((np.where(missing, 0.0, numbers - centre) ** 2).sum(axis=0) / filled)
        most = int(np.clip(WIDTH // max(1, codes.shape[1]), 1, CATEGORIES))
        return TableFeatures(
            centre, np.where(spread > 0, spread, 1.0), np.flatnonzero(missing.any(axis=0)),
            tuple(_frequent(column, most) for column in codes.T),
        )  # fmt: skip

    def __call__(self, rows: TableRows) -> np.ndarray:
        """(n, d) features; a missing number is the mean, and a missing or rare category has no indicator."""
        scaled = ((rows.numbers.numpy() - self.centre) / self.scale).clip(-LIMIT, LIMIT)
        missing = np.isnan(scaled)
        pairs = zip(rows.codes.numpy().T, self.categories, strict=True)
        indicators = [column[:, None] == chosen for column, chosen in pairs]
        blocks = [np.where(missing, 0.0, scaled), missing[:, self.gaps], *indicators]
        return np.hstack(blocks).astype(np.float32)


def _frequent(codes: np.ndarray, most: int) -> np.ndarray:
    """Return the most frequent codes (k,), without missing values."""
    values, counts = np.unique(codes[codes >= 0], return_counts=True)
    return values[np.argsort(-counts, kind="stable")[:most]]


def described(rows: TableRows, most: int) -> str:
    """Return the first row as text, such as `age 63, sex male`, with at most this number of characters."""
    numbers, codes, words = iter(rows.numbers[0].tolist()), iter(rows.codes[0].tolist()), []
    names = {column.name: column.categories for column in category_columns(rows.schema)}
    for column in rows.schema:
        value = next(numbers) if column.kind in NUMERIC else next(codes)
        if value != value or (column.kind == "category" and value < 0):
            continue  # missing
        match column.kind:
            case "date":
                text = str(np.datetime64("1970-01-01") + np.timedelta64(round(value), "D"))
            case "boolean":
                text = "true" if value else "false"
            case "category":
                text = names[column.name][value]
            case _:
                text = f"{value:g}"
        words.append(f"{column.name} {text}")
    return shortened(", ".join(words), most)

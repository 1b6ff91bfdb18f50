"""Rows of whole numbers of different lengths, laid end to end: places in a text, targets of its words.

n rows, b rows of a batch, w numbers of the longest
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

NONE = -1  # what fills up a row that is shorter than others


class Ragged:
    """n rows of int64; a batch of them is padded to its own longest with -1."""

    def __init__(self, values: Tensor, starts: Tensor) -> None:
        self.values, self.starts = values, starts  # (all,), (n + 1,)

    @staticmethod
    def build(rows: Sequence[Sequence[int]]) -> Ragged:
        flat = np.fromiter((value for row in rows for value in row), dtype=np.int64)
        return Ragged(torch.from_numpy(flat), torch.tensor([0, *map(len, rows)]).cumsum(0))

    @staticmethod
    def join(parts: Sequence[Ragged]) -> Ragged:
        """The rows of all, one after another."""
        sizes = torch.cat([torch.zeros(1, dtype=torch.long), *(part.starts.diff() for part in parts)])
        return Ragged(torch.cat([part.values for part in parts]), sizes.cumsum(0))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, rows: Tensor) -> Tensor:
        """(b, w) these rows, in that order."""
        start, size = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        reach = torch.arange(int(size.max()) if len(rows) else 0)  # (w,)
        inside = reach < size[:, None]  # (b, w)
        if not len(self.values):
            return torch.full(inside.shape, NONE)
        at = (start[:, None] + reach).clamp(max=len(self.values) - 1)
        return torch.where(inside, self.values[at], NONE)


def pad_rows(rows: Tensor, width: int) -> Tensor:
    """(b, width) rows of the same numbers, filled up with -1."""
    return pad(rows, (0, width - rows.shape[1]), value=NONE)


def strip_padding(row: Tensor) -> Tensor:
    """(1, w) one row of a batch without what filled it up; a target that is one number as it is."""
    if row.ndim == 1:
        return row
    return row[:, : max(1, int((row[0] != NONE).sum()))].clone()


def cat_targets(parts: Sequence[Tensor]) -> Tensor:
    """Targets of several batches as one: (b,), or (b, w) filled up to the widest."""
    if parts[0].ndim == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([pad_rows(part, width) for part in parts])

"""Integer rows of different lengths, padded with -1 per batch (n rows, b rows of a batch, w longest length)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

NONE = -1  # padding


class Ragged:
    """n rows of integers, stored end to end."""

    starts: Tensor
    values: Tensor

    def __init__(self, values: Tensor, starts: Tensor) -> None:
        self.values, self.starts = values, starts  # (all,), (n + 1,)

    @staticmethod
    def build(rows: Sequence[Sequence[int]], dtype: type[np.integer] = np.int64) -> Ragged:
        flat = np.fromiter((value for row in rows for value in row), dtype=dtype)
        return Ragged(torch.from_numpy(flat), torch.tensor([0, *map(len, rows)]).cumsum(0))

    @staticmethod
    def join(blocks: Sequence[Ragged]) -> Ragged:
        sizes = torch.cat([torch.zeros(1, dtype=torch.long), *(block.starts.diff() for block in blocks)])
        return Ragged(torch.cat([block.values for block in blocks]), sizes.cumsum(0))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def mask(self, rows: Tensor) -> Tensor:
        """Return (b, w) which values of the padded rows are not padding."""
        size = self.starts[rows + 1] - self.starts[rows]
        return torch.arange(int(size.max()) if len(rows) else 0) < size[:, None]

    def take(self, rows: Tensor, *, padding: int = NONE) -> Tensor:
        """Return (b, w) the given rows as int64, padded to the longest of them."""
        mask = self.mask(rows)
        if not len(self.values):
            return torch.full(mask.shape, padding)
        at = (self.starts[rows][:, None] + torch.arange(mask.shape[1])).clamp(max=len(self.values) - 1)
        return torch.where(mask, self.values[at].long(), padding)


def strip_padding(row: Tensor) -> Tensor:
    """Remove the padding of one row (1, w); a scalar target (1,) is returned unchanged."""
    if row.ndim == 1:
        return row
    return row[:, : max(1, int((row[0] != NONE).sum()))].clone()


def cat_padded(batches: Sequence[Tensor], padding: int = NONE) -> Tensor:
    """Concatenate tensors (b,), or (b, w) padded to the widest."""
    if batches[0].ndim == 1:
        return torch.cat(list(batches))
    width = max(rows.shape[1] for rows in batches)
    return torch.cat([pad(rows, (0, width - rows.shape[1]), value=padding) for rows in batches])

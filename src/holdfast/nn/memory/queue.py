"""A ring of the newest examples: their features and labels, written explicitly and without gradient.

b batch, m rows, d width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput


class Queue(nn.Module):
    """First in, first out, for batches of any size; rows that were never written are not seen.

    With `noise` it holds drawn rows of length 1 with drawn labels from the start and is never written: what is left
    of a real memory that has nothing real in it, to compare with.
    """

    features: Tensor  # (m, d)
    labels: Tensor  # (m,)
    seen: Tensor  # (m,) bool: rows that hold an example
    at: Tensor  # () where the next example goes

    def __init__(self, rows: int, width: int, classes: int, *, noise: bool = False) -> None:
        super().__init__()
        if rows < 1:
            raise BadInput(f"a queue needs at least one row, not {rows}")
        self.noise = noise
        drawn = F.normalize(torch.randn(rows, width), dim=-1) if noise else torch.zeros(rows, width)
        labels = torch.randint(classes, (rows,)) if noise else torch.zeros(rows, dtype=torch.long)
        self.register_buffer("features", drawn)
        self.register_buffer("labels", labels)
        self.register_buffer("seen", torch.full((rows,), noise))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return len(self.labels)

    def hidden(self) -> Tensor:
        """(m,) what to add to the scores of the rows: nothing, or minus infinity where no example is held."""
        return torch.zeros_like(self.features[:, 0]).masked_fill(~self.seen, -torch.inf)

    @torch.no_grad()
    def write(self, key: Tensor, value: Tensor) -> None:
        """Features (b, d) and labels (b,) take the place of the oldest; of more than m the last are kept."""
        if self.noise:
            return
        rows = len(self)
        skipped = max(0, len(key) - rows)  # the ring goes on as if they had been written and overwritten
        key, value = key[skipped:], value[skipped:]
        places = (self.at + skipped + torch.arange(len(key), device=self.at.device)) % rows
        self.features.index_copy_(0, places, key.to(self.features.dtype))
        self.labels.index_copy_(0, places, value)
        self.seen.index_fill_(0, places, True)
        self.at.copy_((self.at + skipped + len(key)) % rows)

"""A fixed set of training rows that stands in for the batch when a network predicts.

n rows offered, m rows kept, d width
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput


class Support(nn.Module):
    """At most m rows, held as buffers, so that they travel with the network."""

    rows: Tensor  # (m, d)
    seen: Tensor  # (m,) bool: rows that are there

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        if rows < 1:
            raise BadInput(f"a support set needs at least one row, not {rows}")
        self.register_buffer("rows", torch.zeros(rows, width))
        self.register_buffer("seen", torch.zeros(rows, dtype=torch.bool))

    def __len__(self) -> int:
        return len(self.seen)

    def hidden(self) -> Tensor:
        """(m,) what to add to the scores of the rows: nothing, or minus infinity where there is none."""
        return torch.zeros_like(self.rows[:, 0]).masked_fill(~self.seen, -torch.inf)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """These rows (n, d) instead of what was held; of more than m the first."""
        rows = rows[: len(self)]
        self.rows.zero_()[: len(rows)] = rows.to(self.rows.dtype)
        self.seen.zero_()[: len(rows)] = True


@torch.no_grad()
def balanced(offered: Iterable[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """At most `count` rows drawn evenly from the classes, of rows (n, d) with labels (n,) that come lot by lot.

    Every row draws a number; the classes take turns, each giving the row with the next larger number. A class that
    has no row left gives its turns to the others.
    """
    rows = labels = drawn = None
    for new, y in offered:
        number = torch.rand(len(new))
        rows = new if rows is None else torch.cat([rows, new])
        labels = y.cpu() if labels is None else torch.cat([labels, y.cpu()])
        drawn = number if drawn is None else torch.cat([drawn, number])
        order = drawn.argsort(stable=True)
        turn = torch.empty_like(order)
        for each in labels.unique():
            mine = order[labels[order] == each]
            turn[mine] = torch.arange(len(mine))
        kept = order[turn[order].argsort(stable=True)][:count]
        rows, labels, drawn = rows[kept.to(rows.device)], labels[kept], drawn[kept]
    assert rows is not None, "no rows were offered"
    return rows

"""A ring of the newest examples: their features and labels, written explicitly and without gradient.

b batch, m rows, d width
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown


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
    def replace(self, rows: Tensor) -> None:
        """These rows (n, d) instead of what was held; of more than m the first."""
        rows = rows[: len(self)]
        self.rows.zero_()[: len(rows)] = rows.to(self.rows.dtype)
        self.seen.zero_()[: len(rows)] = True


@torch.no_grad()
def balanced_sample(offered: Iterable[tuple[Tensor, Tensor]], count: int) -> Tensor:
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


STARTS = ("normal", "zeros")


class SyntheticMemory(nn.Module):
    """c times m learned rows, class after class, drawn from N(0, 0.02^2).

    `zeros` is the published default and degenerate: slots of a class that begin alike are read alike and get the same
    gradient, so they stay alike for ever, and m of them are one slot with log m more in its score.
    """

    values: nn.Parameter  # (c * m, d)
    labels: Tensor  # (c * m,) the class of each slot

    def __init__(self, classes: int, slots: int, width: int, *, start: str = "normal") -> None:
        super().__init__()
        if slots < 1:
            raise BadInput(f"a class needs at least one slot, not {slots}")
        if start not in STARTS:
            raise unknown("start of slots", start, STARTS)
        drawn = torch.zeros(classes * slots, width)
        self.values = nn.Parameter(drawn.normal_(std=0.02) if start == "normal" else drawn)
        self.register_buffer("labels", torch.arange(classes).repeat_interleave(slots))

    def __len__(self) -> int:
        return len(self.labels)

    def slot_similarity(self) -> Tensor:
        """(c,) the mean cosine between two slots of a class: 1 where m slots are no more than one, zeros too."""
        count = int(self.labels[-1]) + 1
        values = self.values.detach().view(count, -1, self.values.shape[1])  # (c, m, d)
        near, slots = F.normalize(values, dim=-1), values.shape[1]
        pairs = near.sum(1).square().sum(-1) - near.square().sum((1, 2))  # both orders of every pair
        one = (values == values[:, :1]).flatten(1).all(dim=1)
        return torch.where(one, 1.0, pairs / max(1, slots * (slots - 1)))

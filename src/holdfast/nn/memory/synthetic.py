"""Slots of classes: learned rows, some for each class, that stand for examples of it.

c classes, m slots of a class, d width
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown

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

    def likeness(self) -> Tensor:
        """(c,) the mean cosine between two slots of a class: 1 where m slots are no more than one, zeros too."""
        count = int(self.labels[-1]) + 1
        values = self.values.detach().view(count, -1, self.values.shape[1])  # (c, m, d)
        near, slots = F.normalize(values, dim=-1), values.shape[1]
        pairs = near.sum(1).square().sum(-1) - near.square().sum((1, 2))  # both orders of every pair
        one = (values == values[:, :1]).flatten(1).all(dim=1)
        return torch.where(one, 1.0, pairs / max(1, slots * (slots - 1)))

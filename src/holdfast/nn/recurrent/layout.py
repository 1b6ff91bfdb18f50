"""Where the words of a batch lie in the time loop, and where the states that it leaves belong.

b batch, t words, p steps of all rows together, g directions, h hidden units
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.core.errors import BadInput

BUCKET = 5  # on a GPU a batch takes a multiple of so many steps: few shapes, and each is recorded once


class Layout(NamedTuple):
    """Which word each row takes at each step, in the order of the time loop."""

    active: tuple[int, ...]  # rows of each step
    words: tuple[Tensor, Tensor]  # (p,) each, into (b * t): from the first word on, and from the last
    row: Tensor  # (p,) which row of the batch
    real: Tensor  # (p,) bool: no padding
    last: Tensor  # (b,) where the last state of each row is
    shape: tuple[int, int]  # b, t


def make_layout(lengths: Tensor, t: int, device: torch.device) -> Layout:
    """For rows of so many words (b,), padded to t.

    Both directions begin at step 0: the one from the last word backwards takes each row's own last word first.
    """
    if device.type == "cuda":
        return _dense(lengths.to(device), t)
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.max()) > t:
        raise BadInput(f"every row needs between 1 and {t} steps")
    return _packed(lengths.cpu(), t)


def _packed(lengths: Tensor, t: int) -> Layout:
    """Rows by falling length, so that a step has only the rows that still have a word."""
    order = lengths.argsort(descending=True, stable=True)
    sizes = lengths[order]
    active = (sizes > torch.arange(int(sizes.max()))[:, None]).sum(1)
    starts = active.cumsum(0) - active
    step = torch.arange(len(active)).repeat_interleave(active)
    rank = torch.arange(len(step)) - starts[step]
    row, size = order[rank], sizes[rank]
    last = torch.empty_like(sizes)
    last[order] = starts[sizes - 1] + torch.arange(len(order))
    words = (row * t + step, row * t + size - 1 - step)
    return Layout(tuple(active.tolist()), words, row, torch.ones_like(row, dtype=torch.bool), last, (len(lengths), t))


def _dense(lengths: Tensor, t: int) -> Layout:
    """All rows in all steps: shapes that do not depend on the lengths, and nothing to wait for."""
    b, steps = len(lengths), -(-t // BUCKET) * BUCKET
    row = torch.arange(b, device=lengths.device)
    step = torch.arange(steps, device=lengths.device)[:, None]  # (steps, 1)
    forwards, backwards = step.clamp(max=t - 1).expand(-1, b), (lengths - 1 - step).clamp(min=0)
    words = ((row * t + forwards).flatten(), (row * t + backwards).flatten())
    real = (step < lengths).flatten()
    return Layout((b,) * steps, words, row.repeat(steps), real, (lengths - 1) * b + row, (b, t))


class States(NamedTuple):
    """The states of every row at every step, as the time loop left them."""

    packed: Tensor  # (g, p, h)
    layout: Layout

    def map(self, function: Callable[[Tensor], Tensor]) -> States:
        return States(function(self.packed), self.layout)

    def last(self) -> Tensor:
        """(b, g * h) the state after each row's own last step, direction beside direction."""
        return self.packed.index_select(1, self.layout.last).transpose(0, 1).flatten(1)

    def padded(self) -> Tensor:
        """(b, t, g * h) the states at their words, zero where a row has none."""
        (b, t), layout, directions = self.layout.shape, self.layout, len(self.packed)
        p = torch.arange(len(layout.row), device=layout.row.device)
        at = torch.full((b * t + 1, directions), -1, device=p.device)  # where each word's state is; padding goes last
        for g in range(directions):
            at[torch.where(layout.real, layout.words[g], b * t), g] = p + g * len(p)
        at = at[:-1]
        found = self.packed.flatten(0, 1).index_select(0, at.clamp(min=0).flatten()).reshape(b, t, -1)
        if len(p) == b * t and p.device.type == "cpu":  # every row is as long as the longest
            return found
        return found * (at[:, 0] >= 0).view(b, t, 1)

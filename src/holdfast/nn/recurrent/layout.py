"""Layout of a padded batch in the time loop, and the states that the loop returns.

Shapes: b batch, t positions, p rows of all steps together, g directions, h hidden units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.core.errors import BadInput

BUCKET = 5  # on a GPU the number of steps is rounded up to a multiple: few shapes, one CUDA graph per shape


class Layout(NamedTuple):
    """Position that each row reads at each step, in the order of the time loop."""

    active: tuple[int, ...]  # rows per step
    words: tuple[Tensor, Tensor]  # (p,) each, indices into (b * t): forward and backward direction
    row: Tensor  # (p,) row of the batch
    real: Tensor  # (p,) bool: not padding
    last: Tensor  # (b,) index of the last state of each row
    shape: tuple[int, int]  # b, t


def make_layout(lengths: Tensor, t: int, device: torch.device) -> Layout:
    """Lay out rows of these lengths (b,), padded to t.

    Both directions start at step 0: the backward direction reads each row's last position first.
    """
    if device.type == "cuda":
        return _dense(lengths.to(device), t)
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.max()) > t:
        raise BadInput(f"`lengths` must lie between 1 and {t}, got {lengths.tolist()}")
    return _packed(lengths.cpu(), t)


def _packed(lengths: Tensor, t: int) -> Layout:
    """Sort rows by decreasing length, so that a step contains only rows that have not ended."""
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
    """Put all rows into all steps: shapes do not depend on the lengths, and no device synchronisation is needed."""
    b, steps = len(lengths), -(-t // BUCKET) * BUCKET
    row = torch.arange(b, device=lengths.device)
    step = torch.arange(steps, device=lengths.device)[:, None]  # (steps, 1)
    forwards, backwards = step.clamp(max=t - 1).expand(-1, b), (lengths - 1 - step).clamp(min=0)
    words = ((row * t + forwards).flatten(), (row * t + backwards).flatten())
    real = (step < lengths).flatten()
    return Layout((b,) * steps, words, row.repeat(steps), real, (lengths - 1) * b + row, (b, t))


class States(NamedTuple):
    """Hidden states of all rows at all steps, in the order of the time loop."""

    packed: Tensor  # (g, p, h)
    layout: Layout

    def last(self) -> Tensor:
        """Return the state after each row's last step, directions concatenated, (b, g * h)."""
        return self.packed.index_select(1, self.layout.last).transpose(0, 1).flatten(1)

    def padded(self) -> Tensor:
        """Return the states at their positions, zero for padding, (b, t, g * h)."""
        (b, t), layout, directions = self.layout.shape, self.layout, len(self.packed)
        p = torch.arange(len(layout.row), device=layout.row.device)
        at = torch.full((b * t + 1, directions), -1, device=p.device)  # state of each position; padding goes last
        for g in range(directions):
            at[torch.where(layout.real, layout.words[g], b * t), g] = p + g * len(p)
        at = at[:-1]
        states = self.packed.flatten(0, 1).index_select(0, at.clamp(min=0).flatten()).reshape(b, t, -1)
        if len(p) == b * t and p.device.type == "cpu":  # no padding
            return states
        return states * (at[:, 0] >= 0).view(b, t, 1)

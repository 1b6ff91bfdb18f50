"""A recurrent network that reads a bank of slots, as one plain expression: its weights, its order of rows, one step.

b rows, t steps, p rows of all steps together, a rows of one step, g directions, e input width, h hidden units,
m slots, d width of a value. Rows are sorted by length, the longest first, and lie step after step: (g, p, ..), so that
the rows of a step that still have a word are the first ones of the step before.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.nn.recurrent.cells import BLOCKS, Cell


class Weights(NamedTuple):
    """What a network of g directions has; one without a bank has no slots, m = d = 0."""

    by_input: Tensor  # (g, e, blocks of the input * h)
    by_state: Tensor  # (g, h, blocks of the state * h)
    bias: Tensor  # (g, 4h)
    by_content: Tensor  # (g, d, blocks of the input * h)
    keys: Tensor  # (g, m, h)
    values: Tensor  # (g, m, d)

    @property
    def slots(self) -> int:
        return self.keys.shape[1]


class InitialState(NamedTuple):
    """The state before the first step; `inner` is an LSTM's, which begins at zero unless it is given."""

    hidden: Tensor  # (g, b, h)
    inner: Tensor | None = None  # (g, b, h)


class Step(NamedTuple):
    """Where the rows of a step lie, where the same rows lay a step before, and where their reads lie."""

    rows: int
    now: slice
    before: slice | None
    read: slice | None


class Schedule(NamedTuple):
    """How many rows each step has, and whether the first step reads nothing.

    Else it reads with the state it starts from; without one that is all slots alike.
    """

    active: tuple[int, ...]
    zero_first: bool = True

    def steps(self) -> list[Step]:
        starts = [0, *accumulate(self.active)]
        skipped = self.active[0] if self.zero_first else 0
        found = []
        for i, rows in enumerate(self.active):
            start, earlier = starts[i], starts[i - 1]
            before = slice(earlier, earlier + rows) if i else None
            read = slice(start - skipped, start - skipped + rows) if start >= skipped else None
            found.append(Step(rows, slice(start, start + rows), before, read))
        return found

    def entering(self, states: Tensor, start: Tensor | None = None) -> Tensor:
        """(g, p - b, ..) what the rows of every step but the first had in the step before; (g, p, ..) with a start."""
        befores = [states[:, step.before] for step in self.steps() if step.before is not None]
        return torch.cat([states[:, :0] if start is None else start, *befores], 1)


def plain(
    x: Tensor, weights: Weights, cell: type[Cell], schedule: Schedule, start: InitialState | None = None
) -> Tensor:
    """The same states as one expression, for those who differentiate twice."""
    found = []
    h = c = x.new_zeros(len(x), schedule.active[0], weights.by_state.shape[1])
    if start is not None:
        h, c = start.hidden, c if start.inner is None else start.inner
    for step in schedule.steps():
        h, c = h[:, : step.rows], c[:, : step.rows]
        h, c = reference_step(x[:, step.now], h, c, weights, cell, reads=step.read is not None)
        found.append(h)
    return torch.cat(found, 1)


def reference_step(
    x: Tensor, h: Tensor, c: Tensor, weights: Weights, cell: type[Cell], *, reads: bool = True
) -> tuple[Tensor, Tensor]:
    """One step for inputs (g, a, e): from a hidden and an inner state (g, a, h) to the next ones."""
    width = h.shape[-1]
    before, after = cell.by_input.start * width, (BLOCKS - cell.by_input.stop) * width
    entering = x @ weights.by_input
    if reads and weights.slots:
        entering = entering + (h @ weights.keys.mT).softmax(-1) @ weights.values @ weights.by_content
    carried = F.pad(h @ weights.by_state, (0, (BLOCKS - cell.by_state.stop) * width))
    return cell.plain(weights.bias[:, None] + F.pad(entering, (before, after)) + carried, h, c)

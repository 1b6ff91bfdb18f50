"""Plain step of a recurrent network that reads a bank, its weights, and the order of rows in a time loop.

Shapes: b rows, t steps, p rows of all steps together, a rows of one step, g directions, e input width, h hidden units,
m slots, d value width. Rows are sorted by length, longest first, and stored step after step, (g, p, ..), so the rows
of a step are the first ones of the step before.
"""

from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.ops.cells import BLOCKS, Cell


class Weights(NamedTuple):
    """Weights of g directions; without a bank, m = d = 0."""

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
    """State before the first step; `inner`, the cell state of an LSTM, defaults to zero."""

    hidden: Tensor  # (g, b, h)
    inner: Tensor | None = None  # (g, b, h)


class Step(NamedTuple):
    """Slices of a step's rows, of the same rows one step before, and of their reads."""

    rows: int
    now: slice
    before: slice | None
    read: slice | None


class Schedule(NamedTuple):
    """Rows per step, and whether the first step skips the read.

    Otherwise the first step reads with its initial state; with a zero state all slots get equal weight.
    """

    active: tuple[int, ...]
    zero_first: bool = True

    def steps(self) -> list[Step]:
        starts = [0, *accumulate(self.active)]
        skipped = self.active[0] if self.zero_first else 0
        steps = []
        for i, rows in enumerate(self.active):
            start, earlier = starts[i], starts[i - 1]
            before = slice(earlier, earlier + rows) if i else None
            read = slice(start - skipped, start - skipped + rows) if start >= skipped else None
            steps.append(Step(rows, slice(start, start + rows), before, read))
        return steps

    def entering(self, states: Tensor, start: Tensor | None = None) -> Tensor:
        """Return the states that enter each step but the first, (g, p - b, ..); with a start all, (g, p, ..)."""
        befores = [states[:, step.before] for step in self.steps() if step.before is not None]
        return torch.cat([states[:, :0] if start is None else start, *befores], 1)


def reference_step(x: Tensor, h: Tensor, c: Tensor, weights: Weights, cell: Cell) -> tuple[Tensor, Tensor]:
    """Compute one step for inputs (g, a, e) from hidden and inner states (g, a, h)."""
    width = h.shape[-1]
    before, after = cell.by_input.start * width, (BLOCKS - cell.by_input.stop) * width
    entering = x @ weights.by_input
    if weights.slots:
        entering = entering + (h @ weights.keys.mT).softmax(-1) @ weights.values @ weights.by_content
    carried = F.pad(h @ weights.by_state, (0, (BLOCKS - cell.by_state.stop) * width))
    return cell.step(weights.bias[:, None] + F.pad(entering, (before, after)) + carried, h, c)

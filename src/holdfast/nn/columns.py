"""Columns of recurrent networks: a later one reads the words and the states of all before it, and none feeds back.

b batch, t tokens, e width of a word, h hidden units, g directions
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.nn.recurrent import Recurrent, States


def run_columns(
    columns: Sequence[Recurrent], words: Tensor, lengths: Tensor, *, dropout: nn.Module, segments: int | None = None
) -> list[States]:
    """The states of each column for words (b, t, e); a column reads [x_t; states of those before it at t].

    (Rusu et al., 2016; here all of the states before, of both directions, and as inputs rather than through adapters.)
    Only the newest one learns: it alone has dropout on its words, and `segments` is about its bank.
    """
    *earlier, newest = columns
    seen, found = [], []
    for column in earlier:
        found.append(column(torch.cat([words, *seen], -1), lengths))
        seen.append(found[-1].padded())  # (b, t, g h)
    found.append(newest(torch.cat([dropout(words), *seen], -1), lengths, segments=segments))
    return found


def reach(columns: Sequence[Recurrent]) -> int:
    """The width of the states of all columns side by side."""
    return sum(column.directions * column.hidden for column in columns)


def moved_by(columns: Sequence[Recurrent], units: int) -> Tensor:
    """(reach,) where each state lies once the newest column is `units` wider: each direction ends with what is new."""
    newest = columns[-1]
    start = reach(columns[:-1])
    sides = [start + g * (newest.hidden + units) + torch.arange(newest.hidden) for g in range(newest.directions)]
    return torch.cat([torch.arange(start), *sides])


def next_column(columns: Sequence[Recurrent], units: int, *, slots: int = 0) -> Recurrent:
    """One more column of the same kind as the first; with `slots` it has a bank of its own."""
    first = columns[0]
    words = first.by_input.shape[1]
    return Recurrent(
        words + reach(columns),
        units,
        cell=first.cell,
        slots=slots,
        slot_width=words if first.bank is None else first.bank.width,
        directions=first.directions,
        first_read=first.first_read,
    )


def cost_of_next(columns: Sequence[Recurrent], units: int) -> int:
    """How many parameters it would have without a bank."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in next_column(columns, units).parameters())

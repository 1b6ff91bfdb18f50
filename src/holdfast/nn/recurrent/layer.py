"""An LSTM or GRU whose input at each step is joined by what its last state reads from a bank of slots.

b batch, t steps, p steps of all rows together, g directions, e input width, h hidden units, m slots, s segments,
d width of a value
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.tape import is_recording, record
from holdfast.nn.growth import check_units, expand_units
from holdfast.nn.memory.bank import MemoryBank
from holdfast.nn.recurrent.cells import BLOCKS, CELLS
from holdfast.nn.recurrent.layout import Layout, States, make_layout
from holdfast.nn.recurrent.loop import unroll
from holdfast.nn.recurrent.reference import InitialState, Schedule, Weights, reference_step

FIRST_READS = ("zero", "uniform")


class RecurrentLayer(nn.Module):
    """h_i = cell(h_{i-1}, [x_i; c_i]) with c_i = sum_j softmax_j(<h_{i-1}, k_j>) v_j (Asghar et al., 2020, Eqs. 1-2).

    Each direction has a cell and a bank of its own. Without slots it is the plain network. At the first step there is
    no state to read with: `zero` reads nothing, `uniform` all slots alike. A row's result depends on its own steps
    alone, whatever else the batch holds and however far it is padded.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        *,
        cell: str = "lstm",
        slots: int = 0,
        slot_width: int | None = None,
        directions: int = 2,
        first_read: str = "zero",
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise unknown("cell", cell, CELLS)
        if first_read not in FIRST_READS:
            raise unknown("first read", first_read, FIRST_READS)
        if min(inputs, hidden, 1 if slot_width is None else slot_width) < 1 or slots < 0 or directions not in (1, 2):
            raise BadInput("widths must be at least 1, slots at least 0, directions 1 or 2")
        self.cell, self.hidden, self.directions, self.first_read = cell, hidden, directions, first_read
        entering, carried = (blocks * hidden for blocks in self._blocks())
        width = inputs if slot_width is None else slot_width
        self.by_input = nn.Parameter(torch.empty(directions, inputs, entering))
        self.by_state = nn.Parameter(torch.empty(directions, hidden, carried))
        self.bias = nn.Parameter(torch.empty(directions, BLOCKS * hidden))
        self.by_content = nn.Parameter(torch.empty(directions, width, entering)) if slots else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
        self.bank = MemoryBank(slots, directions=directions, hidden=hidden, width=width) if slots else None

    @property
    def tape_name(self) -> str:
        return "" if self.bank is None else "memory/weights"

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """More slots for every direction; the new parameters, for an optimizer to adopt."""
        if self.bank is None:
            raise BadInput("a network without slots has no bank that could grow: begin with at least one slot")
        return self.bank.grow(slots, domain=domain)

    def widen(self, units: int) -> None:
        """More hidden units, joined to the old ones both ways and to every slot; all parameters but values are new."""
        check_units(units, "a wider state")
        entering, carried = self._blocks()
        self.by_input = expand_units(self.by_input, units, blocks=entering)
        self.by_state = expand_units(self.by_state, units, blocks=carried, rows=units)
        self.bias = expand_units(self.bias, units, blocks=BLOCKS)
        if self.by_content is not None and self.bank is not None:
            self.by_content = expand_units(self.by_content, units, blocks=entering)
            self.bank.widen(units)
        self.hidden += units

    def widening_cost(self, units: int) -> int:
        """How many parameters `widen` would add."""
        (entering, carried), slots = self._blocks(), 0 if self.bank is None else self.bank.slots
        inputs = self.by_input.shape[1] + (0 if self.by_content is None else self.by_content.shape[1])
        by_state = carried * ((self.hidden + units) ** 2 - self.hidden**2)
        return self.directions * (by_state + (entering * inputs + BLOCKS + slots) * units)

    def _blocks(self) -> tuple[int, int]:
        """Blocks of hidden units that the input adds to, and that the state adds to."""
        made = CELLS[self.cell]
        return made.by_input.stop - made.by_input.start, made.by_state.stop - made.by_state.start

    def forward(
        self, x: Tensor, lengths: Tensor, *, segments: int | None = None, start: InitialState | None = None
    ) -> States:
        """All states for inputs (b, t, e), of which each row has `lengths` (b,); by the bank's first `segments` alone.

        With a start, whose tensors are (g, b, h), the first step goes on from that state and reads the bank with it.
        Whoever opened a tape gets for each row and direction the mean weight of every slot over the row's reads as
        `memory/weights` (b, g, m), and of every segment as `memory/mass` (b, g, s), both without gradient.
        """
        layout = make_layout(lengths, x.shape[1], x.device)
        weights = Weights(self.by_input, self.by_state, self.bias, *self._bank(segments))
        with torch.autocast(x.device.type, enabled=False):  # many small steps add up: the loop stays in fp32
            flat = x.to(self.bias.dtype).flatten(0, 1)
            taken = torch.stack([flat.index_select(0, at) for at in layout.words[: self.directions]])  # (g, p, e)
            schedule = Schedule(layout.active, zero_first=self.first_read == "zero" and start is None)
            if start is not None:  # in the order of the first step, which has every row
                order = layout.row[: len(lengths)]
                parts = (None if part is None else part.to(self.bias.dtype).index_select(1, order) for part in start)
                start = InitialState(*parts)  # pyright: ignore[reportArgumentType]
            states, read = unroll(taken, weights, CELLS[self.cell], schedule, start)
        if self.bank is not None and is_recording():
            self._tell(read, layout, self.bank.sizes[:segments])
        return States(states, layout)

    def step(self, x: Tensor, before: InitialState) -> InitialState:
        """One step by itself: inputs (b, e) and the state before them to the state after, as `forward` makes it."""
        weights = Weights(self.by_input, self.by_state, self.bias, *self._bank(None))
        inner = torch.zeros_like(before.hidden) if before.inner is None else before.inner
        with torch.autocast(x.device.type, enabled=False):
            entering = x.to(self.bias.dtype).expand(self.directions, *x.shape)
            return InitialState(*reference_step(entering, before.hidden, inner, weights, CELLS[self.cell]))

    def _bank(self, segments: int | None) -> tuple[Tensor, Tensor, Tensor]:
        if self.by_content is None or self.bank is None:
            if segments is not None:
                raise BadInput("a network without slots has no segments to choose from")
            sizes = ((0, self.by_input.shape[2]), (0, self.hidden), (0, 0))
            return tuple(self.bias.new_empty(self.directions, *size) for size in sizes)  # pyright: ignore[reportReturnType]
        return self.by_content, *self.bank.first(segments)

    def _tell(self, read: Tensor, layout: Layout, sizes: list[int]) -> None:
        skipped = len(layout.row) - read.shape[1]  # the rows of a first step that reads nothing
        row, real = layout.row[skipped:], layout.real[skipped:].to(read.dtype)
        counts = read.new_zeros(len(layout.last)).index_add_(0, row, real).clamp(min=1)
        sums = read.new_zeros(len(read), len(layout.last), read.shape[2]).index_add_(1, row, read * real[:, None])
        mean = (sums / counts[:, None]).transpose(0, 1)  # (b, g, m)
        record("memory/weights", mean)
        record("memory/mass", torch.stack([part.sum(-1) for part in mean.split(sizes, -1)], -1))


def run_columns(
    columns: Sequence[RecurrentLayer],
    words: Tensor,
    lengths: Tensor,
    *,
    dropout: nn.Module,
    segments: int | None = None,
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


def total_width(columns: Sequence[RecurrentLayer]) -> int:
    """The width of the states of all columns side by side."""
    return sum(column.directions * column.hidden for column in columns)


def column_positions(columns: Sequence[RecurrentLayer], units: int) -> Tensor:
    """(reach,) where each state lies once the newest column is `units` wider: each direction ends with what is new."""
    newest = columns[-1]
    start = total_width(columns[:-1])
    sides = [start + g * (newest.hidden + units) + torch.arange(newest.hidden) for g in range(newest.directions)]
    return torch.cat([torch.arange(start), *sides])


def next_column(columns: Sequence[RecurrentLayer], units: int, *, slots: int = 0) -> RecurrentLayer:
    """One more column of the same kind as the first; with `slots` it has a bank of its own."""
    first = columns[0]
    words = first.by_input.shape[1]
    return RecurrentLayer(
        words + total_width(columns),
        units,
        cell=first.cell,
        slots=slots,
        slot_width=words if first.bank is None else first.bank.width,
        directions=first.directions,
        first_read=first.first_read,
    )


def next_column_cost(columns: Sequence[RecurrentLayer], units: int) -> int:
    """How many parameters it would have without a bank."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in next_column(columns, units).parameters())

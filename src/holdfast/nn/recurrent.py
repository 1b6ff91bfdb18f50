"""An LSTM or GRU whose input at each step is joined by what its last state reads from a bank of slots.

b batch, t steps, p steps of all rows together, g directions, e input width, h hidden units, m slots, s segments,
d width of a value
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.tape import listening, record
from holdfast.nn.cells import BLOCKS, CELLS
from holdfast.nn.time_loop import Schedule, Weights, unroll

FIRST_READS = ("zero", "uniform")


class Bank(nn.Module):
    """Keys (g, m, h) and values (g, m, d) of slots, own ones for each direction; a growth is a segment of a domain."""

    owner: Tensor

    def __init__(self, slots: int, *, directions: int, hidden: int, width: int) -> None:
        super().__init__()
        self.directions, self.hidden, self.width = directions, hidden, width
        self.keys, self.values = nn.ParameterList(), nn.ParameterList()  # one entry a segment
        self.register_buffer("owner", torch.zeros(0, dtype=torch.long))  # (m,) the domain each slot came with
        self.grow(slots, domain=0)
        self.register_load_state_dict_pre_hook(_make_room)

    @property
    def slots(self) -> int:
        return len(self.owner)

    @property
    def sizes(self) -> list[int]:
        """The slots of each segment."""
        return [key.shape[1] for key in self.keys]

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add a segment for a domain; the new parameters, for an optimizer to adopt.

        The scale does not depend on how many slots are added.
        """
        if slots < 1:
            raise BadInput(f"a bank grows by at least one slot, not {slots}")
        like = self.keys[0] if len(self.keys) else torch.empty(0)
        new = []
        for held, width in ((self.keys, self.hidden), (self.values, self.width)):
            drawn = torch.empty(self.directions, slots, width, device=like.device, dtype=like.dtype)
            new.append(nn.Parameter(drawn.uniform_(-(width**-0.5), width**-0.5)))
            held.append(new[-1])
        self.owner = torch.cat([self.owner, self.owner.new_full((slots,), domain)])
        return new

    def first(self, segments: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of all segments, or of the first ones alone."""
        if segments is not None and not 1 <= segments <= len(self.keys):
            raise BadInput(f"this bank has {len(self.keys)} segments, so {segments} cannot be read")
        keys, values = list(self.keys)[:segments], list(self.values)[:segments]
        return (keys[0], values[0]) if len(keys) == 1 else (torch.cat(keys, 1), torch.cat(values, 1))


class Recurrent(nn.Module):
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
        made = CELLS[cell]
        entering, carried = ((blocks.stop - blocks.start) * hidden for blocks in (made.by_input, made.by_state))
        width = inputs if slot_width is None else slot_width
        self.by_input = nn.Parameter(torch.empty(directions, inputs, entering))
        self.by_state = nn.Parameter(torch.empty(directions, hidden, carried))
        self.bias = nn.Parameter(torch.empty(directions, BLOCKS * hidden))
        self.by_content = nn.Parameter(torch.empty(directions, width, entering)) if slots else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
        self.bank = Bank(slots, directions=directions, hidden=hidden, width=width) if slots else None

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """More slots for every direction; the new parameters, for an optimizer to adopt."""
        if self.bank is None:
            raise BadInput("a network without slots has no bank that could grow: begin with at least one slot")
        return self.bank.grow(slots, domain=domain)

    def forward(self, x: Tensor, lengths: Tensor, *, segments: int | None = None) -> States:
        """All states for inputs (b, t, e), of which each row has `lengths` (b,); by the bank's first `segments` alone.

        Whoever opened a tape gets for each row and direction the mean weight of every slot over the row's reads as
        `memory/weights` (b, g, m), and of every segment as `memory/mass` (b, g, s), both without gradient.
        """
        layout = lay_out(lengths, x.shape[1], dense=x.is_cuda)
        weights = Weights(self.by_input, self.by_state, self.bias, *self._bank(segments))
        with torch.autocast(x.device.type, enabled=False):  # many small steps add up: the loop stays in fp32
            flat = x.to(self.bias.dtype).flatten(0, 1)
            taken = torch.stack(
                [flat.index_select(0, at.to(x.device)) for at in layout.tokens[: self.directions]]
            )  # (g, p, e)
            schedule = Schedule(layout.active, zero_first=self.first_read == "zero")
            states, read = unroll(taken, weights, CELLS[self.cell], schedule)
        if self.bank is not None and listening():
            self._tell(read, layout, self.bank.sizes[:segments])
        return States(states, layout)

    def _bank(self, segments: int | None) -> tuple[Tensor, Tensor, Tensor]:
        if self.by_content is None or self.bank is None:
            sizes = ((0, self.by_input.shape[2]), (0, self.hidden), (0, 0))
            return tuple(self.bias.new_empty(self.directions, *size) for size in sizes)  # pyright: ignore[reportReturnType]
        return self.by_content, *self.bank.first(segments)

    def _tell(self, read: Tensor, layout: Layout, sizes: list[int]) -> None:
        rows = layout.real[layout.real >= layout.total - read.shape[1]]  # the steps that are there and that read
        at = layout.row[rows].to(read.device)
        taken = read.index_select(1, (rows - (layout.total - read.shape[1])).to(read.device))
        counts = torch.bincount(at, minlength=len(layout.last)).clamp(min=1)
        sums = read.new_zeros(len(read), len(layout.last), read.shape[2]).index_add_(1, at, taken)
        mean = (sums / counts[:, None]).transpose(0, 1)  # (b, g, m)
        record("memory/weights", mean)
        record("memory/mass", torch.stack([part.sum(-1) for part in mean.split(sizes, -1)], -1))


class Layout(NamedTuple):
    """Which token each row takes at each step, in the order of the time loop; on the CPU, so that shapes are known."""

    active: tuple[int, ...]  # rows of each step
    tokens: tuple[Tensor, Tensor]  # (p,) each, into (b * t): from the first word on, and from the last
    row: Tensor  # (p,) which row of the batch
    real: Tensor  # those of the p that are no padding
    last: Tensor  # (b,) where the last state of each row is
    shape: tuple[int, int]  # b, t

    @property
    def total(self) -> int:
        return len(self.row)


def lay_out(lengths: Tensor, t: int, *, dense: bool) -> Layout:
    """Rows by falling length, so that a step has the rows that still have a word; `dense` keeps all rows in all steps.

    Both directions begin at step 0: the one from the last word backwards takes each row's own last word first.
    """
    lengths = lengths.cpu()
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.max()) > t:
        raise BadInput(f"every row needs between 1 and {t} steps")
    order = lengths.argsort(descending=True, stable=True)
    sizes = lengths[order]
    reach = torch.full_like(sizes, t) if dense else sizes
    active = (reach > torch.arange(int(reach.max()))[:, None]).sum(1)
    starts = active.cumsum(0) - active
    step = torch.arange(len(active)).repeat_interleave(active)
    rank = torch.arange(len(step)) - starts[step]
    row, size = order[rank], sizes[rank]
    last = torch.empty_like(sizes)
    last[order] = starts[sizes - 1] + torch.arange(len(order))
    backwards = row * t + (size - 1 - step).clamp(min=0)
    real = (step < size).nonzero().squeeze(1)
    return Layout(tuple(active.tolist()), (row * t + step, backwards), row, real, last, (len(lengths), t))


class States(NamedTuple):
    """The states of every row at every step, as the time loop left them."""

    packed: Tensor  # (g, p, h)
    layout: Layout

    def map(self, function: Any) -> States:
        return States(function(self.packed), self.layout)

    def last(self) -> Tensor:
        """(b, g * h) the state after each row's own last step, direction beside direction."""
        found = self.packed.index_select(1, self.layout.last.to(self.packed.device))
        return found.transpose(0, 1).flatten(1)

    def padded(self) -> Tensor:
        """(b, t, g * h) the states at their words, zero where a row has none."""
        (b, t), real, device = self.layout.shape, self.layout.real, self.packed.device
        there = torch.zeros(b * t, dtype=torch.bool).index_fill(0, self.layout.tokens[0][real], True)
        at = torch.zeros(b * t, len(self.packed), dtype=torch.long)  # where each word's state is, side by side
        for g in range(len(self.packed)):
            at[self.layout.tokens[g][real], g] = real + g * self.layout.total
        found = self.packed.flatten(0, 1).index_select(0, at.flatten().to(device)).reshape(b, t, -1)
        return found if len(real) == b * t else found * there.view(b, t, 1).to(device)


def _make_room(bank: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: grow to the segments that they have."""
    assert isinstance(bank, Bank)
    while f"{prefix}keys.{len(bank.keys)}" in state:
        learns = bank.keys[0].requires_grad
        for parameter in bank.grow(state[f"{prefix}keys.{len(bank.keys)}"].shape[1], domain=0):
            parameter.requires_grad_(learns)
    if f"{prefix}owner" in state:
        bank.owner = bank.owner.new_zeros(len(state[f"{prefix}owner"]))

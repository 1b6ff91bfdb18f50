"""LSTM and GRU layers whose input at each step includes what the previous state reads from a bank of slots.

Shapes: b batch, t steps, p rows of all steps together, g directions, e input width, h hidden units, m slots,
s segments, d value width.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.accel.recurrent_loop import unroll
from holdfast.core.errors import BadInput, check_at_least
from holdfast.core.settings import checked_settings, choice, setting
from holdfast.core.tape import is_recording, record
from holdfast.nn.growth import expand_units
from holdfast.nn.memory.bank import MemoryBank
from holdfast.nn.memory.initialise import INITS, MIN_ROWS, thin
from holdfast.nn.memory.read import effective_slots
from holdfast.nn.recurrent.layout import Layout, States, make_layout
from holdfast.ops.cells import BLOCKS, CELLS
from holdfast.ops.recurrent_step import InitialState, Schedule, Weights, reference_step


@checked_settings
class BankSettings:
    """Settings of the slots of a recurrent layer."""

    init: str = setting("data", choices=INITS, help="initialisation of the slots: data, or published (random)")
    key_scale: float = setting(1.0, above=0, search=choice(0.3, 1.0, 3.0), help="factor of initial keys")
    value_scale: float = setting(1.0, above=0, search=choice(0.3, 1.0, 3.0), help="factor of initial values")
    temperature: float = setting(1.0, above=0, search=choice(0.3, 1.0, 3.0), help="divisor of the scores of slots")


BANK_SETTINGS = tuple(BankSettings.__dataclass_fields__)


@checked_settings
class RecurrentSettings(BankSettings):
    """Settings of a recurrent layer."""

    cell: str = setting("lstm", choices=CELLS)
    slots: int = setting(0, least=0)  # slots per direction; 0: no bank
    slot_width: int | None = setting(None, least=1)  # width of the values; default: the input width
    directions: int = setting(2, choices=(1, 2))

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks of hidden units that the input and the state contribute to."""
        by_input, by_state = CELLS[self.cell].by_input, CELLS[self.cell].by_state
        return by_input.stop - by_input.start, by_state.stop - by_state.start


class RecurrentLayer(nn.Module):
    """h_i = cell(h_{i-1}, [x_i; c_i]) with c_i = sum_j softmax_j(<h_{i-1}, k_j>) v_j (Asghar et al., 2020, Eqs. 1-2).

    Each direction has its own cell and bank; without slots it is a plain LSTM or GRU. `inputs` is the input width e,
    `hidden` the number of units h per direction; further keywords are the fields of `RecurrentSettings`.
    """

    Settings = RecurrentSettings
    bank: MemoryBank | None
    bias: nn.Parameter
    by_input: nn.Parameter
    by_state: nn.Parameter
    cell: str
    directions: int
    hidden: int
    options: RecurrentSettings

    def __init__(self, inputs: int, hidden: int, **settings: Any) -> None:
        super().__init__()
        self.options = options = RecurrentSettings(**settings)
        check_at_least(1, inputs=inputs, hidden=hidden)
        self.cell, self.hidden, self.directions = options.cell, hidden, options.directions
        entering, carried = (blocks * hidden for blocks in options.blocks)
        slots, width = options.slots, inputs if options.slot_width is None else options.slot_width
        self.by_input = nn.Parameter(torch.empty(self.directions, inputs, entering))
        self.by_state = nn.Parameter(torch.empty(self.directions, hidden, carried))
        self.bias = nn.Parameter(torch.empty(self.directions, BLOCKS * hidden))
        self.by_content = nn.Parameter(torch.empty(self.directions, width, entering)) if slots else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)
        scales = {name: getattr(options, name) for name in ("key_scale", "value_scale", "temperature")}
        sizes = {"directions": self.directions, "hidden": hidden, "width": width}
        self.bank = MemoryBank(slots, **sizes, **scales) if slots else None

    @property
    def tape_name(self) -> str:
        return "" if self.bank is None else "memory/weights"

    @property
    def examples_needed(self) -> int:
        pending = self.bank is not None and self.bank.pending and self.options.init == "data"
        return MIN_ROWS if pending else 0

    def observe(self, inputs: tuple[Any, ...], output: States) -> tuple[Tensor, ...]:
        """Return states (n, g, h) and the inputs (n, e) of the forward direction at the same steps."""
        at = thin(output.layout.real.nonzero().squeeze(1), MIN_ROWS)
        words = inputs[0].flatten(0, 1).index_select(0, output.layout.words[0][at])
        return output.packed[:, at].transpose(0, 1), words.to(output.packed.dtype)

    def initialise(self, *observed: Tensor, generator: torch.Generator) -> None:
        """Initialise new slots of the bank from states and inputs."""
        assert self.bank is not None
        self.bank.initialise(*observed, generator=generator)

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add slots for every direction and return the new parameters, for the optimizer."""
        if self.bank is None:
            raise BadInput("a layer without a bank cannot grow: start with `slots` of at least 1")
        return self.bank.grow(slots, domain=domain)

    def widen(self, units: int) -> None:
        """Add hidden units, fully connected to the old ones; all parameters except the values are replaced."""
        check_at_least(1, units=units)
        entering, carried = self.options.blocks
        self.by_input = expand_units(self.by_input, units, blocks=entering)
        self.by_state = expand_units(self.by_state, units, blocks=carried, rows=units)
        self.bias = expand_units(self.bias, units, blocks=BLOCKS)
        if self.by_content is not None and self.bank is not None:
            self.by_content = expand_units(self.by_content, units, blocks=entering)
            self.bank.widen(units)
        self.hidden += units

    def widening_cost(self, units: int) -> int:
        """Return the number of parameters that `widen(units)` adds."""
        (entering, carried), slots = self.options.blocks, 0 if self.bank is None else self.bank.slots
        inputs = self.by_input.shape[1] + (0 if self.by_content is None else self.by_content.shape[1])
        by_state = carried * ((self.hidden + units) ** 2 - self.hidden**2)
        return self.directions * (by_state + (entering * inputs + BLOCKS + slots) * units)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, segments: int | None = None, start: InitialState | None = None
    ) -> States:
        """Return all states for inputs (b, t, e) of these lengths (b,), by default t.

        `segments` restricts reads to the first segments of the bank. With `start`, whose tensors are (g, b, h), the
        first step continues from that state and reads the bank with it. An open tape gets the mean weight of every
        slot over a row's reads, `memory/weights` (b, g, m), and of every segment, `memory/mass` (b, g, s).
        """
        lengths = torch.full((len(x),), x.shape[1]) if lengths is None else lengths
        layout = make_layout(lengths, x.shape[1], x.device)
        with torch.autocast(x.device.type, enabled=False):  # errors of many small steps add up: the loop stays in fp32
            flat = x.to(self.bias.dtype).flatten(0, 1)
            inputs = torch.stack([flat.index_select(0, at) for at in layout.words[: self.directions]])  # (g, p, e)
            schedule = Schedule(layout.active, zero_first=start is None)
            if start is not None:  # in the row order of the first step, which contains every row
                order = layout.row[: len(lengths)]
                tensors = (None if t is None else t.to(self.bias.dtype).index_select(1, order) for t in start)
                start = InitialState(*tensors)  # pyright: ignore[reportArgumentType]
            states, read = unroll(inputs, self._weights(segments), CELLS[self.cell], schedule, start)
        if self.bank is not None and is_recording():
            self._record_weights(read, layout, self.bank.sizes[:segments])
        return States(states, layout)

    def step(self, x: Tensor, before: InitialState) -> InitialState:
        """Compute one step of inputs (b, e) from a state, as in `forward`."""
        inner = torch.zeros_like(before.hidden) if before.inner is None else before.inner
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.bias.dtype).expand(self.directions, *x.shape)
            return InitialState(*reference_step(inputs, before.hidden, inner, self._weights(None), CELLS[self.cell]))

    def _weights(self, segments: int | None) -> Weights:
        if self.by_content is not None and self.bank is not None:
            return Weights(self.by_input, self.by_state, self.bias, self.by_content, *self.bank.segments(segments))
        if segments is not None:
            raise BadInput(f"`segments` needs a layer with slots, got segments={segments}")
        sizes = ((0, self.by_input.shape[2]), (0, self.hidden), (0, 0))
        empty = (self.bias.new_empty(self.directions, *size) for size in sizes)
        return Weights(self.by_input, self.by_state, self.bias, *empty)

    def _record_weights(self, read: Tensor, layout: Layout, sizes: list[int]) -> None:
        skipped = len(layout.row) - read.shape[1]  # rows of a first step that does not read
        row, real = layout.row[skipped:], layout.real[skipped:].to(read.dtype)
        counts = read.new_zeros(len(layout.last)).index_add_(0, row, real).clamp(min=1)
        sums = read.new_zeros(len(read), len(layout.last), read.shape[2]).index_add_(1, row, read * real[:, None])
        mean = (sums / counts[:, None]).transpose(0, 1)  # (b, g, m)
        record("memory/weights", mean)
        record("memory/mass", torch.stack([segment.sum(-1) for segment in mean.split(sizes, -1)], -1))
        reads = read[:, real > 0]  # (g, reads, m)
        if not self.training and reads.shape[1]:
            record("stat/memory/effective_slots", effective_slots(reads))
            if len(sizes) > 1:
                record("stat/memory/newest_mass", reads[..., -sizes[-1] :].sum(-1).mean())


class MemoryLSTM(RecurrentLayer):
    """LSTM that reads a growable bank of slots at every step (Asghar et al., 2020).

    Args:
        inputs: Input width e.
        hidden: Hidden units h per direction.
        slots: Slots per direction; `grow(slots, domain=...)` adds more.
        **settings: Fields of `RecurrentSettings`, such as `slot_width`, `directions`, `temperature`.

    Shape:
        inputs (b, t, e) and optional lengths (b,) to `States`: `padded()` (b, t, g * h), `last()` (b, g * h).

    Example:
        >>> layer = MemoryLSTM(8, 16, slots=32)
        >>> states = layer(torch.randn(4, 7, 8), torch.tensor([7, 5, 2, 1]))
        >>> states.padded().shape, states.last().shape
        (torch.Size([4, 7, 32]), torch.Size([4, 32]))
    """

    def __init__(self, inputs: int, hidden: int, *, slots: int = 64, **settings: Any) -> None:
        super().__init__(inputs, hidden, cell="lstm", slots=slots, **settings)


class MemoryGRU(RecurrentLayer):
    """GRU that reads a growable bank of slots at every step (Asghar et al., 2020).

    Arguments and shapes are those of `MemoryLSTM`.

    Example:
        >>> layer = MemoryGRU(8, 16, slots=32, directions=1)
        >>> new_parameters = layer.grow(16, domain=1)
        >>> layer(torch.randn(4, 7, 8)).padded().shape
        torch.Size([4, 7, 16])
    """

    def __init__(self, inputs: int, hidden: int, *, slots: int = 64, **settings: Any) -> None:
        super().__init__(inputs, hidden, cell="gru", slots=slots, **settings)


Columns = Sequence[RecurrentLayer]


def run_columns(
    columns: Columns, words: Tensor, lengths: Tensor, *, dropout: nn.Module, segments: int | None = None
) -> list[States]:
    """Return the states of each column for words (b, t, e); a column reads [x_t; states of earlier columns at t].

    Progressive networks (Rusu et al., 2016) with all earlier states of both directions as inputs, without adapters.
    Only the newest column is trained: it alone has dropout on its words, and `segments` refers to its bank.
    """
    *earlier, newest = columns
    padded, states = [], []
    for column in earlier:
        states.append(column(torch.cat([words, *padded], -1), lengths))
        padded.append(states[-1].padded())  # (b, t, g h)
    states.append(newest(torch.cat([dropout(words), *padded], -1), lengths, segments=segments))
    return states


def total_width(columns: Columns) -> int:
    """Return the width of the concatenated states of all columns."""
    return sum(column.directions * column.hidden for column in columns)


def column_positions(columns: Columns, units: int) -> Tensor:
    """Return the position (total_width,) of each state after the newest column is widened by `units`."""
    newest, start = columns[-1], total_width(columns[:-1])
    sides = [start + g * (newest.hidden + units) + torch.arange(newest.hidden) for g in range(newest.directions)]
    return torch.cat([torch.arange(start), *sides])


def next_column(columns: Columns, units: int, *, slots: int = 0) -> RecurrentLayer:
    """Build a column with the settings of the first one; with `slots` it has its own bank."""
    first, words = columns[0], columns[0].by_input.shape[1]
    slot_width = words if first.bank is None else first.bank.width
    options = replace(first.options, slots=slots, slot_width=slot_width)
    return RecurrentLayer(words + total_width(columns), units, **asdict(options))


def next_column_cost(columns: Columns, units: int) -> int:
    """Return the number of parameters of a column without a bank."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in next_column(columns, units).parameters())

"""Sequence-to-sequence network: encoder and decoder with memory banks, attention, and word scores.

Shapes: b batch, s words per message, t words per response, h hidden units, j width of the combined state, v words,
p real words of all responses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_known
from holdfast.nn.backbones.words import SEPARATOR, WordTable
from holdfast.nn.growth import expand_inputs
from holdfast.nn.recurrent.layer import (
    BANK_SETTINGS,
    RecurrentLayer,
    next_column,
    next_column_cost,
    run_columns,
    total_width,
)
from holdfast.ops.recurrent_step import InitialState
from lab.dialogue.decoding import Score, State

ENTRIES = 1 << 25  # maximum number of word scores in memory at once
ATTENTIONS = ("dot", "general")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqSettings:
    """Settings of encoder, decoder and attention; `slots=0` is the plain network."""

    cell: str = "gru"
    embedding: int = 300
    hidden: int = 1024
    slots: int = 1024
    slot_width: int | None = None  # default: `hidden`
    directions: int = 1
    attention: str = "dot"
    joint: int | None = None  # default: `hidden`
    init: str = "data"
    key_scale: float = 1.0
    value_scale: float = 1.0
    temperature: float = 1.0
    dropout: float = 0.1

    retired: ClassVar[Mapping[str, Any]] = {"first_read": "zero"}

    def __post_init__(self) -> None:
        if min(self.embedding, self.hidden) < 1 or self.directions not in (1, 2) or self.hidden % self.directions:
            raise BadInput(
                "encoder.embedding and encoder.hidden must be at least 1, encoder.directions 1 or 2, and hidden even "
                f"if directions is 2; got {self.embedding}, {self.hidden} and {self.directions}"
            )


class Attention(nn.Module):
    """tanh(W [h; sum_s a_s e_s]) with a = softmax_s <h, e_s>, or <W' h, e_s> if general (Luong et al., 2015)."""

    def __init__(self, hidden: int, joint: int, *, kind: str = "dot") -> None:
        super().__init__()
        check_known("attention", kind, ATTENTIONS)
        self.by_state = nn.Linear(hidden, hidden, bias=False) if kind == "general" else None
        self.joint = nn.Linear(2 * hidden, joint)

    def attend(self, states: Tensor, encoded: Tensor, lengths: Tensor) -> Tensor:
        """(b, t, 2h) states (b, t, h) and their context from encoder states (b, s, h) with lengths (b,)."""
        query = states if self.by_state is None else self.by_state(states)
        padding = torch.arange(encoded.shape[1], device=lengths.device) >= lengths[:, None]  # (b, s)
        weights = (query @ encoded.mT).float().masked_fill(padding[:, None], -torch.inf).softmax(-1)
        return torch.cat([states, weights.to(encoded.dtype) @ encoded], -1)

    def combine(self, attended: Tensor) -> Tensor:
        """(.., j) from states and contexts (.., 2h)."""
        return self.joint(attended).tanh()

    def widen(self, units: int) -> None:
        """Adapt to states with more units, which come after the old ones."""
        hidden = self.joint.in_features // 2
        old = torch.arange(hidden)
        self.joint = expand_inputs(self.joint, torch.cat([old, old + hidden + units]), 2 * (hidden + units))
        if self.by_state is not None:
            layer = nn.Linear(hidden + units, hidden + units, bias=False).to(self.by_state.weight)
            with torch.no_grad():
                layer.weight[:hidden, :hidden] = self.by_state.weight
            self.by_state = layer.train(self.training).requires_grad_(self.by_state.weight.requires_grad)

    def widening_cost(self, units: int) -> int:
        """Number of parameters that `widen` would add."""
        hidden = self.joint.in_features // 2
        square = 0 if self.by_state is None else (hidden + units) ** 2 - hidden**2
        return 2 * units * self.joint.out_features + square


class Seq2Seq(nn.Module):
    """Encoder, decoder and attention with one word table for both sides and one output row per word.

    With two directions the encoder has half of the units per direction. The decoder starts from the encoder's last
    hidden state; the inner state of an LSTM starts at zero.
    """

    def __init__(self, words: Sequence[str], settings: Seq2SeqSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        joint = hidden if settings.joint is None else settings.joint
        layer: dict[str, Any] = {
            "cell": settings.cell,
            "slots": settings.slots,
            "slot_width": hidden if settings.slot_width is None else settings.slot_width,
            **{name: getattr(settings, name) for name in BANK_SETTINGS},
        }
        self.table = WordTable(words, settings.embedding, spread=1.0)
        self.dropout = nn.Dropout(settings.dropout)
        units, directions = hidden // settings.directions, settings.directions
        self.encoder = RecurrentLayer(settings.embedding, units, directions=directions, **layer)
        self.decoder = RecurrentLayer(settings.embedding, hidden, directions=1, **layer)
        self.later = nn.ModuleList()  # (encoder, decoder) pairs of the columns added later
        self.attention = Attention(hidden, joint, kind=settings.attention)
        self.out = WordTable(words, joint + 1, spread=(3 * joint) ** -0.5)  # the last column is the bias

    @property
    def encoders(self) -> list[RecurrentLayer]:
        return [self.encoder, *(pair[0] for pair in self.later)]  # pyright: ignore[reportReturnType, reportIndexIssue]

    @property
    def decoders(self) -> list[RecurrentLayer]:
        return [self.decoder, *(pair[1] for pair in self.later)]  # pyright: ignore[reportReturnType, reportIndexIssue]

    def encode(self, message: Tensor, lengths: Tensor) -> tuple[Tensor, list[InitialState]]:
        """(b, s, h) states of all encoders for messages (b, s) with lengths (b,), and the decoders' initial states."""
        columns = run_columns(self.encoders, self.table(message), lengths, dropout=self.dropout)
        starts = [InitialState(states.last()[None]) for states in columns]
        return torch.cat([states.padded() for states in columns], -1), starts

    def decode(self, words: Tensor, lengths: Tensor, starts: Sequence[InitialState]) -> Tensor:
        """(b, t, h) states of all decoders, given the words (b, t) that precede those of the response."""
        vectors, columns = self.table(words), []
        for decoder, start in zip(self.decoders, starts, strict=True):
            inputs = self.dropout(vectors) if decoder is self.decoders[-1] else vectors
            columns.append(decoder(torch.cat([inputs, *columns], -1), lengths, start=start).padded())
        return torch.cat(columns, -1)

    def step(self, words: Tensor, state: State) -> State:
        """One step of all decoders for words (b,), equal to `decode`; states are concatenated over the decoders."""
        sizes, inputs = [decoder.hidden for decoder in self.decoders], [self.table(words)]
        inners = []
        for decoder, *before in zip(self.decoders, *(tensor.split(sizes, -1) for tensor in state), strict=True):
            hidden, inner = decoder.step(torch.cat(inputs, -1), InitialState(*(tensor[None] for tensor in before)))
            assert inner is not None
            inputs.append(hidden[0])
            inners.append(inner[0])
        return torch.cat(inputs[1:], -1), torch.cat(inners, -1)

    def forward(self, message: Tensor, message_lengths: Tensor, response: Tensor, lengths: Tensor) -> Tensor:
        """(b,) summed negative log-likelihood of responses (b, t), with teacher forcing."""
        combined, at = self._combined_states(message, message_lengths, response, lengths)
        losses = self._losses(combined, response.flatten().index_select(0, at))
        return losses.new_zeros(response.numel()).index_copy(0, at, losses).view_as(response).sum(1)

    def next_words(self, message: Tensor, message_lengths: Tensor, response: Tensor, lengths: Tensor) -> Tensor:
        """(b, t) most probable word at every position of the responses (b, t), with teacher forcing; -1 for padding."""
        combined, at = self._combined_states(message, message_lengths, response, lengths)
        rows = self.out.rows()
        pieces = combined.split(max(1, ENTRIES // len(rows)))
        words = torch.cat([_logits(piece, rows).argmax(-1) for piece in pieces])
        return torch.full_like(response, -1).flatten().index_copy(0, at, words).view_as(response)

    def _combined_states(
        self, message: Tensor, message_lengths: Tensor, response: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(p, j) combined states before each real word of the responses, and the positions (p,) of these words."""
        encoded, starts = self.encode(message, message_lengths)
        previous = torch.cat([torch.full_like(response[:, :1], SEPARATOR), response[:, :-1]], 1)
        states = self.decode(previous, lengths.clamp(min=1), starts)
        real = torch.arange(response.shape[1], device=lengths.device) < lengths[:, None]
        at = real.flatten().nonzero().squeeze(1)
        attended = self.attention.attend(states, encoded, message_lengths).flatten(0, 1).index_select(0, at)
        return self.attention.combine(attended), at

    def scorer(self, message: Tensor, lengths: Tensor) -> tuple[Score, State]:
        """Return a function that scores next words, for one or several responses per message, and its first state."""
        encoded, starts = self.encode(message, lengths)

        def score(last: Tensor, state: State) -> tuple[Tensor, State]:
            state = self.step(last, state)
            states = state[0].unflatten(0, (len(encoded), -1))  # (b, responses, h)
            combined = self.attention.combine(self.attention.attend(states, encoded, lengths).flatten(0, 1))
            return _logits(combined, self.out.rows()).float().log_softmax(-1), state

        first = torch.cat([start.hidden[0] for start in starts], -1)
        return score, (first, torch.zeros_like(first))

    def _losses(self, combined: Tensor, target: Tensor) -> Tensor:
        """(p,) negative log-likelihood per word, computed in pieces that fit in memory."""
        rows = self.out.rows()
        size = max(1, ENTRIES // len(rows))
        pieces = zip(combined.split(size), target.split(size), strict=True)
        return torch.cat([F.cross_entropy(_logits(a, rows).float(), b, reduction="none") for a, b in pieces])

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add slots to both banks; return the new parameters."""
        return [*self.encoder.grow(slots, domain=domain), *self.decoder.grow(slots, domain=domain)]

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        """Add new words to inputs and outputs; `vectors` is a file of initial input vectors."""
        return [*self.table.grow(words, vectors=vectors), *self.out.grow(words)]

    def widen(self, units: int) -> None:
        """Add hidden units to encoder and decoder."""
        for part in (self.encoder, self.decoder, self.attention):
            part.widen(units)

    def cost(self, units: int, *, column: bool = False) -> int:
        """Number of parameters that `widen`, or with `column` that `add_column`, would add."""
        if column:
            units_per_direction = units // self.encoder.directions
            layers = next_column_cost(self.encoders, units_per_direction) + next_column_cost(self.decoders, units)
        else:
            layers = self.encoder.widening_cost(units) + self.decoder.widening_cost(units)
        return layers + self.attention.widening_cost(units)

    def add_column(self, units: int) -> None:
        """Freeze the network; add an encoder and a decoder that read it, and new attention and output layers."""
        self.requires_grad_(False)
        column = [next_column(self.encoders, units // self.encoder.directions), next_column(self.decoders, units)]
        self.later.append(nn.ModuleList(column).to(self.decoder.bias).train(self.training))
        kind = "dot" if self.attention.by_state is None else "general"
        attention = Attention(total_width(self.decoders), self.attention.joint.out_features, kind=kind)
        self.attention = attention.to(self.decoder.bias).train(self.training)
        first, *later = self.out.groups
        out = WordTable(first, self.out.width, spread=self.out.spread).to(self.decoder.bias)
        for words in later:
            out.grow(words)
        self.out = out


def _logits(combined: Tensor, rows: Tensor) -> Tensor:
    """(p, v) from combined states (p, j) and the output rows (v, j + 1) of all words."""
    return F.linear(torch.cat([combined, torch.ones_like(combined[:, :1])], 1), rows)

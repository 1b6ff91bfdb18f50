"""From words heard to words said: an encoder and a decoder that read banks of slots, attention between, a score a word.

b batch, s words of a message, t words of a response, h hidden units, j width of the mixture, v words, p real words
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.nn.backbones.layers import Attention
from holdfast.nn.backbones.words import SEPARATOR, WordTable, read_vectors
from holdfast.nn.decoding import Score, State
from holdfast.nn.recurrent.layer import RecurrentLayer, next_column, next_column_cost, run_columns, total_width
from holdfast.nn.recurrent.reference import InitialState

ENTRIES = 1 << 25  # scores of words that are held at once


class Seq2Seq(nn.Module):
    """Sequence to sequence; one table of words for both sides, and a row of scores for each word, which grow together.

    With two directions the encoder has half of the units in each. The decoder begins with the encoder's last hidden
    state, and with none in the inner state of an LSTM.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        embedding: int,
        hidden: int,
        directions: int,
        attention: str,
        joint: int,
        dropout: float,
        recurrent: dict[str, Any],
    ) -> None:
        super().__init__()
        self.table = WordTable(words, embedding, spread=1.0)
        self.dropout = nn.Dropout(dropout)
        self.encoder = RecurrentLayer(embedding, hidden // directions, directions=directions, **recurrent)
        self.decoder = RecurrentLayer(embedding, hidden, directions=1, **recurrent)
        self.later = nn.ModuleList()  # pairs of columns that came after them
        self.attention = Attention(hidden, joint, kind=attention)
        self.out = WordTable(words, joint + 1, spread=(3 * joint) ** -0.5)  # the last column is the bias

    @property
    def encoders(self) -> list[RecurrentLayer]:
        return [self.encoder, *(pair[0] for pair in self.later)]  # pyright: ignore[reportReturnType, reportIndexIssue]

    @property
    def decoders(self) -> list[RecurrentLayer]:
        return [self.decoder, *(pair[1] for pair in self.later)]  # pyright: ignore[reportReturnType, reportIndexIssue]

    def listen(self, message: Tensor, heard: Tensor) -> tuple[Tensor, list[InitialState]]:
        """(b, s, h) the states of all encoders for messages (b, s), of which rows have `heard`; decoders' starts."""
        found = run_columns(self.encoders, self.table(message), heard, dropout=self.dropout)
        return torch.cat([states.padded() for states in found], -1), [
            InitialState(states.last()[None]) for states in found
        ]

    def say(self, words: Tensor, said: Tensor, starts: Sequence[InitialState]) -> Tensor:
        """(b, t, h) the states of all decoders for words (b, t) before those of the response."""
        heard, seen = self.table(words), []
        for decoder, start in zip(self.decoders, starts, strict=True):
            own = self.dropout(heard) if decoder is self.decoders[-1] else heard
            seen.append(decoder(torch.cat([own, *seen], -1), said, start=start).padded())
        return torch.cat(seen, -1)

    def step(self, words: Tensor, state: State) -> State:
        """One step of all decoders for words (b,), as `say` makes it; a state is that of all, side by side."""
        sizes, given = [decoder.hidden for decoder in self.decoders], [self.table(words)]
        inners = []
        for decoder, *before in zip(self.decoders, *(part.split(sizes, -1) for part in state), strict=True):
            hidden, inner = decoder.step(torch.cat(given, -1), InitialState(*(part[None] for part in before)))
            assert inner is not None
            given.append(hidden[0])
            inners.append(inner[0])
        return torch.cat(given[1:], -1), torch.cat(inners, -1)

    def forward(self, message: Tensor, heard: Tensor, response: Tensor, said: Tensor) -> Tensor:
        """(b,) the summed negative log-likelihood of responses (b, t), each word after the true words before it."""
        encoded, starts = self.listen(message, heard)
        before = torch.cat([torch.full_like(response[:, :1], SEPARATOR), response[:, :-1]], 1)
        states = self.say(before, said.clamp(min=1), starts)
        there = torch.arange(response.shape[1], device=said.device) < said[:, None]
        at = there.flatten().nonzero().squeeze(1)  # (p,)
        looked = self.attention.look(states, encoded, heard).flatten(0, 1).index_select(0, at)
        lost = self._lost(self.attention.mix(looked), response.flatten().index_select(0, at))
        return lost.new_zeros(there.numel()).index_copy(0, at, lost).view_as(response).sum(1)

    def scorer(self, message: Tensor, heard: Tensor) -> tuple[Score, State]:
        """For messages (b, s): what scores each next word, for one answer a message or several, and its first state."""
        encoded, starts = self.listen(message, heard)

        def score(last: Tensor, state: State) -> tuple[Tensor, State]:
            state = self.step(last, state)
            states = state[0].unflatten(0, (len(encoded), -1))  # (b, answers, h)
            mixed = self.attention.mix(self.attention.look(states, encoded, heard).flatten(0, 1))
            return _scores(mixed, self.out.rows()).float().log_softmax(-1), state

        first = torch.cat([start.hidden[0] for start in starts], -1)
        return score, (first, torch.zeros_like(first))

    def _lost(self, mixed: Tensor, target: Tensor) -> Tensor:
        """(p,) the negative log-likelihood of each word, not too many scores at a time."""
        rows = self.out.rows()
        pieces = zip(*(part.split(max(1, ENTRIES // len(rows))) for part in (mixed, target)), strict=True)
        return torch.cat([F.cross_entropy(_scores(a, rows).float(), b, reduction="none") for a, b in pieces])

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """More slots in both banks; the new parameters."""
        return [*self.encoder.grow(slots, domain=domain), *self.decoder.grow(slots, domain=domain)]

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        """Words that are new, to be heard and to be said; `vectors` is a file of what they are heard as at first."""
        found = {} if vectors is None else read_vectors(vectors, words, self.table.width)
        known = set(self.table.index)
        new = [*self.table.grow(words), *self.out.grow(words)]
        self.table.put({word: vector for word, vector in found.items() if word not in known})
        return new

    def widen(self, units: int) -> None:
        """More hidden units in encoder and decoder, joined both ways."""
        for part in (self.encoder, self.decoder, self.attention):
            part.widen(units)

    def cost(self, units: int, *, column: bool = False) -> int:
        """How many parameters `widen` would add, or `add_column`."""
        if column:
            own = next_column_cost(self.encoders, units // self.encoder.directions) + next_column_cost(
                self.decoders, units
            )
        else:
            own = self.encoder.widening_cost(units) + self.decoder.widening_cost(units)
        return own + self.attention.cost(units)

    def add_column(self, units: int) -> None:
        """All rests from now on; a new encoder and decoder read the old ones, and what says words is made anew."""
        self.requires_grad_(False)
        made = [next_column(self.encoders, units // self.encoder.directions), next_column(self.decoders, units)]
        self.later.append(nn.ModuleList(made).to(self.decoder.bias).train(self.training))
        kind = "dot" if self.attention.by_state is None else "general"
        attention = Attention(total_width(self.decoders), self.attention.joint.out_features, kind=kind)
        self.attention = attention.to(self.decoder.bias).train(self.training)
        first, *later = self.out.groups
        out = WordTable(first, self.out.width, spread=self.out.spread).to(self.decoder.bias)
        for words in later:
            out.grow(words)
        self.out = out


def _scores(mixed: Tensor, rows: Tensor) -> Tensor:
    """(p, v) for mixtures (p, j), by the rows (v, j + 1) of all words."""
    return F.linear(torch.cat([mixed, torch.ones_like(mixed[:, :1])], 1), rows)

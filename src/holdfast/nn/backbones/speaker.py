"""From words heard to words said: an encoder and a decoder that read banks of slots, attention between, a score a word.

b batch, s words of a message, t words of a response, h hidden units, j width of the mixture, v words, p real words
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.nn.backbones.attention import Attention
from holdfast.nn.backbones.word_table import WordTable
from holdfast.nn.backbones.word_vectors import read_vectors
from holdfast.nn.backbones.words import SEPARATOR
from holdfast.nn.decoding import Score, State
from holdfast.nn.plain_loop import Start
from holdfast.nn.recurrent import Recurrent

ENTRIES = 1 << 25  # scores of words that are held at once


class Speaker(nn.Module):
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
        self.encoder = Recurrent(embedding, hidden // directions, directions=directions, **recurrent)
        self.decoder = Recurrent(embedding, hidden, directions=1, **recurrent)
        self.attention = Attention(hidden, joint, kind=attention)
        self.out = WordTable(words, joint + 1, spread=(3 * joint) ** -0.5)  # the last column is the bias

    def listen(self, message: Tensor, heard: Tensor) -> tuple[Tensor, Start]:
        """(b, s, h) the encoder's states for messages (b, s), of which rows have `heard`, and the decoder's start."""
        states = self.encoder(self.dropout(self.table(message)), heard)
        return states.padded(), Start(states.last()[None])

    def forward(self, message: Tensor, heard: Tensor, response: Tensor, said: Tensor) -> Tensor:
        """(b,) the summed negative log-likelihood of responses (b, t), each word after the true words before it."""
        encoded, start = self.listen(message, heard)
        before = torch.cat([torch.full_like(response[:, :1], SEPARATOR), response[:, :-1]], 1)
        states = self.decoder(self.dropout(self.table(before)), said.clamp(min=1), start=start).padded()  # (b, t, h)
        there = torch.arange(response.shape[1], device=said.device) < said[:, None]
        at = there.flatten().nonzero().squeeze(1)  # (p,)
        looked = self.attention.look(states, encoded, heard).flatten(0, 1).index_select(0, at)
        lost = self._lost(self.attention.mix(looked), response.flatten().index_select(0, at))
        return lost.new_zeros(there.numel()).index_copy(0, at, lost).view_as(response).sum(1)

    def scorer(self, message: Tensor, heard: Tensor) -> tuple[Score, State]:
        """For messages (b, s): what scores each next word, for one answer a message or several, and its first state."""
        encoded, start = self.listen(message, heard)

        def score(last: Tensor, state: State) -> tuple[Tensor, State]:
            hidden, inner = self.decoder.step(self.table(last), Start(*(part[None] for part in state)))
            assert inner is not None
            states = hidden[0].unflatten(0, (len(encoded), -1))  # (b, answers, h)
            mixed = self.attention.mix(self.attention.look(states, encoded, heard).flatten(0, 1))
            return _scores(mixed, self.out.rows()).float().log_softmax(-1), (hidden[0], inner[0])

        return score, (start.hidden[0], torch.zeros_like(start.hidden[0]))

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

    def cost(self, units: int) -> int:
        """How many parameters `widen` would add."""
        return self.encoder.cost(units) + self.decoder.cost(units) + self.attention.cost(units)


def _scores(mixed: Tensor, rows: Tensor) -> Tensor:
    """(p, v) for mixtures (p, j), by the rows (v, j + 1) of all words."""
    return F.linear(torch.cat([mixed, torch.ones_like(mixed[:, :1])], 1), rows)

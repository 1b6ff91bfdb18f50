"""A recurrent network that answers messages: an encoder and a decoder with attention, each with a bank of slots.

b batch, n tokens of a kind, t words of a response
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.companion import Likeness, load_likeness
from holdfast.nn.backbones.seq2seq import ENTRIES, Seq2Seq
from holdfast.nn.backbones.words import END, PAD, SEPARATOR, UNKNOWN, WordTable, text_of, texts_of, vocabulary, words_of
from holdfast.nn.decoding import SpecialTokens, beam_search, check_search, greedy
from holdfast.nn.growth import units_for_budget

WORDS = "words.json"
MESSAGE, RESPONSE, MEANT = range(3)  # the types of tokens; the last are numbers of word vectors, for scoring alone


class Dialogue(Backbone):
    """Sequence to sequence with attention and two banks (Asghar et al., 2020, App. C).

    The decoder begins with the encoder's last state, and its first read is with that state. Its features are the
    summed negative log-likelihood of the response's words, END included, and how many they are: (b, 2).
    """

    takes: ClassVar[str] = "text"

    def __init__(
        self,
        *,
        words: Sequence[str],
        cell: str = "gru",
        embedding: int = 300,
        hidden: int = 1024,
        slots: int = 1024,
        slot_width: int | None = None,
        directions: int = 1,
        attention: str = "dot",
        joint: int | None = None,
        first_read: str = "zero",
        dropout: float = 0.1,
        length: int = 30,
        beam: int = 1,
        longest: int = 30,
        length_power: float = 1.0,
        columns: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if min(length, embedding, hidden) < 1 or directions not in (1, 2) or hidden % directions:
            raise BadInput("length, embedding and hidden must be at least 1, hidden even where directions are 2")
        check_search(beam, longest)
        slot_width, joint = hidden if slot_width is None else slot_width, hidden if joint is None else joint
        self.settings = {
            "cell": cell, "embedding": embedding, "hidden": hidden, "slots": slots, "slot_width": slot_width,
            "directions": directions, "attention": attention, "joint": joint, "first_read": first_read,
            "dropout": dropout, "length": length, "beam": beam, "longest": longest, "length_power": length_power,
            "columns": [],
        }  # fmt: skip
        self.length, self.beam, self.longest, self.length_power, self.width = length, beam, longest, length_power, 2
        self.likeness: Likeness | None = None
        recurrent = {"cell": cell, "slots": slots, "slot_width": slot_width, "first_read": first_read}
        self.net = Seq2Seq(
            words, embedding=embedding, hidden=hidden, directions=directions, attention=attention, joint=joint,
            dropout=dropout, recurrent=recurrent,
        )  # fmt: skip
        for units in columns:
            self.add_column(units)

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        cell: str = "gru",
        embedding: int = 300,
        hidden: int = 1024,
        slots: int = 1024,
        slot_width: int | None = None,
        directions: int = 1,
        attention: str = "dot",
        joint: int | None = None,
        first_read: str = "zero",
        dropout: float = 0.1,
        length: int = 30,
        beam: int = 1,
        longest: int = 30,
        length_power: float = 1.0,
        vectors: str | None = None,
        min_count: int = 1,
        max_words: int = 27_000,
    ) -> Self:
        """Learn the vocabulary from pairs of message and response; `vectors` is a file of word vectors for scoring.

        `length` counts the words of each text, `longest` those of an answer. `slots=0` is the plain network.
        """
        examples = list(training())
        if not examples or isinstance(examples[0], str):
            raise BadInput("answers are learned from pairs of texts: give the columns message and response")
        words = vocabulary(examples, min_count=min_count, max_words=max_words)
        if not words:
            raise BadInput(f"no word occurs {min_count} times in the training texts: lower min_count or add texts")
        made = cls(
            words=[END, *words], cell=cell, embedding=embedding, hidden=hidden, slots=slots, slot_width=slot_width,
            directions=directions, attention=attention, joint=joint, first_read=first_read, dropout=dropout,
            length=length, beam=beam, longest=longest, length_power=length_power,
        )  # fmt: skip
        made.likeness = None if vectors is None else load_likeness(vectors)
        return made

    @property
    def table(self) -> WordTable:
        return self.net.table

    @property
    def slots(self) -> int:
        """Those of each of the two banks."""
        return 0 if self.net.decoder.bank is None else self.net.decoder.bank.slots

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """More slots in the banks of encoder and decoder; the new parameters, for an optimizer to adopt."""
        return self.net.grow(slots, domain=domain)

    def words_in(self, examples: Any) -> list[str]:
        """All words that this network sees in raw examples, in the order in which they come."""
        return list(dict.fromkeys(word for text in texts_of(examples) for word in words_of(text)[: self.length]))

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        """Words that are new, to be heard and to be said, at random or heard as a file of vectors has them."""
        return self.net.grow_words(words, vectors=vectors)

    def units_for(self, parameters: int, *, column: bool = False) -> int:
        """How many hidden units cost nearest to so many parameters, in `widen` or as a column of their own."""
        return units_for_budget(parameters, partial(self.net.cost, column=column))

    def add_column(self, units: int) -> Tensor:
        """All that is there rests from now on; a new encoder and decoder read it, and what says words is made anew."""
        if units < 1 or units % self.settings["directions"]:
            raise BadInput(f"a column needs at least one unit in each direction of the encoder, not {units} in all")
        self.net.add_column(units)
        self.settings["columns"].append(units)
        return torch.arange(self.width)

    def widen(self, units: int) -> Tensor:
        """More hidden units in encoder and decoder, joined both ways; the features stay the same two."""
        if self.net.encoder.directions > 1 or self.net.later:
            raise BadInput("hidden units are added where the encoder has one direction and there are no columns")
        self.net.widen(units)
        self.settings["hidden"] += units
        return torch.arange(self.width)

    def prepare(self, examples: Any) -> TokenStore:
        """Message and response one after another, told apart by their types; messages alone can be answered."""
        rows, types = [], []
        for example in examples:
            message, response = (example, None) if isinstance(example, str) else example
            parts = [self.table.ids(words_of(message)[: self.length]) or [UNKNOWN]]
            if response is not None:
                said = words_of(response)[: self.length]
                parts.append(self.table.ids([*said, END]))
                parts.append([] if self.likeness is None else self.likeness.ids(said))
            rows.append([i for part in parts for i in part])
            types.append([kind for kind, part in enumerate(parts) for _ in part])
        return TokenStore.build(rows, pad=PAD, types=types)

    def forward(self, x: Inputs) -> Tensor:
        """(b, 2) each response's summed negative log-likelihood, and its number of words; zeros for messages alone."""
        response, said = _part(x, RESPONSE)  # (b, t)
        if not response.shape[1]:
            return self.net.decoder.bias.new_zeros(len(response), self.width)
        lost = self.net(*_part(x, MESSAGE), response, said)
        return torch.stack([lost, said.to(lost.dtype)], 1)

    @torch.no_grad()
    def answer(self, x: Inputs) -> Tensor:
        """(b, longest) the words of an answer to each message, in the mode that the network is in."""
        message, heard = _part(x, MESSAGE)
        marks = SpecialTokens(begin=SEPARATOR, end=self.table.index[END], pad=PAD, silent=(PAD, UNKNOWN, SEPARATOR))
        found = []
        for some, lengths in zip(*(part.split(self._rows()) for part in (message, heard)), strict=True):
            score, state = self.net.scorer(some, lengths)
            if self.beam == 1:
                found.append(greedy(score, state, marks, longest=self.longest))
            else:
                options = {"beam": self.beam, "length_power": self.length_power}
                found.append(beam_search(score, state, marks, longest=self.longest, **options))
        return torch.cat(found)

    def _rows(self) -> int:
        """How many messages are answered at once, so that the scores of all words fit."""
        return max(1, ENTRIES // (self.beam * len(self.table.words())))

    def references(self, x: Inputs) -> Tensor:
        """(b, t) the response without its END, padded; words that are not known are -1, which no answer has."""
        response, _ = _part(x, RESPONSE)
        return response.masked_fill(response == UNKNOWN, -1).masked_fill(response == self.table.index[END], PAD)

    def similarity(self, answers: Tensor, x: Inputs) -> Tensor | None:
        """(b,) the cosine of the mean word vectors of answer and response, by the file of vectors; None without one."""
        if self.likeness is None:
            return None
        meant, sizes = _part(x, MEANT)
        wanted = [row[:size] for row, size in zip(meant.tolist(), sizes.tolist(), strict=True)]
        said = [self.likeness.ids(words) for words in self._words(answers)]
        return torch.from_numpy(self.likeness.cosines(said, wanted)).to(answers.device, torch.float32)

    def texts(self, answers: Tensor) -> list[str]:
        return [text_of(words) for words in self._words(answers)]

    def _words(self, answers: Tensor) -> list[list[str]]:
        names = self.table.words()
        return [[names[i] for i in row if i != PAD] for row in answers.tolist()]

    def blocks(self) -> list[nn.Module]:
        return [self.net.table, self.net.encoder, self.net.decoder, self.net.later, self.net.attention, self.net.out]

    def save(self, folder: Path) -> dict[str, Any]:
        """The words, those that came later group by group, beside the settings."""
        (folder / WORDS).write_text(json.dumps(self.table.groups, ensure_ascii=False), encoding="utf-8")
        return copy.deepcopy(self.settings)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        first, *later = json.loads((folder / WORDS).read_text(encoding="utf-8"))
        made = cls(words=first, **settings)
        for words in later:
            made.grow_words(words)
        return made

    def preparation_key(self) -> str:
        meaning = None if self.likeness is None else self.likeness.name
        text = json.dumps(["dialogue", self.table.groups, self.length, meaning])
        return hashlib.sha256(text.encode()).hexdigest()


def _part(x: Inputs, kind: int) -> tuple[Tensor, Tensor]:
    """(b, n) the tokens of one type, padded, and how many each row has (b,)."""
    assert isinstance(x, Tokens)
    assert x.types is not None
    lengths = (x.mask & (x.types == kind)).sum(1)
    start = (x.mask & (x.types < kind)).sum(1)
    reach = torch.arange(int(lengths.max()), device=lengths.device)
    found = x.ids.gather(1, (start[:, None] + reach).clamp(max=x.ids.shape[1] - 1))
    return found.masked_fill(reach >= lengths[:, None], PAD), lengths

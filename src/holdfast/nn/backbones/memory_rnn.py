"""A recurrent network that reads a bank of slots at every step, over words, for texts and pairs of texts.

n examples, b batch, t tokens, h hidden units a direction, d width
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.word_table import WordTable
from holdfast.nn.backbones.word_vectors import read_vectors
from holdfast.nn.backbones.words import END, PAD, UNKNOWN, plain_words_of, vocabulary, words_of
from holdfast.nn.recurrent import Recurrent

POOLINGS = ("last", "mean")
MISSING = 0.05  # standard deviation of the vectors of words that a file of vectors lacks
WORDS = "words.json"


class MemoryRNN(Backbone):
    """Progressive memory banks' network (Asghar et al., 2020): both directions, each with a cell and a bank of its own.

    A text is [last state forwards; last state backwards]. A pair of such vectors u, v goes as [u; v; u v; |u - v|]
    through one layer with ReLU, so that a linear head after it makes the published classifier.
    """

    takes: ClassVar[str] = "text"

    def __init__(
        self,
        *,
        words: Sequence[str],
        pairs: bool,
        cell: str = "lstm",
        embedding: int = 300,
        hidden: int = 300,
        slots: int = 500,
        slot_width: int = 300,
        first_read: str = "zero",
        pooling: str = "last",
        out_tanh: bool = False,
        joint: int = 300,
        dropout: float = 0.1,
        length: int = 50,
        parity: bool = False,
        spread: float = 1.0,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        if min(length, joint, embedding) < 1:
            raise BadInput(f"length, joint and embedding must be at least 1, not {length}, {joint} and {embedding}")
        self.pairs, self.pooling, self.out_tanh, self.length, self.parity = pairs, pooling, out_tanh, length, parity
        self.settings = {
            "pairs": pairs, "cell": cell, "embedding": embedding, "hidden": hidden, "slots": slots,
            "slot_width": slot_width, "first_read": first_read, "pooling": pooling, "out_tanh": out_tanh,
            "joint": joint, "dropout": dropout, "length": length, "parity": parity, "spread": spread,
        }  # fmt: skip
        self.table = WordTable(words, embedding, spread=spread)
        self.dropout = nn.Dropout(dropout)
        self.rnn = Recurrent(embedding, hidden, cell=cell, slots=slots, slot_width=slot_width, first_read=first_read)
        self.joint = nn.Sequential(nn.Linear(8 * hidden, joint), nn.ReLU(), nn.Dropout(dropout)) if pairs else None
        self.width = joint if pairs else 2 * hidden

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        cell: str = "lstm",
        embedding: int = 300,
        hidden: int = 300,
        slots: int = 500,
        slot_width: int = 300,
        first_read: str = "zero",
        pooling: str = "last",
        out_tanh: bool = False,
        joint: int = 300,
        dropout: float = 0.1,
        length: int = 50,
        parity: bool = False,
        vectors: str | None = None,
        min_count: int = 1,
        max_words: int = 100_000,
    ) -> Self:
        """Learn the vocabulary; `vectors` is a file of word vectors, `parity` splits texts as the released code does.

        `length` counts the words of each text. `slots=0` is the plain network.
        """
        examples = list(training())
        words = vocabulary(
            examples, min_count=min_count, max_words=max_words, split=plain_words_of if parity else words_of
        )
        if not words:
            raise BadInput(f"no word occurs {min_count} times in the training texts: lower min_count or add texts")
        made = cls(
            words=[END, *words] if parity else words,
            pairs=not isinstance(examples[0], str),
            cell=cell,
            embedding=embedding,
            hidden=hidden,
            slots=slots,
            slot_width=slot_width,
            first_read=first_read,
            pooling=pooling,
            out_tanh=out_tanh,
            joint=joint,
            dropout=dropout,
            length=length,
            parity=parity,
            spread=1.0 if vectors is None else MISSING,
        )
        if vectors is not None:
            made.table.put(read_vectors(vectors, words, embedding))
        return made

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """More slots in both banks for a domain; the new parameters, for an optimizer to adopt."""
        return self.rnn.grow(slots, domain=domain)

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        """Vectors for words that are new, at random or from a file; the new parameters, for an optimizer to adopt.

        Old words keep their number, so examples that were prepared before stay valid: what was unknown then stays
        unknown in them. Examples that are prepared from now on use the new words, and `preparation` changes.
        """
        found = {} if vectors is None else read_vectors(vectors, words, self.table.width)
        known = set(self.table.index)
        new = self.table.grow(words)
        self.table.put({word: vector for word, vector in found.items() if word not in known})
        return new

    def words_of(self, text: str) -> list[str]:
        """The words that this encoder sees in a text, whether or not it knows them."""
        if self.parity:
            return [*plain_words_of(text)[: self.length], END]
        return words_of(text)[: self.length]

    def prepare(self, examples: Any) -> TokenStore:
        """A pair's texts lie one after the other, told apart by their types."""
        examples = list(examples)
        if not self.pairs:
            if not all(isinstance(example, str) for example in examples):
                raise BadInput("this encoder was built for single texts, but the data holds pairs of texts")
            return TokenStore.build([self._ids(text) for text in examples], pad=PAD)
        if any(isinstance(example, str) for example in examples):
            raise BadInput("this encoder was built for pairs of texts, but the data holds single texts")
        both = [(self._ids(first), self._ids(second)) for first, second in examples]
        types = [[0] * len(first) + [1] * len(second) for first, second in both]
        return TokenStore.build([first + second for first, second in both], pad=PAD, types=types)

    def _ids(self, text: str) -> list[int]:
        return self.table.ids(self.words_of(text)) or [UNKNOWN]

    def forward(self, x: Inputs, *, segments: int | None = None) -> Tensor:
        """(b, d) features; with `segments` those of the network as it was when the banks had that many."""
        assert isinstance(x, Tokens)
        if self.joint is None:
            return self._sentences(x.ids, x.mask.sum(1), segments)
        assert x.types is not None
        first = (x.mask & (x.types == 0)).sum(1)  # (b,)
        second = x.mask.sum(1) - first
        lengths = torch.cat([first, second])
        reach = torch.arange(int(lengths.max()), device=first.device)
        at = (first[:, None] + reach).clamp(max=x.ids.shape[1] - 1)
        ids = torch.cat([x.ids[:, : len(reach)], x.ids.gather(1, at)])  # (2b, t)
        u, v = self._sentences(ids, lengths, segments).chunk(2)
        return self.joint(torch.cat([u, v, u * v, (u - v).abs()], -1))

    def _sentences(self, ids: Tensor, lengths: Tensor, segments: int | None) -> Tensor:
        """(b, 2h) a vector for each row of words."""
        states = self.rnn(self.dropout(self.table(ids)), lengths, segments=segments)
        if self.out_tanh:
            states = states.map(torch.tanh)
        if self.pooling == "last":
            return states.last()
        return states.padded().sum(1) / lengths[:, None]

    def blocks(self) -> list[nn.Module]:
        return [self.table, self.rnn, *([] if self.joint is None else [self.joint])]

    def save(self, folder: Path) -> dict[str, Any]:
        """The words, those that came later group by group, beside the settings."""
        (folder / WORDS).write_text(json.dumps(self.table.groups, ensure_ascii=False), encoding="utf-8")
        return self.settings

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        first, *later = json.loads((folder / WORDS).read_text(encoding="utf-8"))
        made = cls(words=first, **settings)
        for words in later:
            made.table.grow(words)
        return made

    def preparation(self) -> str:
        text = json.dumps(["words", self.table.groups, self.length, self.parity, self.pairs])
        return hashlib.sha256(text.encode()).hexdigest()

"""A recurrent network that reads a bank of slots at every step, over words, for texts and pairs of texts.

n examples, b batch, t tokens, h hidden units a direction, d width
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.text import PARTS, PairLayer, apart, lay
from holdfast.nn.backbones.words import (
    END,
    UNKNOWN,
    WordTable,
    plain_words_of,
    read_vectors,
    texts_of,
    vocabulary,
    words_of,
)
from holdfast.nn.growth import check_units, units_for_budget
from holdfast.nn.recurrent.layer import (
    RecurrentLayer,
    column_positions,
    next_column,
    next_column_cost,
    run_columns,
    total_width,
)

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
        columns: Sequence[Mapping[str, int]] = (),
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
            "joint": joint, "dropout": dropout, "length": length, "parity": parity, "spread": spread, "columns": [],
        }  # fmt: skip
        self.table = WordTable(words, embedding, spread=spread)
        self.dropout = nn.Dropout(dropout)
        self.rnn = RecurrentLayer(
            embedding, hidden, cell=cell, slots=slots, slot_width=slot_width, first_read=first_read
        )
        self.later = nn.ModuleList()  # the columns that came after it
        self.joint = PairLayer(2 * hidden, joint, dropout=dropout) if pairs else None
        self.width = joint if pairs else 2 * hidden
        for column in columns:
            self.add_column(column["units"], slots=column["slots"])
            self.settings["columns"][-1]["words"] = column["words"]

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
            pairs=not isinstance(examples[0], str), cell=cell, embedding=embedding, hidden=hidden, slots=slots,
            slot_width=slot_width, first_read=first_read, pooling=pooling, out_tanh=out_tanh, joint=joint,
            dropout=dropout, length=length, parity=parity, spread=1.0 if vectors is None else MISSING,
        )  # fmt: skip
        if vectors is not None:
            made.table.put(read_vectors(vectors, words, embedding))
        return made

    @property
    def columns(self) -> list[RecurrentLayer]:
        return [self.rnn, *self.later]  # pyright: ignore[reportReturnType]

    @property
    def slots(self) -> int:
        """Those of all columns, in a direction."""
        return sum(column.bank.slots for column in self.columns if column.bank is not None)

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """More slots in the banks of the newest column for a domain; the new parameters, for an optimizer to adopt."""
        newest = self.columns[-1]
        if self.later and newest.bank is None:
            raise BadInput("the newest column has no slots, and the banks of those before it rest: add no more slots")
        return newest.grow(slots, domain=domain)

    def units_for(self, parameters: int, *, column: bool = False) -> int:
        """How many hidden units cost nearest to so many parameters, in `widen` or as a column of their own."""
        joining = 0 if self.joint is None else 2 * PARTS * self.settings["joint"]
        own = partial(next_column_cost, self.columns) if column else self.columns[-1].widening_cost
        return units_for_budget(parameters, lambda units: own(units) + joining * units)

    def widen(self, units: int) -> Tensor:
        """More hidden units in the newest column, joined both ways; where each feature of before now lies, (d,)."""
        at = column_positions(self.columns, units)
        self.columns[-1].widen(units)
        if self.later:
            self.settings["columns"][-1]["units"] += units
        else:
            self.settings["hidden"] += units
        if self.joint is not None:
            self.joint.widen(at, total_width(self.columns))
            return torch.arange(self.width)
        self.width = total_width(self.columns)
        return at

    def add_column(self, units: int, *, slots: int = 0) -> Tensor:
        """All that is there rests from now on; new units read it and never feed back (Rusu et al., 2016).

        A pair's layer is made anew, on the states of all columns. Words that come later still learn.
        """
        check_units(units, "a column")
        self.requires_grad_(False)
        column = next_column(self.columns, units, slots=slots)
        self.later.append(column.to(self.rnn.bias).train(self.training))
        self.settings["columns"].append({"units": units, "slots": slots, "words": len(self.table.groups)})
        at = torch.arange(self.width)
        if self.joint is None:
            self.width = total_width(self.columns)
        else:
            joint = PairLayer(total_width(self.columns), self.width, dropout=self.settings["dropout"])
            self.joint = joint.to(self.rnn.bias).train(self.training)
        return at

    def words_in(self, examples: Any) -> list[str]:
        """All words that this encoder sees in raw examples, known or not, in the order in which they come."""
        return list(dict.fromkeys(word for text in texts_of(examples) for word in self.words_of(text)))

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
        return lay(examples, self._ids, pairs=self.pairs)

    def _ids(self, text: str) -> list[int]:
        return self.table.ids(self.words_of(text)) or [UNKNOWN]

    def forward(self, x: Inputs, *, segments: int | None = None) -> Tensor:
        """(b, d) features; with `segments` those of the network as it was when the banks had that many."""
        assert isinstance(x, Tokens)
        if self.joint is None:
            return self._sentences(x.ids, x.mask.sum(1), segments)
        return self.joint(self._sentences(*apart(x), segments))

    def _sentences(self, ids: Tensor, lengths: Tensor, segments: int | None) -> Tensor:
        """(b, 2h) a vector for each row of words, column beside column."""
        found = []
        for states in run_columns(self.columns, self.table(ids), lengths, dropout=self.dropout, segments=segments):
            told = states.map(torch.tanh) if self.out_tanh else states
            found.append(told.last() if self.pooling == "last" else told.padded().sum(1) / lengths[:, None])
        return torch.cat(found, -1)

    def blocks(self) -> list[nn.Module]:
        return [self.table, *self.columns, *([] if self.joint is None else [self.joint])]

    def save(self, folder: Path) -> dict[str, Any]:
        """The words, those that came later group by group, beside the settings."""
        (folder / WORDS).write_text(json.dumps(self.table.groups, ensure_ascii=False), encoding="utf-8")
        return copy.deepcopy(self.settings)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        first, *later = json.loads((folder / WORDS).read_text(encoding="utf-8"))
        made = cls(words=first, **settings)
        for words in later:
            made.table.grow(words)
        for column in made.settings["columns"][-1:]:
            made.table.tables[: column["words"]].requires_grad_(False)
        return made

    def preparation_key(self) -> str:
        text = json.dumps(["words", self.table.groups, self.length, self.parity, self.pairs])
        return hashlib.sha256(text.encode()).hexdigest()

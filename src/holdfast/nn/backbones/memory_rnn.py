"""Recurrent network over words that reads a memory bank at every step, for texts and pairs of texts.

Shapes: b batch, t words, h hidden units per direction, s width of a text vector, d feature width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, check_at_least
from holdfast.core.inputs import Tokens
from holdfast.core.settings import checked_settings, retired_settings, setting
from holdfast.core.store import TokenStore
from holdfast.nn.backbones.base import fingerprint
from holdfast.nn.backbones.word_vectors import read_vectors
from holdfast.nn.backbones.words import PAD, UNKNOWN, WordBackbone, WordTable, vocabulary
from holdfast.nn.growth import expand_inputs, units_for_budget
from holdfast.nn.recurrent.layer import (
    BANK_SETTINGS,
    BankSettings,
    RecurrentLayer,
    column_positions,
    next_column,
    next_column_cost,
    run_columns,
    total_width,
)

MISSING = 0.05  # standard deviation of the vectors of words that a file of vectors lacks
PAIR_TERMS = 4  # u, v, their product, their difference


class MemoryRNN(WordBackbone):
    """Network of progressive memory banks (Asghar et al., 2020): per direction, a recurrent cell and a memory bank.

    A text vector is [last forward state; last backward state]. Two text vectors u, v of a pair are joined as
    relu(W [u; v; u v; |u - v|] + b), so that a linear head on top is the published classifier.
    """

    @checked_settings
    class Settings(BankSettings):
        """Settings of the network; `slots=0` is the plain network, `length` the number of words per text."""

        cell: str = "lstm"
        embedding: int = setting(300, least=1)
        hidden: int = 300
        slots: int = 500
        slot_width: int = 300
        joint: int = setting(300, least=1)
        dropout: float = 0.1
        length: int = setting(50, least=1)

        retired = retired_settings(first_read="zero", out_tanh=False, parity=False, pooling="last")

    def __init__(
        self,
        *,
        words: Sequence[str],
        pairs: bool,
        spread: float = 1.0,
        columns: Sequence[Mapping[str, int]] = (),
        **settings: Any,
    ) -> None:
        super().__init__()
        options = self.Settings(**settings)
        self.pairs, self.length = pairs, options.length
        self.settings = {"pairs": pairs, **asdict(options), "spread": spread, "columns": []}
        self.table = WordTable(words, options.embedding, spread=spread)
        self.dropout = nn.Dropout(options.dropout)
        bank: dict[str, Any] = {name: getattr(options, name) for name in ("slots", "slot_width", *BANK_SETTINGS)}
        self.rnn = RecurrentLayer(options.embedding, options.hidden, cell=options.cell, **bank)
        self.later = nn.ModuleList()  # columns added after it
        self.joint = PairLayer(2 * options.hidden, options.joint, dropout=options.dropout) if pairs else None
        self.width = options.joint if pairs else 2 * options.hidden
        for column in columns:
            self.add_column(column["units"], slots=column["slots"])
            self.settings["columns"][-1]["words"] = column["words"]

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        vectors: str | None = None,
        min_count: int = 1,
        max_words: int = 100_000,
        **settings: Any,
    ) -> Self:
        """Learn the vocabulary from the training texts; `vectors` is a file of word vectors."""
        options, examples = cls.Settings(**settings), list(training())
        words = vocabulary(examples, min_count=min_count, max_words=max_words)
        network = cls(
            words=words,
            pairs=not isinstance(examples[0], str),
            spread=1.0 if vectors is None else MISSING,
            **settings,
        )
        if vectors is not None:
            network.table.set_vectors(read_vectors(vectors, words, options.embedding))
        return network

    @property
    def columns(self) -> list[RecurrentLayer]:
        return [self.rnn, *self.later]  # pyright: ignore[reportReturnType]

    @property
    def slots(self) -> int:
        """Number of slots of all columns, per direction."""
        return sum(column.bank.slots for column in self.columns if column.bank is not None)

    def grow(self, slots: int, *, domain: int) -> list[nn.Parameter]:
        """Add slots for a domain to the banks of the newest column; return the new parameters."""
        newest = self.columns[-1]
        if self.later and newest.bank is None:
            raise BadInput("the newest column has no slots and earlier columns are frozen: add no more slots")
        return newest.grow(slots, domain=domain)

    def units_for(self, parameters: int, *, column: bool = False) -> int:
        """Return the number of hidden units, in `widen` or as a column, nearest to a parameter budget."""
        per_unit = 0 if self.joint is None else 2 * PAIR_TERMS * self.settings["joint"]
        cost = partial(next_column_cost, self.columns) if column else self.columns[-1].widening_cost
        return units_for_budget(parameters, lambda units: cost(units) + per_unit * units)

    def widen(self, units: int) -> Tensor:
        """Add hidden units to the newest column; return the new position of every old feature, (d,)."""
        positions = column_positions(self.columns, units)
        self.columns[-1].widen(units)
        if self.later:
            self.settings["columns"][-1]["units"] += units
        else:
            self.settings["hidden"] += units
        if self.joint is not None:
            self.joint.widen(positions, total_width(self.columns))
            return torch.arange(self.width)
        self.width = total_width(self.columns)
        return positions

    def add_column(self, units: int, *, slots: int = 0) -> Tensor:
        """Freeze the network and add a column that reads it and never feeds back (Rusu et al., 2016).

        The layer for pairs is replaced by a new one over the states of all columns. Words added later still train.
        Returns the new position of every old feature, (d,).
        """
        check_at_least(1, units=units)
        self.requires_grad_(False)
        column = next_column(self.columns, units, slots=slots)
        self.later.append(column.to(self.rnn.bias).train(self.training))
        self.settings["columns"].append({"units": units, "slots": slots, "words": len(self.table.groups)})
        positions = torch.arange(self.width)
        if self.joint is None:
            self.width = total_width(self.columns)
        else:
            joint = PairLayer(total_width(self.columns), self.width, dropout=self.settings["dropout"])
            self.joint = joint.to(self.rnn.bias).train(self.training)
        return positions

    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        return self.table.grow(words, vectors=vectors)

    def prepare(self, examples: Any) -> TokenStore:
        return token_store(examples, self._ids, pairs=self.pairs)

    def _ids(self, text: str) -> list[int]:
        return self.table.ids(self.split(text)) or [UNKNOWN]

    def forward(self, x: Tokens, *, segments: int | None = None) -> Tensor:
        """(b, d) features; `segments` limits the banks to their first segments."""
        if self.joint is None:
            return self._text_vectors(x.ids, x.mask.sum(1), segments)
        return self.joint(self._text_vectors(*split_pairs(x), segments))

    def _text_vectors(self, ids: Tensor, lengths: Tensor, segments: int | None) -> Tensor:
        """(b, s) one vector per row of words, concatenated over the columns."""
        columns = run_columns(self.columns, self.table(ids), lengths, dropout=self.dropout, segments=segments)
        return torch.cat([states.last() for states in columns], -1)

    def blocks(self) -> list[nn.Module]:
        return [self.table, *self.columns, *([] if self.joint is None else [self.joint])]

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        network = super().load(folder, settings)
        for column in network.settings["columns"][-1:]:
            network.table.tables[: column["words"]].requires_grad_(False)
        return network

    def preparation_key(self) -> str:
        return fingerprint("words", self.table.groups, self.length, self.pairs)


def token_store(examples: Any, ids: Callable[[str], list[int]], *, pairs: bool) -> TokenStore:
    """Build a store of single texts, or of pairs whose texts are concatenated and marked by token types."""
    examples = list(examples)
    if not pairs:
        if not all(isinstance(example, str) for example in examples):
            raise BadInput("this encoder was built for single texts, but the data contains pairs of texts")
        return TokenStore.build([ids(text) for text in examples], pad=PAD)
    if any(isinstance(example, str) for example in examples):
        raise BadInput("this encoder was built for pairs of texts, but the data contains single texts")
    both = [(ids(first), ids(second)) for first, second in examples]
    types = [[0] * len(first) + [1] * len(second) for first, second in both]
    return TokenStore.build([first + second for first, second in both], pad=PAD, types=types)


def split_pairs(x: Tokens) -> tuple[Tensor, Tensor]:
    """Return words (2b, t) and lengths (2b,) of all first texts, then of all second texts."""
    assert x.types is not None
    first = (x.mask & (x.types == 0)).sum(1)  # (b,)
    lengths = torch.cat([first, x.mask.sum(1) - first])
    offsets = torch.arange(int(lengths.max()), device=first.device)
    second = (first[:, None] + offsets).clamp(max=x.ids.shape[1] - 1)
    return torch.cat([x.ids[:, : len(offsets)], x.ids.gather(1, second)]), lengths


class PairLayer(nn.Sequential):
    """dropout(relu(W [u; v; u v; |u - v|] + b)) for the vectors u, v of two texts."""

    def __init__(self, text: int, width: int, *, dropout: float) -> None:
        super().__init__(nn.Linear(PAIR_TERMS * text, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, input: Tensor) -> Tensor:
        """(2b, s) vectors, all first texts and then all second ones, to (b, d)."""
        u, v = input.chunk(2)
        return super().forward(torch.cat([u, v, u * v, (u - v).abs()], -1))

    def widen(self, at: Tensor, text: int) -> None:
        """Adapt to text vectors of width `text`, in which the old entries have the positions `at` (s,)."""
        layer = self[0]
        assert isinstance(layer, nn.Linear)
        columns = torch.cat([at + term * text for term in range(PAIR_TERMS)])
        self[0] = expand_inputs(layer, columns, PAIR_TERMS * text)

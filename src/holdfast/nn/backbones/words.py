"""Words of texts: splitting, vocabularies, and a growable table of word vectors.

Shapes: b batch, t words, n words in the table, d width.
"""

import copy
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.word_vectors import read_vectors

FILE = "words.json"
PAD, UNKNOWN, SEPARATOR = range(3)
SPECIALS = 3
END = "<eos>"

_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+(?:['’]\w+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words, numbers (3.5 is one) and punctuation marks."""
    return _WORD.findall(text.lower())


def iter_texts(examples: Iterable[Any]) -> Iterable[str]:
    """Yield every text of examples that are texts or pairs of texts."""
    for example in examples:
        yield from (example,) if isinstance(example, str) else example


def vocabulary(examples: Sequence[Any], *, min_count: int, max_words: int) -> list[str]:
    """Return the words with at least `min_count` occurrences, most frequent first, ties in alphabetic order."""
    counts: Counter[str] = Counter()
    for text in iter_texts(examples):
        counts.update(split_words(text))
    frequent = [word for word, count in counts.items() if count >= min_count]
    words = sorted(frequent, key=lambda word: (-counts[word], word))[:max_words]
    if not words:
        raise BadInput(f"no word occurs min_count={min_count} times in the training texts: lower it or add texts")
    return words


class WordTable(nn.Module):
    """Embedding table that can grow: one parameter for the first words and one per later group.

    Separate parameters keep the optimizer state of the old words. The later words are also stored in a buffer, so
    the state of a grown table loads into a table that has not grown.

    Shapes: ids (b, t) to vectors (b, t, d).
    """

    later: Tensor

    def __init__(self, words: Sequence[str], width: int, *, spread: float) -> None:
        super().__init__()
        self.width, self.spread = width, spread  # spread is the standard deviation of new vectors
        self.groups: list[list[str]] = []
        self.index: dict[str, int] = {}
        self.tables = nn.ParameterList()
        self.register_buffer("later", torch.zeros(0, dtype=torch.uint8))
        self._add(list(words), torch.randn(SPECIALS + len(words), width) * spread)
        with torch.no_grad():
            self.tables[0][PAD] = 0
        self.register_load_state_dict_pre_hook(_grow_to_state)

    def grow(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        """Add rows for new words, random or from a file; return the new parameter in a list, empty if all are known."""
        new = [word for word in dict.fromkeys(words) if word not in self.index]
        pretrained = {} if vectors is None else read_vectors(vectors, words, self.width)
        if not new:
            return []
        first = self.tables[0]
        rows = torch.randn(len(new), self.width, dtype=first.dtype, device=first.device) * self.spread
        parameter = self._add(new, rows)
        self.set_vectors({word: pretrained[word] for word in new if word in pretrained})
        return [parameter]

    def _add(self, words: list[str], rows: Tensor) -> nn.Parameter:
        start = SPECIALS + len(self.index)
        self.index.update({word: start + i for i, word in enumerate(words)})
        self.groups.append(words)
        self.tables.append(nn.Parameter(rows))
        text = json.dumps(self.groups[1:]).encode()
        self.later = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.later.device)
        return self.tables[-1]

    @torch.no_grad()
    def set_vectors(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Set the vectors of known words."""
        starts = self._starts()
        for word, vector in vectors.items():
            row = self.index[word]
            group = max(i for i, start in enumerate(starts) if start <= row)
            self.tables[group][row - starts[group]] = torch.from_numpy(vector).to(self.tables[group])

    def ids(self, words: Sequence[str]) -> list[int]:
        return [self.index.get(word, UNKNOWN) for word in words]

    def rows(self) -> Tensor:
        """(n, d) vectors of all words by id, special tokens first."""
        return self.tables[0] if len(self.tables) == 1 else torch.cat(list(self.tables))

    def words(self) -> list[str]:
        """All words by id; special tokens are empty strings."""
        return [""] * SPECIALS + [word for group in self.groups for word in group]

    def _starts(self) -> list[int]:
        sizes = [len(table) for table in self.tables]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def forward(self, ids: Tensor) -> Tensor:
        first, *more = self.tables
        vectors = F.embedding(ids.clamp(max=len(first) - 1) if more else ids, first, padding_idx=PAD)
        for table, start in zip(more, self._starts()[1:], strict=True):
            row = ids - start
            inside = (row >= 0) & (row < len(table))
            vectors = torch.where(inside[..., None], F.embedding(row.clamp(0, len(table) - 1), table), vectors)
        return vectors  # (b, t, d)


def _grow_to_state(table: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the later words of a state before it is loaded."""
    if f"{prefix}later" not in state:
        return
    groups = json.loads(state[f"{prefix}later"].cpu().numpy().tobytes())
    for words in groups[len(table.groups) - 1 :]:
        for parameter in table.grow(words):
            parameter.requires_grad_(table.tables[0].requires_grad)
    if table.groups[1:] != groups:
        raise RuntimeError(f"the weights belong to other words than the {len(table.index)} of this table")


class WordBackbone(Backbone):
    """Base of encoders over words with a growable vocabulary; the words are saved group by group."""

    takes = "text"
    table: WordTable
    length: int  # maximum number of words per text

    def split(self, text: str) -> list[str]:
        """Split a text into the words that the encoder reads, known or not."""
        return split_words(text)[: self.length]

    def words_in(self, examples: Any) -> list[str]:
        """Return all words of raw examples, known or not, in order of appearance."""
        return list(dict.fromkeys(word for text in iter_texts(examples) for word in self.split(text)))

    @abstractmethod
    def grow_words(self, words: Sequence[str], *, vectors: str | None = None) -> list[nn.Parameter]:
        """Add new words, random or with vectors from a file; return the new parameters.

        Old words keep their ids, so examples prepared before stay valid and their unknown words stay unknown. Examples
        prepared from now on use the new words, and `preparation_key` changes.
        """

    def save(self, folder: Path) -> dict[str, Any]:
        (folder / FILE).write_text(json.dumps(self.table.groups, ensure_ascii=False), encoding="utf-8")
        return copy.deepcopy(self.settings)

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Self:
        first, *later = json.loads((folder / FILE).read_text(encoding="utf-8"))
        network = cls(words=first, **settings)  # pyright: ignore[reportCallIssue]
        for words in later:
            network.grow_words(words)
        return network

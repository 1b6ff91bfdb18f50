"""Statistics of raw inputs that may drift: lengths, words, and columns of tables, without the inputs themselves.

Shapes: n examples, p number columns, q category columns.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.core.table import Schema, TableRows, category_columns, numeric_columns
from holdfast.data.raw import Raw

WORDS = re.compile(r"\w+")
MAX_WORDS = 50_000  # hashes of a vocabulary, the most frequent words first
MAX_COLUMNS = 256  # of vectors; wider vectors are features, not columns
MISSING, UNKNOWN = -1, -2  # codes of a category that is missing or that the model has not seen


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """Statistics per example; a field is None if the kind of input does not have it."""

    lengths: np.ndarray | None = None  # (n,) words of a text, or nodes of a graph
    words: Sequence[np.ndarray] | None = None  # hashes of the words of each text
    numbers: np.ndarray | None = None  # (n, p), NaN where missing
    number_names: tuple[str, ...] = ()
    codes: np.ndarray | None = None  # (n, q) into the categories of the model, or MISSING, or UNKNOWN
    categories: tuple[tuple[str, int], ...] = ()  # name and number of categories per category column

    def unknown_words(self, vocabulary: np.ndarray | None) -> np.ndarray | None:
        """Return the share (n,) of the words of each text that a sorted vocabulary lacks; 0 for a text without words.

        None without texts or without a vocabulary.
        """
        if self.words is None or vocabulary is None:
            return None
        counts = np.asarray([len(words) for words in self.words], dtype=np.int64)
        flat = np.concatenate([*self.words, np.zeros(0, dtype=np.int64)])
        at = np.searchsorted(vocabulary, flat).clip(0, max(0, len(vocabulary) - 1))
        new = vocabulary[at] != flat if len(vocabulary) else np.ones(len(flat), dtype=bool)
        owner = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(owner, weights=new, minlength=len(counts)) / np.maximum(counts, 1)


def input_statistics(
    raw: Raw, rows: np.ndarray, *, schema: Schema = (), names: Sequence[str] | None = None
) -> InputStatistics:
    """Compute the statistics of some rows; `schema` and `names` are the columns of the model."""
    if not len(rows) or raw.kind == "image":
        return InputStatistics()
    if raw.kind in ("table", "mixed"):
        return _of_table(raw.take(rows, size=8), schema)  # the smallest images: they are not used
    examples = raw.take(rows)
    if raw.kind == "vector":
        numbers = examples.numpy()
        width = numbers.shape[1]
        if width > MAX_COLUMNS:
            return InputStatistics()
        known = tuple(names) if names is not None and len(names) == width else tuple(map(str, range(1, width + 1)))
        return InputStatistics(numbers=numbers, number_names=known)
    if raw.kind == "graph":
        return InputStatistics(lengths=np.asarray([len(graph.nodes) for graph in examples], dtype=np.float64))
    return _of_texts(examples)


def _of_texts(examples: Sequence[Any]) -> InputStatistics:
    words = [_word_hashes(example if isinstance(example, str) else " ".join(example)) for example in examples]
    return InputStatistics(lengths=np.asarray([len(each) for each in words], dtype=np.float64), words=words)


def _word_hashes(text: str) -> np.ndarray:
    return np.asarray([zlib.crc32(word.encode()) for word in WORDS.findall(text.lower())], dtype=np.int64)


def _of_table(table: TableRows, schema: Schema) -> InputStatistics:
    companion = table.companion
    texts = _of_texts(companion) if isinstance(companion, list) else InputStatistics()
    known = table.recoded(schema) if schema else table
    categories = tuple((column.name, len(column.categories)) for column in category_columns(known.schema))
    return InputStatistics(
        texts.lengths,
        texts.words,
        known.numbers.numpy(),
        tuple(column.name for column in numeric_columns(known.schema)),
        known.codes.numpy(),
        categories,
    )


def vocabulary_of(statistics: InputStatistics) -> np.ndarray | None:
    """Return the sorted hashes of the most frequent words; None without texts."""
    if statistics.words is None:
        return None
    counts = Counter(word for words in statistics.words for word in words.tolist())
    return np.sort(np.asarray([word for word, _ in counts.most_common(MAX_WORDS)], dtype=np.int64))

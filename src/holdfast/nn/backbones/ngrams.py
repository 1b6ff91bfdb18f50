"""Counts of word and character n-grams as sparse matrices, with a vocabulary learned from training texts.

Characters are counted per distinct word: the matrix of words per text times that of n-grams per word. Counts of
training texts are kept, because the runs of a comparison count the same texts many times.

Shapes: n texts, w distinct words, p n-grams.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import repeat
from typing import Any

import numpy as np
from scipy import sparse

from holdfast.core.stopping import stop_if_requested

SHORTEST = 3  # characters of an n-gram
KINDS = ("words", "characters")
ROWS_PER_CHECK = 2_000  # texts or words between two checks for a request to stop
KEPT = 40_000_000  # n-grams of all texts whose counts are kept in memory, 320 MB

_WORD = re.compile(r"\b\w\w+\b")

Block = tuple[list[str], sparse.csr_matrix]  # n-grams, and counts (n, p)


def word_ngrams(text: str, longest: int) -> list[str]:
    """Return the n-grams of 1 to `longest` lower-case words of two or more letters."""
    words = _WORD.findall(text.lower())
    grams = list(words)
    for n in range(2, longest + 1):
        grams += [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
    return grams


def character_ngrams(word: str, longest: int) -> list[str]:
    """Return the n-grams of 3 to `longest` characters of a word with a space at both ends."""
    padded = f" {word} "
    sizes = range(SHORTEST, min(longest, len(padded)) + 1)
    return [padded[i : i + n] for n in sizes for i in range(len(padded) - n + 1)]


def count_ngrams(texts: Sequence[str], kind: str, longest: int, index: dict[str, int], *, add: bool) -> Block:
    """Count n-grams of words or of characters; with `add`, those that the index does not have are added to it."""
    if kind == "words":
        return count_items((word_ngrams(text, longest) for text in texts), index, add=add)
    words, per_text = _occurrences((text.lower().split() for text in texts), {}, add=True)  # (n, w)
    grams, per_word = _occurrences((character_ngrams(word, longest) for word in words), index, add=add)  # (w, p)
    return grams, sparse.csr_matrix(per_text @ per_word)


def count_items(rows: Iterable[Sequence[str]], index: dict[str, int], *, add: bool) -> Block:
    """Count the items of each row that an index of columns has, or gets with `add`."""
    items, occurrences = _occurrences(rows, index, add=add)
    ones: Any = sparse.identity(len(items), dtype=np.int32, format="csr")  # pyright: ignore[reportArgumentType]
    return items, sparse.csr_matrix(occurrences @ ones)


def _occurrences(rows: Iterable[Sequence[str]], index: dict[str, int], *, add: bool) -> Block:
    """Return one entry per occurrence of an item, so that a column may repeat in a row; products add them up."""
    sizes, flat = [], []
    for i, row in enumerate(rows):
        if i % ROWS_PER_CHECK == 0:
            stop_if_requested()
        sizes.append(len(row))
        flat += row
    if add:
        grown: defaultdict[str, int] = defaultdict(None, index)
        grown.default_factory = grown.__len__
        columns = np.fromiter(map(grown.__getitem__, flat), dtype=np.int32, count=len(flat))
        index |= grown
    else:
        columns = np.fromiter(map(index.get, flat, repeat(-1)), dtype=np.int32, count=len(flat))
    inside = columns >= 0
    starts = np.concatenate([[0], inside.cumsum()])[np.cumsum([0, *sizes])].astype(np.int32)
    columns = columns[inside]
    data = np.ones(len(columns), dtype=np.int32)
    return list(index), sparse.csr_matrix((data, columns, starts), shape=(len(sizes), len(index)))


class TrainingCounts:
    """Counts of all n-grams of texts that are compared with training texts; every text is counted once per process."""

    def __init__(self, kind: str, longest: int) -> None:
        self.kind, self.longest = kind, longest
        self.version = 0  # of the columns
        self._clear()

    def _clear(self) -> None:
        self.index: dict[str, int] = {}
        self.grams: list[str] = []
        self.rows: dict[str, int] = {}  # text -> row of the matrix
        self.matrix = sparse.csr_matrix((0, 0), dtype=np.int32)

    def counts(self, texts: Sequence[str]) -> Block:
        """Return the n-grams known so far and their counts (n, p); the order in a row is that in the text."""
        self.add(texts)
        return self.grams, self._rows(texts)

    def add(self, texts: Sequence[str]) -> None:
        """Count the texts that were not counted before."""
        if self.matrix.nnz > KEPT:
            self._clear()
        new = [text for text in dict.fromkeys(texts) if text not in self.rows]
        if new:
            self.grams, counts = count_ngrams(new, self.kind, self.longest, self.index, add=True)
            self.rows |= {text: len(self.rows) + i for i, text in enumerate(new)}
            old, self.version = self.matrix, self.version + 1
            starts = np.concatenate([old.indptr, counts.indptr[1:] + old.indptr[-1]])
            arrays = [np.concatenate([getattr(old, name), getattr(counts, name)]) for name in ("data", "indices")]
            self.matrix = sparse.csr_matrix((*arrays, starts), shape=(len(self.rows), len(self.grams)))

    def columns(self, vocabulary: Sequence[str]) -> np.ndarray:
        """Return the position in a vocabulary of every column, -1 for columns that it lacks."""
        columns = np.full(len(self.index), -1, dtype=np.int32)
        at = np.fromiter((self.index.get(gram, -1) for gram in vocabulary), dtype=np.int64, count=len(vocabulary))
        columns[at[at >= 0]] = np.flatnonzero(at >= 0)
        return columns

    def known(self, texts: Sequence[str], columns: np.ndarray, size: int) -> sparse.csr_matrix:
        """Return the counts (n, size) in texts that were counted before, by the positions of the columns."""
        counts = self._rows(texts)
        target = columns[counts.indices]
        inside = target >= 0
        starts = np.concatenate([[0], inside.cumsum()])[counts.indptr]
        return sparse.csr_matrix((counts.data[inside], target[inside], starts), shape=(len(texts), size))

    def _rows(self, texts: Sequence[str]) -> sparse.csr_matrix:
        rows = np.fromiter((self.rows[text] for text in texts), dtype=np.int64, count=len(texts))
        return sparse.csr_matrix(self.matrix[rows])


@cache
def training_counts(kind: str, longest: int) -> TrainingCounts:
    """Return the counts of this process."""
    return TrainingCounts(kind, longest)


class Vocabulary:
    """Names of columns, with the columns of the kept counts of training texts."""

    def __init__(self, grams: Sequence[str], kind: str, longest: int) -> None:
        self.grams, self.kind, self.longest = grams, kind, longest
        self.columns, self.version = np.zeros(0, dtype=np.int32), -1

    @cached_property
    def index(self) -> dict[str, int]:
        """Column by n-gram."""
        return {gram: i for i, gram in enumerate(self.grams)}

    def count(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Return the counts (n, p); those of texts that come with training texts of this process are kept."""
        memory = training_counts(self.kind, self.longest)
        if not any(text in memory.rows for text in texts):
            return count_ngrams(texts, self.kind, self.longest, self.index, add=False)[1]
        memory.add(texts)
        if self.version != memory.version:
            self.columns, self.version = memory.columns(self.grams), memory.version
        return memory.known(texts, self.columns, len(self.grams))


def frequent(blocks: Mapping[str, Block], *, min_df: int, limit: int) -> tuple[dict[str, list[str]], np.ndarray]:
    """Return the vocabulary of n-grams in at least `min_df` rows and their inverse document frequency (p,).

    At most `limit` n-grams remain, those in the most rows; of those in equally many rows, the first in alphabetic order
    remain. N-grams in more rows come first, and then those that occur first. idf = 1 + ln((1 + n) / (1 + df)), as in
    scikit-learn.
    """
    rows = max((len(counts.indptr) - 1 for _, counts in blocks.values()), default=0)
    frequencies = {
        block: np.bincount(counts.indices, minlength=len(grams)) for block, (grams, counts) in blocks.items()
    }
    chosen = {block: np.flatnonzero(df >= min_df) for block, df in frequencies.items()}
    if sum(map(len, chosen.values())) > limit:
        every = np.concatenate([frequencies[block][columns] for block, columns in chosen.items()])
        least = np.partition(every, len(every) - limit)[len(every) - limit]
        tied = sorted(
            (block, blocks[block][0][i], i)
            for block, columns in chosen.items()
            for i in columns[frequencies[block][columns] == least].tolist()
        )[: limit - int((every > least).sum())]
        for block, columns in chosen.items():
            last = [i for name, _, i in tied if name == block]
            chosen[block] = np.concatenate([columns[frequencies[block][columns] > least], np.array(last, dtype=int)])
    vocabulary, values = {}, []
    for block, (grams, counts) in blocks.items():
        first = np.zeros(len(grams), dtype=np.int64)
        first[counts.indices[::-1]] = np.arange(counts.nnz)[::-1]
        columns, df = chosen[block], frequencies[block][chosen[block]]
        order = np.lexsort((first[columns], -df))
        vocabulary[block] = [grams[i] for i in columns[order].tolist()]
        values.append(df[order])
    df = np.concatenate([np.zeros(0), *values])
    return vocabulary, 1 + np.log((1 + rows) / (1 + df))

"""Counts of word and character n-grams as sparse matrices, with a vocabulary learned from training texts.

Characters are counted per distinct word: the matrix of words per text times that of n-grams per word. Counts of
training texts are kept, because the runs of a comparison count the same texts many times.

Shapes: n texts, w distinct words, p n-grams.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

import numpy as np
from scipy import sparse

SHORTEST = 3  # characters of an n-gram
KINDS = ("words", "characters")
KEPT = 20_000_000  # n-grams of all texts whose counts are kept in memory, 160 MB

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
    words, per_text = count_items((text.lower().split() for text in texts), {}, add=True)  # (n, w)
    grams, per_word = count_items((character_ngrams(word, longest) for word in words), index, add=add)  # (w, p)
    return grams, sparse.csr_matrix(per_text @ per_word)


def count_items(rows: Iterable[Sequence[str]], index: dict[str, int], *, add: bool) -> Block:
    """Count the items of each row that an index of columns has, or gets with `add`."""
    columns: list[list[int]] = []
    values: list[list[int]] = []
    for row in rows:
        counts = Counter(row)
        if add:
            columns.append([index.setdefault(item, len(index)) for item in counts])
            values.append(list(counts.values()))
        else:
            pairs = [(index[item], count) for item, count in counts.items() if item in index]
            columns.append([column for column, _ in pairs])
            values.append([count for _, count in pairs])
    starts = np.cumsum([0, *map(len, columns)])
    flat = np.fromiter(chain.from_iterable(columns), dtype=np.int32, count=starts[-1])
    data = np.fromiter(chain.from_iterable(values), dtype=np.int32, count=starts[-1])
    return list(index), sparse.csr_matrix((data, flat, starts), shape=(len(columns), len(index)))


class TrainingCounts:
    """Counts of all n-grams of training texts; every text is counted once per process."""

    def __init__(self, kind: str, longest: int) -> None:
        self.kind, self.longest = kind, longest
        self.index: dict[str, int] = {}
        self.rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # text -> columns and counts
        self.entries = 0

    def counts(self, texts: Sequence[str]) -> Block:
        """Return the n-grams known so far and their counts (n, p)."""
        if self.entries > KEPT:
            self.index, self.rows, self.entries = {}, {}, 0
        new = [text for text in dict.fromkeys(texts) if text not in self.rows]
        _, counts = count_ngrams(new, self.kind, self.longest, self.index, add=True)
        pieces = (np.split(array, counts.indptr[1:-1]) for array in (counts.indices, counts.data))
        self.rows |= dict(zip(new, zip(*pieces, strict=True), strict=False))
        self.entries += counts.nnz
        return list(self.index), self._matrix(texts)

    def known(self, texts: Sequence[str], vocabulary: Sequence[str]) -> sparse.csr_matrix:
        """Return the counts (n, p) of a vocabulary in texts that were counted before."""
        at = {column: i for i, gram in enumerate(vocabulary) if (column := self.index.get(gram)) is not None}
        columns = np.full(len(self.index), -1, dtype=np.int32)
        columns[list(at)] = list(at.values())
        counts = self._matrix(texts)
        target = columns[counts.indices]
        inside = target >= 0
        starts = np.concatenate([[0], inside.cumsum()])[counts.indptr]
        return sparse.csr_matrix((counts.data[inside], target[inside], starts), shape=(len(texts), len(vocabulary)))

    def _matrix(self, texts: Sequence[str]) -> sparse.csr_matrix:
        rows = [self.rows[text] for text in texts]
        starts = np.cumsum([0, *(len(columns) for columns, _ in rows)])
        none = np.zeros(0, dtype=np.int32)
        columns, counts = (np.concatenate([none, *arrays]) for arrays in ([r[0] for r in rows], [r[1] for r in rows]))
        return sparse.csr_matrix((counts, columns, starts), shape=(len(rows), len(self.index)))


@cache
def training_counts(kind: str, longest: int) -> TrainingCounts:
    """Return the counts of this process."""
    return TrainingCounts(kind, longest)


def count_known(texts: Sequence[str], kind: str, longest: int, vocabulary: dict[str, int]) -> sparse.csr_matrix:
    """Return the counts (n, p) of a vocabulary: kept ones of training texts, new ones of other texts."""
    memory = training_counts(kind, longest)
    seen = [i for i, text in enumerate(texts) if text in memory.rows]
    new = [i for i, text in enumerate(texts) if text not in memory.rows]
    _, counts = count_ngrams([texts[i] for i in new], kind, longest, vocabulary, add=False)
    if not seen:
        return counts
    known = memory.known([texts[i] for i in seen], list(vocabulary))
    return sparse.csr_matrix(sparse.vstack([known, counts], format="csr"))[np.argsort([*seen, *new])]


def frequent(blocks: Mapping[str, Block], *, min_df: int, limit: int) -> tuple[dict[str, list[str]], np.ndarray]:
    """Return the vocabulary of n-grams in at least `min_df` rows and their inverse document frequency (p,).

    At most `limit` n-grams remain, those in the most rows; ties are in alphabetic order. idf = 1 + ln((1 + n) / (1 +
    df)), as in scikit-learn.
    """
    candidates = []  # (-df, block, n-gram)
    rows = max((len(counts.indptr) - 1 for _, counts in blocks.values()), default=0)
    for block, (grams, counts) in blocks.items():
        df = np.bincount(counts.indices, minlength=len(grams))
        candidates += [(-int(df[i]), block, grams[i]) for i in np.flatnonzero(df >= min_df)]
    candidates.sort()
    vocabulary: dict[str, list[str]] = {block: [] for block in blocks}
    frequencies: dict[str, list[int]] = {block: [] for block in blocks}
    for df, block, gram in candidates[:limit]:
        vocabulary[block].append(gram)
        frequencies[block].append(-df)
    df = np.array([value for block in blocks for value in frequencies[block]], dtype=np.float64)
    return vocabulary, 1 + np.log((1 + rows) / (1 + df))

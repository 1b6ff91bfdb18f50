"""Texts that are nearly the same: MinHash over stretches of characters, banding, then the true likeness.

n texts, s shingles of all texts together, m hash functions, p pairs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.core.seeds import derive
from holdfast.inspection.bands import candidates
from holdfast.inspection.hashing import mixed

WIDTH = 5  # characters of a shingle
BANDS, ROWS = 20, 5  # two texts of likeness s share a band with chance 1 - (1 - s^5)^20: 0.97 at 0.7, 0.9996 at 0.8
SLACK = 0.2  # a pair whose signatures agree by so much less is not looked at: five standard deviations
CHUNK = 1 << 21  # characters at a time
LONGEST = 5000  # characters of a text by which pairs are found; then whole texts are compared
_PRIME = np.uint64(0x100000001B3)


def near_texts(*columns: Sequence[str], near: float) -> tuple[np.ndarray, np.ndarray]:
    """(p, 2) pairs of rows and their likeness (p,): the Jaccard index of the shingles of their texts, at least `near`.

    Where a row has several texts, as a question and its passage, that of the texts least alike. Case and white space do
    not count. Pairs are found by MinHash (Broder, 1997), so that a few may be missed.
    """
    texts = [" ".join(text[:LONGEST] for text in row) for row in zip(*columns, strict=True)]
    signatures = _signatures(texts)
    bands = np.zeros((len(texts), BANDS), dtype=np.uint64)
    for row in range(ROWS):
        bands = mixed(bands ^ signatures[:, row::ROWS].astype(np.uint64))
    pairs = candidates(bands)
    agree = np.concatenate(
        [np.empty(0)]
        + [(signatures[part[:, 0]] == signatures[part[:, 1]]).mean(axis=1) for part in _pieces(pairs, 1 << 16)]
    )
    pairs = pairs[agree >= near - SLACK]
    likeness = np.min([_likeness(column, pairs) for column in columns], axis=0)
    alike = likeness >= near
    return pairs[alike], likeness[alike]


def _pieces(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (array[start : start + size] for start in range(0, len(array), size))


def _signatures(texts: Sequence[str]) -> np.ndarray:
    """(n, m) the smallest hash of each text's shingles for every hash function, of which 16 bits are kept."""
    chance = np.random.default_rng(derive(0, "minhash"))
    m = BANDS * ROWS
    factors = chance.integers(0, 1 << 31, m, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    offsets = chance.integers(0, 1 << 32, m, dtype=np.uint32)
    found = np.empty((len(texts), m), dtype=np.uint16)
    at = 0
    for some in _chunks(texts):
        values, starts = shingles(some)
        short = (values >> np.uint64(32)).astype(np.uint32)
        for j in range(m):
            smallest = np.minimum.reduceat(short * factors[j] + offsets[j], starts)
            found[at : at + len(some), j] = smallest.astype(np.uint16)
        at += len(some)
    return found


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    some: list[str] = []
    length = 0
    for text in texts:
        some.append(text)
        length += len(text)
        if length >= CHUNK:
            yield some
            some, length = [], 0
    if some:
        yield some


def shingles(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(s,) a number for every stretch of characters, text after text, and (n,) where those of each text begin.

    A text shorter than a shingle is one shingle by itself.
    """
    plain = [" ".join(text.lower().split()).ljust(WIDTH, "\0") for text in texts]
    letters = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lengths = np.fromiter(map(len, plain), dtype=np.int64, count=len(plain))
    values = np.zeros(len(letters) - WIDTH + 1, dtype=np.uint64)
    for j in range(WIDTH):
        values = values * _PRIME + letters[j : j + len(values)]
    ends = np.cumsum(lengths)
    inside = np.ones(len(values), dtype=bool)
    for j in range(1, WIDTH):
        inside[ends[:-1] - j] = False  # these would run into the next text
    counts = lengths - WIDTH + 1
    return mixed(values[inside]), np.cumsum(counts) - counts


def _likeness(texts: Sequence[str], pairs: np.ndarray) -> np.ndarray:
    rows: list[int] = np.unique(pairs).tolist()
    sets: dict[int, np.ndarray] = {}
    at = 0
    for some in _chunks([texts[row] for row in rows]):
        values, starts = shingles(some)
        for row, own in zip(rows[at : at + len(some)], np.split(values, starts[1:]), strict=True):
            sets[row] = np.unique(own)
        at += len(some)
    found = np.empty(len(pairs))
    for i, (one, other) in enumerate(pairs.tolist()):
        a, b = sets[one], sets[other]
        both = len(np.intersect1d(a, b, assume_unique=True))
        found[i] = both / (len(a) + len(b) - both)
    return found

"""Images that look nearly the same: a hash of brightness from left to right, then the correlation of small images.

n images, p pairs
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from holdfast.audit.hashing import candidates, mixed
from holdfast.core.seeds import derive
from holdfast.data.decode import decode_image
from holdfast.data.raw import Pixels, Raw

SIDE = 72  # pixels that a file is decoded to: 8 rows of 9 and 9 columns of 8 make the hash
COLOURS, GREYS = 8, 24  # pixels a side of what is kept
CHUNK, PAIRS = 256, 1 << 14  # images and pairs at a time
BITS = 3  # hashes of 64 bits that differ in more are not looked at; four bands of 16 bits miss none of the others
CORRELATION = 0.98


@dataclass(frozen=True)
class Looks:
    """What is kept of every image."""

    hashes: np.ndarray  # (n,) uint64
    colours: np.ndarray  # (n, 192) float32, a small image: cheap features
    greys: np.ndarray  # (n, 576) uint8


def look(raw: Raw) -> Looks:
    """Every image decoded once, at a small size."""
    n = len(raw)
    found = Looks(
        np.empty(n, dtype=np.uint64),
        np.empty((n, 3 * COLOURS**2), dtype=np.float32),
        np.empty((n, GREYS**2), dtype=np.uint8),
    )
    at = 0
    for images in _decoded(raw):  # (b, 3, h, w)
        flat = images.float()
        grey = (flat * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=1, keepdim=True)  # (b, 1, h, w)
        to = slice(at, at + len(images))
        found.hashes[to] = _difference_hash(grey)
        found.colours[to] = adaptive_avg_pool2d(flat, COLOURS).flatten(1).numpy()
        found.greys[to] = adaptive_avg_pool2d(grey, GREYS).flatten(1).round().numpy()
        at += len(images)
    return found


def near_images(looks: Looks, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(p, 2) pairs of places in `rows` that look alike, and how alike (p,), 1 where they cannot be told apart.

    Images of one shade have no pattern that could be compared; they are near to nothing.
    """
    hashes = looks.hashes[rows]
    parts = [(hashes >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4)]
    pairs = candidates(np.stack(parts, axis=1))
    found, alike = [np.empty((0, 2), dtype=np.int64)], [np.empty(0)]
    for start in range(0, len(pairs), PAIRS):
        part = pairs[start : start + PAIRS]
        differ = (hashes[part[:, 0]] ^ hashes[part[:, 1]])[:, None].view(np.uint8)
        part = part[np.unpackbits(differ, axis=1).sum(axis=1) <= BITS]
        one, other = (_standard(looks.greys[rows[part[:, side]]]) for side in (0, 1))
        correlation = (one * other).sum(axis=1)
        found.append(part[correlation >= CORRELATION])
        alike.append(correlation[correlation >= CORRELATION])
    return np.concatenate(found), np.concatenate(alike)


def _decoded(raw: Raw) -> Iterator[Tensor]:
    files = raw.files()
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # the decoder lets go of the interpreter
        for start in range(0, len(raw), CHUNK):
            stop = min(start + CHUNK, len(raw))
            if files is None:
                yield raw.take(np.arange(start, stop), size=None if isinstance(raw, Pixels) else SIDE)
            else:
                yield torch.stack(list(pool.map(partial(decode_image, size=SIDE), files[start:stop])))


def _difference_hash(grey: Tensor) -> np.ndarray:
    """(b,) 64 bits: in 8 rows of 9 fields, whether a field is brighter than the one to its right."""
    fields = adaptive_avg_pool2d(grey, (8, 9))[:, 0]  # (b, 8, 9)
    bits = (fields[..., :-1] > fields[..., 1:]).flatten(1).numpy()
    return np.packbits(bits, axis=1).view(np.uint64).ravel()


def _standard(greys: np.ndarray) -> np.ndarray:
    """Mean 0 and length 1; 0 where all pixels are the same."""
    values = greys.astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    length = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(length == 0, 1, length)


WIDTH = 5  # characters of a shingle
BANDS, ROWS = 20, 5  # two texts of likeness s share a band with chance 1 - (1 - s^5)^20: 0.97 at 0.7, 0.9996 at 0.8
SLACK = 0.2  # a pair whose signatures agree by so much less is not looked at: five standard deviations
TEXT_CHUNK = 1 << 21  # characters at a time
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
        if length >= TEXT_CHUNK:
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

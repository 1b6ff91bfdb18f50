"""Near duplicates: images by perceptual hash and correlation, texts by MinHash over character shingles."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from holdfast.auditing.hashing import candidates, mixed
from holdfast.core.seeds import derive
from holdfast.data.decode import decode_image
from holdfast.data.raw import Pixels, Raw

SIDE = 72  # pixels to which files are decoded; divisible by the 8 x 9 fields of the hash
COLOURS, GREYS = 8, 24  # side of the stored thumbnails, in pixels
CHUNK, PAIRS = 256, 1 << 14  # images and pairs per chunk
BITS = 3  # maximal Hamming distance of the 64-bit hashes; four bands of 16 bits find every such pair
CORRELATION = 0.98
WIDTH = 5  # characters per shingle
BANDS, ROWS = 20, 5  # P(shared band) = 1 - (1 - s^5)^20 at similarity s: 0.97 at 0.7, 0.9996 at 0.8
SLACK = 0.2  # tolerance of the signature agreement before the exact comparison: five standard deviations
TEXT_CHUNK = 1 << 21  # characters per chunk
LONGEST = 5000  # characters used for signatures; similarity is computed on complete texts
_PRIME = np.uint64(0x100000001B3)


@dataclass(frozen=True)
class Thumbnails:
    """Perceptual hash and thumbnails of every image."""

    hashes: np.ndarray  # (n,) uint64
    colours: np.ndarray  # (n, 192) float32, also used as features
    greys: np.ndarray  # (n, 576) uint8


def thumbnails(raw: Raw) -> Thumbnails:
    """Decode every image once at a small size."""
    hashes, colours, greys = [], [], []
    for images in _decoded(raw):  # (b, 3, h, w)
        pixels = images.float()
        grey = (pixels * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=1, keepdim=True)  # (b, 1, h, w)
        hashes.append(_difference_hash(grey))
        colours.append(adaptive_avg_pool2d(pixels, COLOURS).flatten(1).numpy())
        greys.append(adaptive_avg_pool2d(grey, GREYS).flatten(1).round().numpy().astype(np.uint8))
    return Thumbnails(np.concatenate(hashes), np.concatenate(colours), np.concatenate(greys))


def near_images(images: Thumbnails, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs (p, 2) of similar images in `rows` and their correlation (p,); a single colour matches nothing."""
    hashes = images.hashes[rows]
    bands = [(hashes >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4)]
    pairs = candidates(np.stack(bands, axis=1))
    matches, similarity = [np.empty((0, 2), dtype=np.int64)], [np.empty(0)]
    for start in range(0, len(pairs), PAIRS):
        chunk = pairs[start : start + PAIRS]
        differing = (hashes[chunk[:, 0]] ^ hashes[chunk[:, 1]])[:, None].view(np.uint8)
        chunk = chunk[np.unpackbits(differing, axis=1).sum(axis=1) <= BITS]
        one, other = (_normalised(images.greys[rows[chunk[:, side]]]) for side in (0, 1))
        correlation = (one * other).sum(axis=1)
        matches.append(chunk[correlation >= CORRELATION])
        similarity.append(correlation[correlation >= CORRELATION])
    return np.concatenate(matches), np.concatenate(similarity)


def _decoded(raw: Raw) -> Iterator[Tensor]:
    files = raw.files()
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # decoding releases the interpreter lock
        for start in range(0, len(raw), CHUNK):
            stop = min(start + CHUNK, len(raw))
            if files is None:
                yield raw.take(np.arange(start, stop), size=None if isinstance(raw, Pixels) else SIDE)
            else:
                yield torch.stack(list(pool.map(partial(decode_image, size=SIDE), files[start:stop])))


def _difference_hash(grey: Tensor) -> np.ndarray:
    """Return 64 bits per image: in 8 rows of 9 fields, whether a field is brighter than its right neighbour."""
    fields = adaptive_avg_pool2d(grey, (8, 9))[:, 0]  # (b, 8, 9)
    bits = (fields[..., :-1] > fields[..., 1:]).flatten(1).numpy()
    return np.packbits(bits, axis=1).view(np.uint64).ravel()


def _normalised(greys: np.ndarray) -> np.ndarray:
    """Scale rows to mean 0 and norm 1; constant rows become 0."""
    values = greys.astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(norm == 0, 1, norm)


def near_texts(*columns: Sequence[str], near: float) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs (p, 2) of rows and their Jaccard similarity of shingles (p,), at least `near`.

    For rows with several texts, such as a question and its context, it is the lowest similarity of their texts. Case
    and white space are ignored. MinHash (Broder, 1997) finds the pairs and may miss a few.
    """
    texts = [" ".join(text[:LONGEST] for text in row) for row in zip(*columns, strict=True)]
    signatures = _signatures(texts)
    bands = np.zeros((len(texts), BANDS), dtype=np.uint64)
    for row in range(ROWS):
        bands = mixed(bands ^ signatures[:, row::ROWS].astype(np.uint64))
    pairs = candidates(bands)
    chunks = (pairs[start : start + (1 << 16)] for start in range(0, len(pairs), 1 << 16))
    agreement = [(signatures[chunk[:, 0]] == signatures[chunk[:, 1]]).mean(axis=1) for chunk in chunks]
    pairs = pairs[np.concatenate([np.empty(0), *agreement]) >= near - SLACK]
    similarity = np.min([_similarity(column, pairs) for column in columns], axis=0)
    matching = similarity >= near
    return pairs[matching], similarity[matching]


def _signatures(texts: Sequence[str]) -> np.ndarray:
    """Return MinHash signatures (n, m): the smallest shingle hash per hash function, truncated to 16 bits."""
    rng = np.random.default_rng(derive(0, "minhash"))
    m = BANDS * ROWS
    factors = rng.integers(0, 1 << 31, m, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    offsets = rng.integers(0, 1 << 32, m, dtype=np.uint32)
    signatures = [np.empty((0, m), dtype=np.uint16)]
    for chunk in _text_chunks(texts):
        values, starts = shingles(chunk)
        short = (values >> np.uint64(32)).astype(np.uint32)
        smallest = [np.minimum.reduceat(short * factors[j] + offsets[j], starts).astype(np.uint16) for j in range(m)]
        signatures.append(np.stack(smallest, axis=1))
    return np.concatenate(signatures)


def _text_chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    length = 0
    for text in texts:
        chunk.append(text)
        length += len(text)
        if length >= TEXT_CHUNK:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


def shingles(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return shingle hashes (s,) of all texts in order, and the start (n,) of each; a short text is one shingle."""
    plain = [" ".join(text.lower().split()).ljust(WIDTH, "\0") for text in texts]
    letters = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lengths = np.fromiter(map(len, plain), dtype=np.int64, count=len(plain))
    values = np.zeros(len(letters) - WIDTH + 1, dtype=np.uint64)
    for j in range(WIDTH):
        values = values * _PRIME + letters[j : j + len(values)]
    ends = np.cumsum(lengths)
    inside = np.ones(len(values), dtype=bool)
    for j in range(1, WIDTH):
        inside[ends[:-1] - j] = False  # these would cross into the next text
    counts = lengths - WIDTH + 1
    return mixed(values[inside]), np.cumsum(counts) - counts


def _similarity(texts: Sequence[str], pairs: np.ndarray) -> np.ndarray:
    rows: list[int] = np.unique(pairs).tolist()
    hashes: list[np.ndarray] = []  # distinct shingles per row
    for chunk in _text_chunks([texts[row] for row in rows]):
        values, starts = shingles(chunk)
        hashes += map(np.unique, np.split(values, starts[1:]))
    sets = dict(zip(rows, hashes, strict=True))
    similarity = np.empty(len(pairs))
    for i, (one, other) in enumerate(pairs.tolist()):
        a, b = sets[one], sets[other]
        both = len(np.intersect1d(a, b, assume_unique=True))
        similarity[i] = both / (len(a) + len(b) - both)
    return similarity

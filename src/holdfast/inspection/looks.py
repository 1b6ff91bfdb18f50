"""Images that look nearly the same: a hash of brightness from left to right, then the correlation of small images.

n images, p pairs
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from holdfast.data.images import decode
from holdfast.data.raw import Pixels, Raw
from holdfast.inspection.bands import candidates

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
                yield torch.stack(list(pool.map(partial(decode, size=SIDE), files[start:stop])))


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

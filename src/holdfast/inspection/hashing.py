"""Numbers of 64 bits that stand for examples: equal examples have equal ones, others hardly ever.

n examples, d width
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

_FIRST, _SECOND, _STEP = (np.uint64(x) for x in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15))


def mixed(values: np.ndarray) -> np.ndarray:
    """Each number spread over all 64 bits (the finaliser of SplitMix64; Steele et al., 2014)."""
    values = values.astype(np.uint64) + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """(n,) one number a text."""
    found = (hashlib.blake2b(t.encode("utf-8", "surrogatepass"), digest_size=8).digest() for t in texts)
    return np.frombuffer(b"".join(found), dtype=np.uint64)


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """(n,) one number a row of (n, d) numbers; 0 and -0 are the same."""
    bits = (rows.astype(np.float64) + 0.0).view(np.uint64)
    found = np.full(len(rows), rows.shape[1], dtype=np.uint64)
    for column in bits.T:
        found = mixed(found ^ mixed(column))
    return found

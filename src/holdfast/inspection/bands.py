"""Which of many examples may be alike: those that agree in a band of their signature.

n examples, b bands, p pairs
"""

from __future__ import annotations

import numpy as np

SMALL = 16  # up to so many examples that share a band, each is looked at beside each
WINDOW = 3  # in a larger crowd, beside so many neighbours in the order of the whole signature, and beside the first


def candidates(bands: np.ndarray) -> np.ndarray:
    """(p, 2) pairs of rows of (n, b) numbers that share at least one, each once, the smaller row first."""
    n = len(bands)
    found = [np.empty(0, dtype=np.int64)]
    whole = np.lexsort(bands.T)
    place = np.empty(n, dtype=np.int64)
    place[whole] = np.arange(n)  # so that in a crowd those alike in other bands stand side by side
    for band in bands.T:
        order = np.lexsort((place, band))
        fresh = np.concatenate([[True], band[order][1:] != band[order][:-1]]) if n else np.empty(0, dtype=bool)
        run = np.cumsum(fresh) - 1
        start = np.flatnonzero(fresh)
        size = np.diff(np.append(start, n))
        for step in range(1, SMALL):
            left = np.arange(n - step)
            near = (run[left] == run[left + step]) & ((size[run[left]] <= SMALL) | (step <= WINDOW))
            if not near.any():
                break
            found.append(_coded(order[left[near]], order[left[near] + step], n))
        crowd = np.flatnonzero((size[run] > SMALL) & ~fresh)
        found.append(_coded(order[start[run[crowd]]], order[crowd], n))
    codes = np.unique(np.concatenate(found))
    return np.stack([codes // max(n, 1), codes % max(n, 1)], axis=1)


def _coded(one: np.ndarray, other: np.ndarray, n: int) -> np.ndarray:
    return np.minimum(one, other) * n + np.maximum(one, other)

"""Numbers of 64 bits that stand for examples: equal examples have equal ones, others hardly ever.

n examples, d width
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from holdfast.core.inputs import Graphs, cat

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


ROUNDS = 3
DEGREES = 10  # shares of nodes of degree 0 to 8, and of more
WIDEST = 64  # node features beyond these are not looked at in the features

_SELF, _ODD = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)


def graph_hashes(graphs: Sequence[Graphs]) -> np.ndarray:
    """(n,) one number a graph: nodes take the colours of their neighbours up, round after round (Weisfeiler, Leman).

    Graphs that differ only in the order of nodes have equal numbers. Some others have too, such as regular graphs of
    one size without features.
    """
    together = cat(graphs)
    owner = together.owner.numpy()
    colours = row_hashes(together.nodes.numpy().reshape(len(owner), -1))  # (v,) of all graphs
    source, target = together.edges.numpy()
    ties = np.full(len(source), 1, dtype=np.uint64)
    if together.weights is not None:
        ties = row_hashes(together.weights.numpy().reshape(len(source), -1))
    for _ in range(ROUNDS):
        told = np.zeros_like(colours)
        np.add.at(told, target, mixed(colours[source] ^ (ties * _ODD)))  # a sum knows no order
        colours = mixed(colours * _SELF + told)
    found = np.zeros(len(graphs), dtype=np.uint64)
    np.add.at(found, owner, mixed(colours))
    sizes = [np.bincount(which, minlength=len(graphs)) for which in (owner, owner[source])]
    return mixed(found ^ row_hashes(np.stack(sizes, axis=1)))


def graph_features(graphs: Sequence[Graphs]) -> np.ndarray:
    """(n, d) sizes, degrees and means of node features."""
    found = []
    for graph in graphs:
        v, e = len(graph.owner), graph.edges.shape[1]
        degree = np.bincount(graph.edges[1].numpy(), minlength=v)
        shares = np.bincount(degree.clip(max=DEGREES - 1), minlength=DEGREES) / v
        nodes = graph.nodes.numpy().reshape(v, -1)[:, :WIDEST].astype(np.float64)
        sizes = [np.log1p(v), np.log1p(e), e / v, degree.std()]
        found.append(np.concatenate([sizes, shares, nodes.mean(axis=0)]))
    return np.stack(found).astype(np.float32)


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

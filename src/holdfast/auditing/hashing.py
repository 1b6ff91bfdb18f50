"""64-bit hashes of examples, and candidate pairs of similar examples by locality-sensitive hashing."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from holdfast.core.inputs import Graphs, cat

_FIRST, _SECOND, _STEP = (np.uint64(x) for x in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15))
_SELF, _ODD = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)
ROUNDS = 3  # of Weisfeiler-Leman refinement
DEGREES = 10  # bins for node degrees 0 to 8 and more
MAX_NODE_FEATURES = 64  # node features used in graph features
SMALL = 16  # up to this size all pairs of a bucket are candidates
WINDOW = 3  # in a larger bucket, the neighbours by complete signature that are candidates, besides the first member


def mixed(values: np.ndarray) -> np.ndarray:
    """Spread each number over 64 bits with the finaliser of SplitMix64 (Steele et al., 2014)."""
    values = values.astype(np.uint64) + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """Return one hash per text, (n,)."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """Return one hash per row of (n, d) numbers; 0 and -0 are equal."""
    bits = (rows.astype(np.float64) + 0.0).view(np.uint64)
    hashes = np.full(len(rows), rows.shape[1], dtype=np.uint64)
    for column in bits.T:
        hashes = mixed(hashes ^ mixed(column))
    return hashes


def graph_hashes(graphs: Sequence[Graphs]) -> np.ndarray:
    """Return one hash per graph by Weisfeiler-Leman colour refinement, independent of the node order.

    Some different graphs collide, such as regular graphs of equal size without node features.
    """
    batch = cat(graphs)
    owner = batch.owner.numpy()
    colours = row_hashes(batch.nodes.numpy().reshape(len(owner), -1))  # (v,) nodes of all graphs
    source, target = batch.edges.numpy()
    edges = np.full(len(source), 1, dtype=np.uint64)
    if batch.weights is not None:
        edges = row_hashes(batch.weights.numpy().reshape(len(source), -1))
    for _ in range(ROUNDS):
        messages = np.zeros_like(colours)
        np.add.at(messages, target, mixed(colours[source] ^ (edges * _ODD)))  # sums do not depend on order
        colours = mixed(colours * _SELF + messages)
    hashes = np.zeros(len(graphs), dtype=np.uint64)
    np.add.at(hashes, owner, mixed(colours))
    sizes = [np.bincount(which, minlength=len(graphs)) for which in (owner, owner[source])]
    return mixed(hashes ^ row_hashes(np.stack(sizes, axis=1)))


def graph_features(graphs: Sequence[Graphs]) -> np.ndarray:
    """Return sizes, degree histogram and mean node features per graph, (n, d)."""
    features = []
    for graph in graphs:
        v, e = len(graph.owner), graph.edges.shape[1]
        degree = np.bincount(graph.edges[1].numpy(), minlength=v)
        shares = np.bincount(degree.clip(max=DEGREES - 1), minlength=DEGREES) / v
        nodes = graph.nodes.numpy().reshape(v, -1)[:, :MAX_NODE_FEATURES].astype(np.float64)
        sizes = [np.log1p(v), np.log1p(e), e / v, degree.std()]
        features.append(np.concatenate([sizes, shares, nodes.mean(axis=0)]))
    return np.stack(features).astype(np.float32)


def candidates(bands: np.ndarray) -> np.ndarray:
    """Return pairs (p, 2) of rows of (n, b) numbers that share at least one band; smaller row first, no repeats."""
    n = len(bands)
    codes = [np.empty(0, dtype=np.int64)]
    rank = np.argsort(np.lexsort(bands.T))  # in a large bucket, rows that share other bands become neighbours
    for band in bands.T:
        order = np.lexsort((rank, band))
        fresh = np.concatenate([[True], band[order][1:] != band[order][:-1]]) if n else np.empty(0, dtype=bool)
        bucket = np.cumsum(fresh) - 1
        start = np.flatnonzero(fresh)
        size = np.diff(np.append(start, n))
        for step in range(1, SMALL):
            left = np.arange(n - step)
            near = (bucket[left] == bucket[left + step]) & ((size[bucket[left]] <= SMALL) | (step <= WINDOW))
            if not near.any():
                break
            codes.append(_pair_codes(order[left[near]], order[left[near] + step], n))
        large = np.flatnonzero((size[bucket] > SMALL) & ~fresh)
        codes.append(_pair_codes(order[start[bucket[large]]], order[large], n))
    unique = np.unique(np.concatenate(codes))
    return np.stack([unique // max(n, 1), unique % max(n, 1)], axis=1)


def _pair_codes(one: np.ndarray, other: np.ndarray, n: int) -> np.ndarray:
    return np.minimum(one, other) * n + np.maximum(one, other)

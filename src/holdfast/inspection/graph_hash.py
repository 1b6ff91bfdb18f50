"""Graphs that are the same up to the order of their nodes, as far as refined colours can tell, and cheap features.

n graphs, v nodes, e edges, d width
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.core.inputs import Graphs, cat
from holdfast.inspection.hashing import mixed, row_hashes

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

"""Raw graphs as one disconnected graph: a sequence of single graphs without an object per graph.

Shapes: n graphs, v nodes of all graphs, e edges, d width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Graphs
from holdfast.core.store import GraphStore


class PackedGraphs(Sequence[Graphs]):
    """Graphs with features of one form; each item is a `Graphs` of one graph, built when it is requested."""

    def __init__(self, store: GraphStore) -> None:
        self.store = store
        self.node_starts = [0, *store.nodes.cumsum(0).tolist()]
        self.edge_starts = [0, *store.edges.cumsum(0).tolist()]

    @staticmethod
    def build(
        nodes: Tensor, edges: Tensor, weights: Tensor | None, counts: Tensor, edge_counts: Tensor
    ) -> PackedGraphs:
        """Join nodes (v, d), edges (2, e) with indices within their graph, and edge features (e, d).

        `counts` and `edge_counts` (n,) are the numbers of nodes and edges per graph.
        """
        first = counts.cumsum(0) - counts
        owner = torch.arange(len(counts)).repeat_interleave(counts)
        shifted = edges + first.repeat_interleave(edge_counts)
        return PackedGraphs(GraphStore(Graphs(nodes, shifted, owner, len(counts), weights), counts, edge_counts))

    def __len__(self) -> int:
        return len(self.store)

    @overload
    def __getitem__(self, index: int) -> Graphs: ...
    @overload
    def __getitem__(self, index: slice) -> PackedGraphs: ...
    def __getitem__(self, index: int | slice) -> Graphs | PackedGraphs:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._graph(int(index) % len(self))

    def __iter__(self) -> Iterator[Graphs]:
        return map(self._graph, range(len(self)))

    def _graph(self, i: int) -> Graphs:
        graphs, v, e = self.store.graphs, self.node_starts, self.edge_starts
        weights = None if graphs.weights is None else graphs.weights[e[i] : e[i + 1]]
        return Graphs.single(graphs.nodes[v[i] : v[i + 1]], graphs.edges[:, e[i] : e[i + 1]] - v[i], weights)

    def take(self, rows: np.ndarray) -> PackedGraphs:
        """Return the graphs at these rows, in that order."""
        if len(rows) == len(self) and np.array_equal(rows, np.arange(len(self))):
            return self
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return PackedGraphs(GraphStore(self.store.take(index), self.store.nodes[index], self.store.edges[index]))

    def digest(self, rows: np.ndarray) -> str:
        """Return a hash of the nodes, edges and edge features of these rows."""
        sha, graphs = hashlib.sha256(), self.store.graphs
        nodes, edges = graphs.nodes.numpy(), graphs.edges.numpy()
        weights = None if graphs.weights is None else graphs.weights.numpy()
        v, e = self.node_starts, self.edge_starts
        for i in rows.tolist():
            own, ends = nodes[v[i] : v[i + 1]], edges[:, e[i] : e[i + 1]] - v[i]
            data = [str(own.shape).encode(), own.tobytes(), str(ends.shape).encode(), ends.tobytes()]
            if weights is not None:
                features = weights[e[i] : e[i + 1]]
                data += [str(features.shape).encode(), features.tobytes()]
            sha.update(b"".join(data))
        return sha.hexdigest()

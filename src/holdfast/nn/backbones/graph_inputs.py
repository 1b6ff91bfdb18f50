"""Input features of graphs: numbers, categories, or degrees of nodes without features.

Shapes: v nodes, e edges, d width, k columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.packed_graphs import PackedGraphs
from holdfast.core.settings import checked_settings, setting
from holdfast.core.store import GraphStore

NODES = ("numbers", "categories", "degree", "scaled-degree")
MAX_CATEGORY = 1_000_000  # an encoder has a vector per category from 0 on
MAX_DEGREES = 2000  # from this degree on, degrees are one standardised number instead of one-hot (Han et al., 2022)


@checked_settings
class GraphForm:
    """Form of node and edge features: floats are numbers, integers categories; nodes without any get their degree.

    Categories and the largest degree come from the training graphs: an unseen category adds nothing, a larger degree
    counts as the largest.
    """

    nodes: str = setting("numbers", choices=NODES)
    inputs: int = 0  # number columns of nodes
    edges: int = 0  # number columns of edges
    categories: tuple[int, ...] = ()  # number of values per category column; the last value stands for all unseen ones
    edge_categories: tuple[int, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)  # mean and standard deviation of a scaled degree

    @staticmethod
    def from_examples(graphs: Sequence[Any]) -> GraphForm:
        """Return the form of raw training graphs; the first graph decides the kinds of features."""
        if not len(graphs) or not isinstance(graphs[0], Graphs):
            raise BadInput("a graph encoder needs training graphs, each a Graphs of one graph")
        first = graphs[0]
        weights, form = first.weights, GraphForm()
        if weights is not None and weights.is_floating_point():
            form = replace(form, edges=weights.shape[-1])
        elif weights is not None:
            form = replace(form, edge_categories=_values(_features(graphs, "weights")))
        if first.nodes.dim() != 2 or (first.nodes.is_floating_point() and first.nodes.shape[1]):
            return replace(form, inputs=first.nodes.shape[-1])
        if first.nodes.shape[1]:
            return replace(form, nodes="categories", categories=_values(_features(graphs, "nodes")))
        degree = torch.cat([degrees(g) for g in graphs])
        if int(degree.max()) < MAX_DEGREES:
            return replace(form, nodes="degree", categories=(int(degree.max()) + 1,))
        spread = max(float(degree.double().std(correction=0)), 1e-8)
        return replace(form, nodes="scaled-degree", scale=(float(degree.double().mean()), spread))

    @staticmethod
    def parse(form: GraphForm | dict[str, Any]) -> GraphForm:
        """Return a form unchanged, or build it from the result of `to_json`."""
        if isinstance(form, GraphForm):
            return form
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in form.items()}
        return GraphForm(**fields)

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def edge_width(self) -> int:
        return self.edges or sum(self.edge_categories)

    def embedding(self, width: int) -> nn.Module:
        """Return the layer from prepared nodes to (v, width)."""
        if self.nodes in ("categories", "degree"):
            return Categories(self.categories, width, others=self.nodes == "categories")
        return nn.Linear(self.inputs if self.nodes == "numbers" else 1, width)

    def prepare_all(self, graphs: Sequence[Any], *, signed: bool) -> GraphStore:
        """Check and convert many raw graphs: packed ones at once, or one by one if that fails, to name the error."""
        if isinstance(graphs, PackedGraphs):
            with suppress(BadInput):
                joined = graphs.store
                return GraphStore(self._converted(joined.graphs, signed=signed), joined.nodes, joined.edges)
        return GraphStore.build([self.prepare(graph, signed=signed) for graph in graphs])

    def prepare(self, graph: Any, *, signed: bool) -> Graphs:
        """Check the shapes of a raw graph and convert its features."""
        if not isinstance(graph, Graphs) or graph.count != 1:
            got = f"a Graphs of {graph.count}" if isinstance(graph, Graphs) else type(graph).__name__
            raise BadInput(f"each example must be a Graphs of one graph, got {got}")
        ends = graph.edges
        self._check_nodes(graph.nodes)
        if ends.dim() != 2 or len(ends) != 2 or ends.is_floating_point():
            raise BadInput(f"edges must be integers of shape (2, edges), got {ends.dtype} {tuple(ends.shape)}")
        if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < len(graph.nodes):
            low, high = int(ends.min()), int(ends.max())
            raise BadInput(f"edges refer to nodes {low} to {high} of a graph with {len(graph.nodes)} nodes")
        return self._converted(graph, signed=signed)

    def _converted(self, graph: Graphs, *, signed: bool) -> Graphs:
        """Convert the features of one or more graphs."""
        self._check_nodes(graph.nodes)
        weights = self._edges(graph.weights, graph.edges.shape[1])
        if weights is not None and not signed and weights.numel() and not float(weights.min()) >= 0:
            raise BadInput("gcn needs edge weights of 0 or more: use gin for edges with other features")
        return Graphs(self._nodes(graph), graph.edges.long(), graph.owner, graph.count, weights)

    def _check_nodes(self, nodes: Tensor) -> None:
        columns = {"numbers": self.inputs, "categories": len(self.categories)}.get(self.nodes, 0)
        if nodes.dim() != 2 or nodes.shape[1] != columns or not len(nodes):
            shape = tuple(nodes.shape)
            raise BadInput(f"a graph has nodes of shape {shape}, but the model needs (1 or more, {columns})")
        if self.nodes == "categories" and nodes.is_floating_point():
            raise BadInput("a graph has float nodes, but the model needs categories: use integers")

    def _nodes(self, graph: Graphs) -> Tensor:
        if self.nodes == "numbers":
            return graph.nodes.float()
        if self.nodes == "categories":
            return _coded(graph.nodes, self.categories)
        degree = degrees(graph)
        if self.nodes == "degree":
            return degree.clamp(max=self.categories[0] - 1)[:, None]
        mean, spread = self.scale
        return ((degree.float() - mean) / spread)[:, None]

    def _edges(self, weights: Tensor | None, count: int) -> Tensor | None:
        columns = self.edges or len(self.edge_categories)
        shape = () if weights is None else tuple(weights.shape)
        if shape != ((count, columns) if columns else ()):
            expected = f"(edges, {columns})" if columns else "none"
            raise BadInput(f"a graph has edge features of shape {shape or 'none'}, but the model needs {expected}")
        if weights is None or self.edges:
            return None if weights is None else weights.float()
        if weights.is_floating_point():
            raise BadInput("a graph has float edge features, but the model needs categories: use integers")
        coded = _coded(weights, self.edge_categories)
        one_hot = [F.one_hot(coded[:, i], c) for i, c in enumerate(self.edge_categories)]
        return torch.cat(one_hot, dim=1).float()  # (e, all values): a linear layer on it sums embeddings


class Categories(nn.Module):
    """Sum over columns of a learned vector per category; with `others` the vector of unseen categories is zero.

    Shapes: nodes (v, k) to (v, d).
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], width: int, *, others: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(sizes), width)
        nn.init.xavier_uniform_(self.table.weight)
        first = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("first", first, persistent=False)  # (k,) first row of each column in the table
        if others:
            with torch.no_grad():
                self.table.weight[first + torch.tensor(sizes) - 1] = 0.0

    def forward(self, nodes: Tensor) -> Tensor:
        return self.table(nodes + self.first).sum(dim=1)


def _features(graphs: Sequence[Any], name: str) -> list[Tensor]:
    """Return the features `nodes` or `weights` of all graphs that have some, joined if they are packed."""
    batches = [graphs.store.graphs] if isinstance(graphs, PackedGraphs) else graphs
    return [features for batch in batches if (features := getattr(batch, name)) is not None]


def degrees(graph: Graphs) -> Tensor:
    """(v,) number of outgoing edges per node."""
    return torch.bincount(graph.edges[0], minlength=len(graph.nodes))


def _values(columns: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the number of values per column, 0 to the largest, plus one for unseen values."""
    if len({c.shape[1:] for c in columns}) == 1:
        columns = [torch.cat(list(columns))]
    if any(c.numel() and int(c.min()) < 0 for c in columns):
        raise BadInput("categories of nodes and edges must be integers from 0 on: use floats for other numbers")
    largest = [c.amax(dim=0) for c in columns if len(c)] or [torch.zeros(columns[0].shape[1], dtype=torch.long)]
    values = [int(value) for value in torch.stack(largest).amax(dim=0)]
    if max(values, default=0) > MAX_CATEGORY:
        fix = "number the categories from 0 on, or use floats"
        raise BadInput(f"a category of nodes or edges is {max(values)}, above the limit {MAX_CATEGORY:,}: {fix}")
    return tuple(value + 2 for value in values)


def _coded(values: Tensor, sizes: Sequence[int]) -> Tensor:
    last = torch.tensor(sizes, device=values.device) - 1
    return torch.where((values < 0) | (values > last), last, values.long())

"""Graph encoders that select a part of each graph: clusters of nodes (ASAP), or a subgraph by edge scores.

Shapes: b graphs, v nodes of all graphs, k selected clusters, e edges, d width.
"""

import warnings
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu

from holdfast.core.inputs import Graphs, select_nodes, top_fraction
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.nn.backbones.graph import GraphBackbone, GraphNetwork
from holdfast.nn.backbones.graph_inputs import GraphForm
from holdfast.nn.backbones.graph_layers import LocalExtremum, node_sums


@checked_settings
class SelectionSettings:
    """Settings of the networks; `ratio` is the share of clusters or edges to select."""

    kind: str = "gin"
    ratio: float = setting(0.5, above=0, below=1)
    layers: int = 3
    hidden: int = 64
    dropout: float = 0.3
    pooling: str = "mean"

    def network(self) -> dict[str, Any]:
        """Settings of a GraphNetwork."""
        return {name: value for name, value in asdict(self).items() if name != "ratio"}


class PooledNetwork(GraphBackbone):
    """Layers over the nodes, a selection of their clusters, layers over these (ASAP; Ranjan et al., 2020)."""

    Settings = SelectionSettings

    @keywords_of(SelectionSettings)
    def __init__(self, form: GraphForm | dict[str, Any], settings: SelectionSettings) -> None:
        super().__init__()
        self.before = GraphNetwork(form, **settings.network())
        self.clusters = Clusters(settings.hidden, settings.ratio, settings.dropout)
        self.after = GraphNetwork(GraphForm(inputs=settings.hidden), **settings.network())
        self.width, self.form = settings.hidden, self.before.form
        self.settings = {"form": self.form.to_json(), **asdict(settings)}

    def forward(self, x: Graphs) -> Tensor:
        h = self.before.nodes(x)
        pooled, weights = self.clusters(Graphs(h, x.edges, x.owner, x.count))
        return self.after.pooled(pooled, weights)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return [*self.before.blocks(), self.clusters, *self.after.blocks()]


class Clusters(nn.Module):
    """Selection of clusters: every node with its neighbours is one, and the fittest become the nodes of a new graph.

    The new edges are S^T A S, where S holds the share of each node in each cluster.
    """

    def __init__(self, width: int, ratio: float, dropout: float) -> None:
        super().__init__()
        self.ratio, self.dropout = ratio, dropout
        self.query, self.attention = nn.Linear(width, width), nn.Linear(2 * width, 1)
        self.fitness = LocalExtremum(width, 1)

    def forward(self, x: Graphs) -> tuple[Graphs, Tensor]:
        """Return the clusters as graphs, and the weights of their edges."""
        v, loops = len(x.nodes), torch.arange(len(x.nodes), device=x.nodes.device)
        edges = torch.cat([x.edges[:, x.edges[0] != x.edges[1]], loops.expand(2, -1)], dim=1)  # (2, e)
        node, centre = edges
        members = x.nodes[node]  # (e, d)
        index = centre.unsqueeze(-1).expand_as(members)
        maximum = torch.zeros_like(x.nodes).scatter_reduce(0, index, members, "amax", include_self=False)
        pair = torch.cat([self.query(maximum)[centre], members], dim=-1)
        score = leaky_relu(self.attention(pair).squeeze(-1), 0.2)
        share = dropout(_cluster_softmax(score, centre, v), self.dropout, self.training)  # (e,)
        nodes = node_sums(members * share.unsqueeze(-1), centre, v)
        fitness = self.fitness(nodes, edges).sigmoid().squeeze(-1)  # (v,)
        selected = top_fraction(fitness, x.owner, x.count, self.ratio)
        adjacency = _cluster_adjacency(edges, share, selected, v)
        ends, weights = adjacency.indices(), adjacency.values()
        distinct = ends[0] != ends[1]
        features = nodes[selected] * fitness[selected].unsqueeze(-1)
        return Graphs(features, ends[:, distinct], x.owner[selected], x.count), weights[distinct]


def _cluster_softmax(score: Tensor, centre: Tensor, v: int) -> Tensor:
    """(e,) softmax over the nodes of each cluster."""
    top = torch.zeros(v, device=score.device, dtype=score.dtype)
    top = top.scatter_reduce(0, centre, score.detach(), "amax", include_self=False)
    weight = (score - top[centre]).exp()
    return weight / node_sums(weight, centre, v)[centre]


def _cluster_adjacency(edges: Tensor, share: Tensor, selected: Tensor, v: int) -> Tensor:
    """(k, k) sparse adjacency of the selected clusters; in COO, since not every CPU has the product for CSR."""
    column = torch.full((v,), -1, dtype=torch.long, device=selected.device)
    column[selected] = torch.arange(len(selected), device=selected.device)
    inside = column[edges[1]] >= 0
    entries = torch.stack([edges[0, inside], column[edges[1, inside]]])
    s = torch.sparse_coo_tensor(entries, share[inside].float(), (v, len(selected)), check_invariants=False).coalesce()
    a = torch.sparse_coo_tensor(edges, torch.ones_like(share).float(), (v, v), check_invariants=False).coalesce()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch reports sparse products as beta
        return torch.sparse.mm(s.t(), torch.sparse.mm(a, s)).coalesce()


class SubgraphNetwork(GraphBackbone):
    """One network scores the edges, another encodes the share with the best scores (Chen et al., 2022).

    `both` also encodes the rest of each graph, which should hold spurious features, for methods that use it.
    """

    Settings = SelectionSettings

    @keywords_of(SelectionSettings)
    def __init__(self, form: GraphForm | dict[str, Any], settings: SelectionSettings) -> None:
        super().__init__()
        hidden = settings.hidden
        self.scorer = GraphNetwork(form, **settings.network())
        self.body = GraphNetwork(form, **settings.network())
        self.score = nn.Sequential(nn.Linear(2 * hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, 1))
        self.width, self.ratio, self.form = hidden, settings.ratio, self.body.form
        self.settings = {"form": self.form.to_json(), **asdict(settings)}

    def forward(self, x: Graphs) -> Tensor:
        scores = self.scores(x)
        return self._encode(x, best_edges(x, scores, self.ratio), scores)  # (b, d)

    def both(self, x: Graphs) -> tuple[Tensor, Tensor]:
        """(b, d) features of the selected subgraphs, and of the rests."""
        scores = self.scores(x)
        selected = best_edges(x, scores, self.ratio)
        return self._encode(x, selected, scores), self._encode(x, ~selected, -scores)

    def scores(self, x: Graphs) -> Tensor:
        """(e,) edge scores from the features of both ends."""
        h = self.scorer.nodes(x)
        return self.score(torch.cat([h[x.edges[0]], h[x.edges[1]]], dim=1))[:, 0]

    def _encode(self, x: Graphs, selected: Tensor, scores: Tensor) -> Tensor:
        """Encode the graphs restricted to these edges (e,) and their nodes, messages weighted by the scores."""
        touched = torch.zeros(len(x.nodes), dtype=torch.bool, device=selected.device)
        touched[x.edges[:, selected].flatten()] = True
        empty = torch.bincount(x.owner[touched], minlength=x.count) == 0  # a graph without edges keeps its nodes
        weights = None if x.weights is None else x.weights[selected]
        subgraph = Graphs(x.nodes, x.edges[:, selected], x.owner, x.count, weights)
        return self.body.pooled(select_nodes(subgraph, touched | empty[x.owner]), scores[selected].sigmoid())

    def blocks(self) -> list[nn.Module]:
        return [nn.ModuleList([self.scorer, self.score]), *self.body.blocks()]


def best_edges(x: Graphs, scores: Tensor, ratio: float) -> Tensor:
    """(e,) whether an edge is among the given share of its graph's edges, rounded up, with the best scores."""
    selected = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    selected[top_fraction(scores, x.owner[x.edges[0]], x.count, ratio)] = True
    return selected

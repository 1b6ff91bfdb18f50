"""A graph encoder that pools nodes to clusters between its layers.

b graphs, v nodes of all graphs, k clusters that are kept, e edges with a loop at each node, d width
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Inputs, select_nodes, top_fraction
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.graph import GraphNetwork, geometric
from holdfast.nn.backbones.graph_inputs import GraphForm


class PooledNetwork(Backbone):
    """Layers over the nodes, the best share of their clusters, layers over those (ASAP; Ranjan et al., 2020)."""

    takes: ClassVar[str] = "graph"

    def __init__(
        self,
        *,
        form: GraphForm | dict[str, Any],
        kind: str = "gin",
        ratio: float = 0.5,
        layers: int = 3,
        hidden: int = 64,
        dropout: float = 0.3,
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        if not 0 < ratio < 1:
            raise BadInput(f"ratio, the share of clusters that are kept, must lie between 0 and 1, not {ratio}")
        shape: dict[str, Any] = {"kind": kind, "layers": layers, "hidden": hidden, "dropout": dropout}
        self.before = GraphNetwork(form=form, pooling=pooling, **shape)
        self.clusters = Clusters(hidden, ratio, dropout)
        self.after = GraphNetwork(form=GraphForm(inputs=hidden), pooling=pooling, **shape)
        self.width, self.form = hidden, self.before.form
        self.settings = {"form": self.before.settings["form"], "ratio": ratio, "pooling": pooling, **shape}

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        kind: str = "gin",
        ratio: float = 0.5,
        layers: int = 3,
        hidden: int = 64,
        dropout: float = 0.3,
        pooling: str = "mean",
    ) -> Self:
        """Make one for graphs like the training graphs."""
        form = GraphForm.of_examples(training())
        return cls(form=form, kind=kind, ratio=ratio, layers=layers, hidden=hidden, dropout=dropout, pooling=pooling)

    def prepare(self, examples: Sequence[Graphs]) -> GraphStore:
        return self.before.prepare(examples)

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Graphs)
        h = self.before.nodes(x)
        pooled, weights = self.clusters(Graphs(h, x.edges, x.owner, x.count))
        return self.after.pooled(pooled, weights)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return [*self.before.blocks(), self.clusters, *self.after.blocks()]

    def preparation_key(self) -> str:
        return self.before.preparation_key()


class Clusters(nn.Module):
    """Every node with its neighbours is a cluster; the fittest share of a graph's clusters are the nodes of the next.

    Clusters are joined where their nodes are, by S'AS: S holds how much of each node a cluster takes.
    """

    def __init__(self, width: int, ratio: float, dropout: float) -> None:
        super().__init__()
        self.ratio, self.dropout = ratio, dropout
        self.query, self.attention = nn.Linear(width, width), nn.Linear(2 * width, 1)
        self.fitness = geometric().LEConv(width, 1)

    def forward(self, x: Graphs) -> tuple[Graphs, Tensor]:
        """The clusters as graphs, and the weights of their edges."""
        v, own = len(x.nodes), torch.arange(len(x.nodes), device=x.nodes.device)
        loops = x.edges[0] == x.edges[1]
        edges = torch.cat([x.edges[:, ~loops], own.expand(2, -1)], dim=1)  # (2, e)
        node, centre = edges
        near = x.nodes[node]  # (e, d)
        where = centre.unsqueeze(-1).expand_as(near)
        most = torch.zeros_like(x.nodes).scatter_reduce(0, where, near, "amax", include_self=False)
        pair = torch.cat([self.query(most)[centre], near], dim=-1)
        score = leaky_relu(self.attention(pair).squeeze(-1), 0.2)
        share = dropout(_shares(score, centre, v), self.dropout, self.training)  # (e,)
        nodes = torch.zeros_like(x.nodes).index_add(0, centre, near * share.unsqueeze(-1))
        fitness = self.fitness(nodes, edges).sigmoid().squeeze(-1)  # (v,)
        kept = top_fraction(fitness, x.owner, x.count, self.ratio)
        joined = _joined(edges, share, kept, v)
        ends, weights = joined.indices(), joined.values()
        apart = ends[0] != ends[1]
        chosen = nodes[kept] * fitness[kept].unsqueeze(-1)
        return Graphs(chosen, ends[:, apart], x.owner[kept], x.count), weights[apart]


def _shares(score: Tensor, centre: Tensor, v: int) -> Tensor:
    """(e,) the softmax over the nodes of each cluster."""
    top = torch.zeros(v, device=score.device, dtype=score.dtype)
    top = top.scatter_reduce(0, centre, score.detach(), "amax", include_self=False)
    weight = (score - top[centre]).exp()
    return weight / torch.zeros_like(top).index_add(0, centre, weight)[centre]


def _joined(edges: Tensor, share: Tensor, kept: Tensor, v: int) -> Tensor:
    """(k, k) how strongly clusters are joined, sparse; in COO, since CSR has no such product on every CPU."""
    column = torch.full((v,), -1, dtype=torch.long, device=kept.device)
    column[kept] = torch.arange(len(kept), device=kept.device)
    mine = column[edges[1]] >= 0
    places = torch.stack([edges[0, mine], column[edges[1, mine]]])
    taken = torch.sparse_coo_tensor(places, share[mine].float(), (v, len(kept)), check_invariants=False).coalesce()
    linked = torch.sparse_coo_tensor(edges, torch.ones_like(share).float(), (v, v), check_invariants=False).coalesce()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls what it does inside a beta
        return torch.sparse.mm(taken.t(), torch.sparse.mm(linked, taken)).coalesce()


class SubgraphNetwork(Backbone):
    """One network scores every edge, another encodes the share of edges with the best scores (Chen et al., 2022).

    The rest of a graph, which should hold what misleads, is encoded by `both` for rules that use it.
    """

    takes: ClassVar[str] = "graph"

    def __init__(
        self,
        *,
        form: GraphForm | dict[str, Any],
        kind: str = "gin",
        ratio: float = 0.5,
        layers: int = 3,
        hidden: int = 64,
        dropout: float = 0.3,
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        if not 0 < ratio < 1:
            raise BadInput(f"ratio, the share of edges that are kept, must lie between 0 and 1, not {ratio}")
        shape: dict[str, Any] = {"kind": kind, "layers": layers, "hidden": hidden, "dropout": dropout}
        self.scorer = GraphNetwork(form=form, pooling=pooling, **shape)
        self.body = GraphNetwork(form=form, pooling=pooling, **shape)
        self.score = nn.Sequential(nn.Linear(2 * hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, 1))
        self.width, self.ratio, self.form = hidden, ratio, self.body.form
        self.settings = {"form": self.body.settings["form"], "ratio": ratio, "pooling": pooling, **shape}

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        kind: str = "gin",
        ratio: float = 0.5,
        layers: int = 3,
        hidden: int = 64,
        dropout: float = 0.3,
        pooling: str = "mean",
    ) -> Self:
        """Make one for graphs like the training graphs."""
        form = GraphForm.of_examples(training())
        return cls(form=form, kind=kind, ratio=ratio, layers=layers, hidden=hidden, dropout=dropout, pooling=pooling)

    def prepare(self, examples: Sequence[Graphs]) -> GraphStore:
        return self.body.prepare(examples)

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Graphs)
        scores = self.scores(x)
        return self._encoded(x, best_edges(x, scores, self.ratio), scores)  # (b, d)

    def both(self, x: Graphs) -> tuple[Tensor, Tensor]:
        """(b, d) of the part that decides, and of the rest."""
        scores = self.scores(x)
        kept = best_edges(x, scores, self.ratio)
        return self._encoded(x, kept, scores), self._encoded(x, ~kept, -scores)

    def scores(self, x: Graphs) -> Tensor:
        """(e,) of the two ends of each edge."""
        h = self.scorer.nodes(x)
        return self.score(torch.cat([h[x.edges[0]], h[x.edges[1]]], dim=1))[:, 0]

    def _encoded(self, x: Graphs, kept: Tensor, scores: Tensor) -> Tensor:
        """The graphs with these edges (e,) and the nodes on them, each message weighed by its score."""
        touched = torch.zeros(len(x.nodes), dtype=torch.bool, device=kept.device)
        touched[x.edges[:, kept].flatten()] = True
        bare = torch.bincount(x.owner[touched], minlength=x.count) == 0  # a graph without edges keeps its nodes
        weights = None if x.weights is None else x.weights[kept]
        part = select_nodes(Graphs(x.nodes, x.edges[:, kept], x.owner, x.count, weights), touched | bare[x.owner])
        return self.body.pooled(part, scores[kept].sigmoid())

    def blocks(self) -> list[nn.Module]:
        return [nn.ModuleList([self.scorer, self.score]), *self.body.blocks()]

    def preparation_key(self) -> str:
        return self.body.preparation_key()


def best_edges(x: Graphs, scores: Tensor, ratio: float) -> Tensor:
    """(e,) whether an edge is among that share of its graph's edges, rounded up, with the best scores."""
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    kept[top_fraction(scores, x.owner[x.edges[0]], x.count, ratio)] = True
    return kept

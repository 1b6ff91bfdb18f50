"""Graph encoders: layers of GCN or GIN over the nodes, with or without a virtual node, pooled to one vector a graph.

b graphs, v nodes of all graphs, e edges, d width
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Graphs, Inputs
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.graph_inputs import GraphForm

KINDS = ("gcn", "gin")
POOLINGS = ("mean", "sum", "max")


class GraphNetwork(Backbone):
    """Layers of messages between neighbours with BatchNorm, ReLU and Dropout, then a pool over each graph's nodes.

    gcn averages neighbours by degree (Kipf & Welling, 2017), gin passes h + eps h + the sum of the neighbours through
    a perceptron (Xu et al., 2019). The default sizes are those of the OGB examples (Hu et al., 2020).
    """

    takes: ClassVar[str] = "graph"

    def __init__(
        self,
        *,
        form: GraphForm | dict[str, Any],
        kind: str = "gin",
        virtual: bool = False,
        layers: int = 5,
        hidden: int = 300,
        dropout: float = 0.5,
        pooling: str = "mean",
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise unknown("kind of graph layer", kind, KINDS)
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
        if layers < 1 or hidden < 1:
            raise BadInput(f"a graph encoder needs a layer and a width of 1 or more, not {layers} of {hidden}")
        self.width, self.kind, self.form = hidden, kind, GraphForm.of(form)
        self.settings = {
            "form": self.form.json(),
            "kind": kind,
            "virtual": virtual,
            "layers": layers,
            "hidden": hidden,
            "dropout": dropout,
            "pooling": pooling,
        }
        parts = geometric()
        pools = {"mean": parts.global_mean_pool, "sum": parts.global_add_pool, "max": parts.global_max_pool}
        self.pool = pools[pooling]
        self.embed = self.form.embedding(hidden)
        self.hub = VirtualNode(hidden, layers - 1, dropout) if virtual else None
        edges = self.form.edge_width
        self.layers = nn.ModuleList(
            Messages(kind, hidden, edges=edges, dropout=dropout, last=i == layers - 1) for i in range(layers)
        )

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        kind: str = "gin",
        virtual: bool = False,
        layers: int = 5,
        hidden: int = 300,
        dropout: float = 0.5,
        pooling: str = "mean",
    ) -> Self:
        """Make one for graphs like the training graphs."""
        return cls(
            form=GraphForm.of_examples(training()),
            kind=kind,
            virtual=virtual,
            layers=layers,
            hidden=hidden,
            dropout=dropout,
            pooling=pooling,
        )

    def prepare(self, examples: Sequence[Graphs]) -> GraphStore:
        signed = self.kind == "gin" or self.form.edge_width > 1
        return GraphStore([self.form.prepared(graph, signed=signed) for graph in examples])

    def nodes(self, x: Graphs, gate: Tensor | None = None) -> Tensor:
        """(v, d) features of all nodes, before they are pooled; a gate (e,) weighs the messages of each edge."""
        if self.training and (len(x.nodes) < 2 or (self.hub is not None and x.count < 2)):
            raise BadInput("BatchNorm cannot train on a batch of a single graph or node: take more examples a batch")
        h = self.embed(x.nodes)  # (v, d)
        state = None if self.hub is None else self.hub.begin(x)  # (b, d)
        for i, layer in enumerate(self.layers):
            if self.hub is not None and state is not None:
                h = h + state[x.owner]
                if i < len(self.layers) - 1:
                    state = self.hub(i, h, state, x)
            h = layer(h, x, gate)
        return h

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Graphs)
        return self.pooled(x)

    def pooled(self, x: Graphs, gate: Tensor | None = None) -> Tensor:
        """(b, d) one vector a graph."""
        return self.pool(self.nodes(x, gate), x.owner, x.count)

    def blocks(self) -> list[nn.Module]:
        first = self.embed if self.hub is None else nn.ModuleList([self.embed, self.hub])
        return [first, *self.layers]

    def preparation_key(self) -> str:
        text = json.dumps(["graph", self.kind, self.settings["form"]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def geometric() -> Any:
    """The layers of torch-geometric, imported when a graph encoder is made."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import uses parts of torch that torch will drop
            from torch_geometric import nn as layers
    except ImportError as error:
        raise BadInput("graph encoders need torch-geometric: pip install 'holdfast[graph]'") from error
    return layers


class Messages(nn.Module):
    """One layer of messages along the edges; the last one has no ReLU, so that features may be negative."""

    def __init__(self, kind: str, width: int, *, edges: int, dropout: float, last: bool) -> None:
        super().__init__()
        parts = geometric()
        self.kind, self.weighted = kind, kind == "gcn" and edges == 1
        self.conv: Any
        if kind == "gcn" and edges > 1:
            self.conv = EdgeConvolution(width, edges)
        elif kind == "gcn":
            self.conv = parts.GCNConv(width, width)
        elif edges:
            self.conv = parts.GINEConv(perceptron(width), train_eps=True, edge_dim=edges)
        else:
            self.conv = parts.GINConv(perceptron(width), train_eps=True)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.Identity() if last else nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, x: Graphs, gate: Tensor | None = None) -> Tensor:
        """(v, d); a gate (e,) weighs each message."""
        if gate is not None:
            sent = self._gated(h, x, gate)
        elif x.weights is None:
            sent = self.conv(h, x.edges)
        else:
            sent = self.conv(h, x.edges, x.weights[:, 0] if self.weighted else x.weights)
        return self.dropout(self.act(self.norm(sent)))  # (v, d)

    def _gated(self, h: Tensor, x: Graphs, gate: Tensor) -> Tensor:
        """What torch-geometric's layers do, message by message."""
        conv, (start, end) = self.conv, x.edges
        if self.kind == "gcn" and isinstance(conv, EdgeConvolution):
            return conv(h, x.edges, x.weights, gate)
        if self.kind == "gcn":
            return conv(h, x.edges, gate if x.weights is None else gate * x.weights[:, 0])
        said = h[start] if x.weights is None else (h[start] + conv.lin(x.weights)).relu()
        heard = torch.zeros_like(h).index_add(0, end, gate[:, None] * said)
        return conv.nn((1 + conv.eps) * h + heard)


class EdgeConvolution(nn.Module):
    """GCN whose messages hear the edge, sum_u relu(W h_u + B e_uv) / sqrt(d_u d_v) + relu(W h_v + r) / d_v (OGB).

    d is the degree and one for the node itself, whose edge is the learned r (Hu et al., 2020).
    """

    def __init__(self, width: int, edges: int) -> None:
        super().__init__()
        self.lin, self.bond = nn.Linear(width, width), nn.Linear(edges, width)
        self.root = nn.Parameter(torch.empty(width))
        nn.init.normal_(self.root)

    def forward(self, h: Tensor, edges: Tensor, weights: Tensor, gate: Tensor | None = None) -> Tensor:
        h, (start, end) = self.lin(h), edges
        degree = 1 + torch.bincount(end, minlength=len(h)).to(h.dtype)  # (v,)
        scale = degree.rsqrt()
        said = (scale[start] * scale[end])[:, None] * (h[start] + self.bond(weights)).relu()  # (e, d)
        said = said if gate is None else gate[:, None] * said
        return torch.zeros_like(h).index_add(0, end, said.to(h.dtype)) + (h + self.root).relu() / degree[:, None]


class VirtualNode(nn.Module):
    """A state of each graph that all its nodes hear before a layer and that sums them up after it."""

    def __init__(self, width: int, turns: int, dropout: float) -> None:
        super().__init__()
        self.add = geometric().global_add_pool
        self.start = nn.Embedding(1, width)
        nn.init.zeros_(self.start.weight)
        self.turns = nn.ModuleList(
            nn.Sequential(perceptron(width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout))
            for _ in range(turns)
        )

    def begin(self, x: Graphs) -> Tensor:
        return self.start.weight.expand(x.count, -1)  # (b, d)

    def forward(self, turn: int, h: Tensor, state: Tensor, x: Graphs) -> Tensor:
        return self.turns[turn](self.add(h, x.owner, x.count) + state)  # (b, d)


def perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width))

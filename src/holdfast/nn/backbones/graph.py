"""Graph encoders: layers of GCN or GIN over the nodes, with or without a virtual node, pooled to one vector a graph.

b graphs, v nodes of all graphs, e edges, d width
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Graphs, Inputs
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone

KINDS = ("gcn", "gin")
POOLINGS = ("mean", "sum", "max")


def geometric() -> Any:
    """The layers of torch-geometric, imported when a graph encoder is made."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import uses parts of torch that torch will drop
            from torch_geometric import nn as layers
    except ImportError as error:
        raise BadInput("graph encoders need torch-geometric: pip install 'holdfast[graph]'") from error
    return layers


class GraphNetwork(Backbone):
    """Layers of messages between neighbours with BatchNorm, ReLU and Dropout, then a pool over each graph's nodes.

    gcn averages neighbours by degree (Kipf & Welling, 2017), gin passes h + eps h + the sum of the neighbours through
    a perceptron (Xu et al., 2019). The default sizes are those of the OGB examples (Hu et al., 2020).
    """

    takes: ClassVar[str] = "graph"

    def __init__(
        self,
        *,
        inputs: int,
        edges: int = 0,  # features of an edge; 0 where edges have none
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
        if kind == "gcn" and edges > 1:
            raise BadInput(f"gcn takes one weight an edge, and these edges have {edges} features: use gin")
        self.width, self.kind = hidden, kind
        self.settings = {
            "inputs": inputs,
            "edges": edges,
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
        self.embed = nn.Linear(inputs, hidden)
        self.hub = VirtualNode(hidden, layers - 1, dropout) if virtual else None
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
        """Make one for graphs like the first training graph."""
        examples = training()
        if not len(examples) or not isinstance(examples[0], Graphs):
            raise BadInput("a graph encoder needs training graphs, each a Graphs of one graph")
        first = examples[0]
        return cls(
            inputs=first.nodes.shape[-1],
            edges=0 if first.weights is None else first.weights.shape[-1],
            kind=kind,
            virtual=virtual,
            layers=layers,
            hidden=hidden,
            dropout=dropout,
            pooling=pooling,
        )

    def prepare(self, examples: Sequence[Graphs]) -> GraphStore:
        inputs, edges = self.settings["inputs"], self.settings["edges"]
        return GraphStore([_checked(graph, inputs, edges, signed=self.kind == "gin") for graph in examples])

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Graphs)
        if self.training and (len(x.nodes) < 2 or (self.hub is not None and x.count < 2)):
            raise BadInput("BatchNorm cannot train on a batch of a single graph or node: take more examples a batch")
        h = self.embed(x.nodes)  # (v, d)
        state = None if self.hub is None else self.hub.begin(x)  # (b, d)
        for i, layer in enumerate(self.layers):
            if self.hub is not None and state is not None:
                h = h + state[x.owner]
                if i < len(self.layers) - 1:
                    state = self.hub(i, h, state, x)
            h = layer(h, x)
        return self.pool(h, x.owner, x.count)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        first = self.embed if self.hub is None else nn.ModuleList([self.embed, self.hub])
        return [first, *self.layers]

    def preparation(self) -> str:
        text = json.dumps(["graph", self.kind, self.settings["inputs"], self.settings["edges"]])
        return hashlib.sha256(text.encode()).hexdigest()


class Messages(nn.Module):
    """One layer of messages along the edges; the last one has no ReLU, so that features may be negative."""

    def __init__(self, kind: str, width: int, *, edges: int, dropout: float, last: bool) -> None:
        super().__init__()
        parts = geometric()
        self.weighted = kind == "gcn"
        if kind == "gcn":
            self.conv = parts.GCNConv(width, width)
        elif edges:
            self.conv = parts.GINEConv(_perceptron(width), train_eps=True, edge_dim=edges)
        else:
            self.conv = parts.GINConv(_perceptron(width), train_eps=True)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.Identity() if last else nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, x: Graphs) -> Tensor:
        if x.weights is None:
            sent = self.conv(h, x.edges)
        else:
            sent = self.conv(h, x.edges, x.weights[:, 0] if self.weighted else x.weights)
        return self.dropout(self.act(self.norm(sent)))  # (v, d)


class VirtualNode(nn.Module):
    """A state of each graph that all its nodes hear before a layer and that sums them up after it."""

    def __init__(self, width: int, turns: int, dropout: float) -> None:
        super().__init__()
        self.add = geometric().global_add_pool
        self.start = nn.Embedding(1, width)
        nn.init.zeros_(self.start.weight)
        self.turns = nn.ModuleList(
            nn.Sequential(_perceptron(width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout))
            for _ in range(turns)
        )

    def begin(self, x: Graphs) -> Tensor:
        return self.start.weight.expand(x.count, -1)  # (b, d)

    def forward(self, turn: int, h: Tensor, state: Tensor, x: Graphs) -> Tensor:
        return self.turns[turn](self.add(h, x.owner, x.count) + state)  # (b, d)


def _perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width))


def _checked(graph: Any, inputs: int, edges: int, *, signed: bool) -> Graphs:
    """The graph with float features, after a look at its shapes."""
    if not isinstance(graph, Graphs) or graph.count != 1:
        found = f"a Graphs of {graph.count}" if isinstance(graph, Graphs) else type(graph).__name__
        raise BadInput(f"each example must be a Graphs of one graph, not {found}")
    nodes, ends, weights = graph.nodes, graph.edges, graph.weights
    if nodes.dim() != 2 or nodes.shape[1] != inputs or not len(nodes):
        raise BadInput(f"a graph has nodes of shape {tuple(nodes.shape)}, but the model takes (1 or more, {inputs})")
    if ends.dim() != 2 or len(ends) != 2 or ends.is_floating_point():
        raise BadInput(f"edges must be whole numbers of shape (2, edges), not {ends.dtype} {tuple(ends.shape)}")
    if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < len(nodes):
        raise BadInput(f"an edge names node {int(ends.max())} or {int(ends.min())} of a graph with {len(nodes)} nodes")
    has = () if weights is None else tuple(weights.shape)
    if has != ((ends.shape[1], edges) if edges else ()):
        wanted = f"(edges, {edges})" if edges else "none"
        raise BadInput(f"a graph has edge features of shape {has or 'none'}, but the model takes {wanted}")
    if weights is not None and not signed and weights.numel() and not float(weights.min()) >= 0:
        raise BadInput("gcn takes edge weights of 0 or more: use gin for edges with other features")
    return Graphs(nodes.float(), ends.long(), graph.owner, 1, None if weights is None else weights.float())

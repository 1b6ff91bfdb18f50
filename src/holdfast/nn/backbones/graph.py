"""Graph encoders: GCN or GIN layers over the nodes, with or without a virtual node, pooled to one vector per graph.

Shapes: b graphs, v nodes of all graphs, e edges, d width.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone, fingerprint
from holdfast.nn.backbones.graph_inputs import GraphForm
from holdfast.nn.backbones.graph_layers import POOLS, GcnLayer, GinLayer, node_sums
from holdfast.nn.backbones.small import Dropout


class GraphBackbone(Backbone):
    """Base of encoders for graphs of one form."""

    takes = "graph"
    form: GraphForm
    settings: dict[str, Any]  # with the keys `form` and `kind`

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        """Build the network for graphs like the training graphs."""
        return cls(form=GraphForm.from_examples(training()), **settings)

    def prepare(self, examples: Sequence[Graphs]) -> GraphStore:
        signed = self.settings["kind"] == "gin" or self.form.edge_width > 1
        return self.form.prepare_all(examples, signed=signed)

    def preparation_key(self) -> str:
        return fingerprint("graph", self.settings["kind"], self.settings["form"])


class GraphNetwork(GraphBackbone):
    """Message passing layers with BatchNorm, ReLU and Dropout, then a pooling over each graph's nodes.

    gcn averages neighbours by degree (Kipf & Welling, 2017); gin passes (1 + eps) h plus the sum of the neighbours
    through a perceptron (Xu et al., 2019).
    """

    @checked_settings
    class Settings:
        """Settings of the network; the default sizes are those of the OGB examples (Hu et al., 2020)."""

        kind: str = setting("gin", choices=("gcn", "gin"))
        virtual: bool = False
        layers: int = setting(5, least=1)
        hidden: int = setting(300, least=1)
        dropout: float = 0.5
        pooling: str = setting("mean", choices=POOLS)

    @keywords_of(Settings)
    def __init__(self, form: GraphForm | dict[str, Any], settings: Settings) -> None:
        super().__init__()
        self.width, self.kind, self.form = settings.hidden, settings.kind, GraphForm.parse(form)
        self.settings = {"form": self.form.to_json(), **asdict(settings)}
        self.pool = POOLS[settings.pooling]
        width, rate, last = settings.hidden, settings.dropout, settings.layers - 1
        self.embed = self.form.embedding(width)
        self.hub = VirtualNode(width, last, rate) if settings.virtual else None
        self.layers = nn.ModuleList(
            Messages(settings.kind, width, edges=self.form.edge_width, dropout=rate, last=i == last)
            for i in range(settings.layers)
        )

    def nodes(self, x: Graphs, gate: Tensor | None = None) -> Tensor:
        """(v, d) node features before pooling; a gate (e,) multiplies the message of each edge."""
        if self.training and (len(x.nodes) < 2 or (self.hub is not None and x.count < 2)):
            raise BadInput("BatchNorm cannot train on a batch of a single graph or node: increase the batch size")
        h = self.embed(x.nodes)  # (v, d)
        state = None if self.hub is None else self.hub.begin(x)  # (b, d)
        for i, layer in enumerate(self.layers):
            if self.hub is not None and state is not None:
                h = h + state[x.owner]
                if i < len(self.layers) - 1:
                    state = self.hub(i, h, state, x)
            h = layer(h, x, gate)
        return h

    def forward(self, x: Graphs) -> Tensor:
        return self.pooled(x)

    def pooled(self, x: Graphs, gate: Tensor | None = None) -> Tensor:
        """(b, d) one vector per graph."""
        return self.pool(self.nodes(x, gate), x.owner, x.count)

    def blocks(self) -> list[nn.Module]:
        first = self.embed if self.hub is None else nn.ModuleList([self.embed, self.hub])
        return [first, *self.layers]


class Messages(nn.Module):
    """One message passing layer; the last one has no ReLU, so that features can be negative."""

    def __init__(self, kind: str, width: int, *, edges: int, dropout: float, last: bool) -> None:
        super().__init__()
        self.kind, self.weighted = kind, kind == "gcn" and edges == 1
        self.conv: Any
        if kind == "gcn" and edges > 1:
            self.conv = EdgeConvolution(width, edges)
        elif kind == "gcn":
            self.conv = GcnLayer(width)
        else:
            self.conv = GinLayer(perceptron(width), width, edges=edges)
        self.norm = nn.BatchNorm1d(width)
        self.act = nn.Identity() if last else nn.ReLU()
        self.dropout = Dropout(dropout)

    def forward(self, h: Tensor, x: Graphs, gate: Tensor | None = None) -> Tensor:
        """(v, d) to (v, d); a gate (e,) multiplies each message."""
        weights = x.weights[:, 0] if self.weighted and x.weights is not None else x.weights
        return self.dropout(self.act(self.norm(self.conv(h, x.edges, weights, gate))))


class EdgeConvolution(nn.Module):
    """GCN with edge features, sum_u relu(W h_u + B e_uv) / sqrt(d_u d_v) + relu(W h_v + r) / d_v (OGB).

    d is the degree plus one for the node itself, whose edge is the learned r (Hu et al., 2020).
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
        messages = (scale[start] * scale[end])[:, None] * (h[start] + self.bond(weights)).relu()  # (e, d)
        messages = messages if gate is None else gate[:, None] * messages
        return node_sums(messages.to(h.dtype), end, len(h)) + (h + self.root).relu() / degree[:, None]


class VirtualNode(nn.Module):
    """A state per graph that is added to all its nodes before a layer and updated with their sum."""

    def __init__(self, width: int, turns: int, dropout: float) -> None:
        super().__init__()
        self.start = nn.Embedding(1, width)
        nn.init.zeros_(self.start.weight)
        self.turns = nn.ModuleList(
            nn.Sequential(perceptron(width), nn.BatchNorm1d(width), nn.ReLU(), Dropout(dropout)) for _ in range(turns)
        )

    def begin(self, x: Graphs) -> Tensor:
        return self.start.weight.expand(x.count, -1)  # (b, d)

    def forward(self, turn: int, h: Tensor, state: Tensor, x: Graphs) -> Tensor:
        return self.turns[turn](node_sums(h, x.owner, x.count) + state)  # (b, d)


def perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width))

"""Graph encoders: layers of GCN or GIN over the nodes, with or without a virtual node, pooled to one vector a graph.

b graphs, v nodes of all graphs, e edges, d width
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Graphs, Inputs
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.graph_inputs import GraphForm
from holdfast.nn.backbones.graph_layers import Messages, VirtualNode, geometric

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

    def preparation(self) -> str:
        text = json.dumps(["graph", self.kind, self.settings["form"]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

"""A graph encoder that pools nodes to clusters between its layers.

b graphs, v nodes of all graphs, d width
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Inputs
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.graph_inputs import GraphForm
from holdfast.nn.backbones.graph_layers import geometric


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
        self.clusters = geometric().ASAPooling(hidden, ratio, dropout=dropout)
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it multiplies sparse matrices, which torch calls a beta
            nodes, edges, weights, owner, _ = self.clusters(h, x.edges, batch=x.owner)
        return self.after.pooled(Graphs(nodes, edges, owner, x.count), weights)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return [*self.before.blocks(), self.clusters, *self.after.blocks()]

    def preparation(self) -> str:
        return self.before.preparation()

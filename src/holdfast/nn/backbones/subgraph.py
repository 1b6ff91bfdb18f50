"""A graph encoder that looks for the part of each graph that decides: edges are scored, the best kept and encoded.

b graphs, v nodes of all graphs, e edges, d width
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, Inputs, best_share, keep_nodes
from holdfast.core.store import GraphStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.graph_inputs import GraphForm


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
        part = keep_nodes(Graphs(x.nodes, x.edges[:, kept], x.owner, x.count, weights), touched | bare[x.owner])
        return self.body.pooled(part, scores[kept].sigmoid())

    def blocks(self) -> list[nn.Module]:
        return [nn.ModuleList([self.scorer, self.score]), *self.body.blocks()]

    def preparation(self) -> str:
        return self.body.preparation()


def best_edges(x: Graphs, scores: Tensor, ratio: float) -> Tensor:
    """(e,) whether an edge is among that share of its graph's edges, rounded up, with the best scores."""
    kept = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    kept[best_share(scores, x.owner[x.edges[0]], x.count, ratio)] = True
    return kept

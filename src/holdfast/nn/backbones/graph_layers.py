"""Layers of graph encoders: messages along the edges, and a virtual node that all nodes of a graph hear.

b graphs, v nodes of all graphs, e edges, d width
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs


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

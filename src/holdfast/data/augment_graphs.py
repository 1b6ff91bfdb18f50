"""Chance changes to training graphs: edges or nodes left out, or a connected part kept (You et al., 2020).

v nodes of all graphs, e edges; node features stay as they were in the whole graph
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.core.inputs import Graphs, keep_nodes

SHARE = 0.2  # of the edges or nodes that are left out


def drop_edge(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Every edge is left out with this chance, both ways at once (Rong et al., 2020)."""
    low, high = x.edges.amin(dim=0), x.edges.amax(dim=0)
    _, pair = torch.unique(low * len(x.nodes) + high, return_inverse=True)  # the two ways of an edge share a draw
    count = int(pair.max()) + 1 if len(pair) else 0
    stays = (torch.rand(count, generator=generator) >= share).to(pair.device)[pair]
    return Graphs(x.nodes, x.edges[:, stays], x.owner, x.count, None if x.weights is None else x.weights[stays])


def drop_node(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Every node is left out with this chance, its edges with it; each graph keeps at least one."""
    draw = torch.rand(len(x.nodes), generator=generator).to(x.owner.device)
    best = torch.zeros(x.count, device=draw.device).scatter_reduce(0, x.owner, draw, "amax")
    return keep_nodes(x, (draw >= share) | (draw == best[x.owner]))


def subgraph(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """A connected part of each graph with all but this share of its nodes, grown around a random one.

    A graph that falls into pieces keeps no more than the piece it began in.
    """
    sizes = torch.bincount(x.owner, minlength=x.count)
    wanted = ((1 - share) * sizes).ceil().long()  # (b,)
    draw = torch.rand(len(x.nodes), generator=generator).to(x.owner.device)
    best = torch.zeros(x.count, device=draw.device).scatter_reduce(0, x.owner, draw, "amax")
    kept = draw == best[x.owner]  # (v,) where each part begins
    while True:
        near = torch.zeros_like(kept)
        near[x.edges[1, kept[x.edges[0]]]] = True
        room = wanted - torch.bincount(x.owner[kept], minlength=x.count)
        added = near & ~kept & (_rank(draw, x.owner, near & ~kept) < room[x.owner])
        if not bool(added.any()):
            return keep_nodes(x, kept)
        kept = kept | added


def _rank(draw: Tensor, owner: Tensor, among: Tensor) -> Tensor:
    """(v,) the place of each node among the chosen nodes of its graph, in the order of the draws."""
    order = torch.argsort(owner + torch.where(among, draw.clamp(max=0.999), 0.9995))
    first = torch.cumsum(torch.bincount(owner), 0) - torch.bincount(owner)
    rank = torch.empty_like(owner)
    rank[order] = torch.arange(len(owner), device=owner.device) - first[owner[order]]
    return rank

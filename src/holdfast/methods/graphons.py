"""Graphons: for each class the chance of an edge between two places, nodes in the order of their degree.

b graphs, v nodes of all of them, c classes, r places, d width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.core import parallel
from holdfast.core.inputs import Graphs

_STATE = ("count", "links", "nodes", "chances", "known")


class Graphons:
    """Running means over all graphs seen, smoothed by a threshold on singular values (Chatterjee, 2015)."""

    def __init__(self, classes: int) -> None:
        self.count = torch.zeros(classes)
        self.links = torch.zeros(classes, 0, 0)  # (c, r, r) sums
        self.nodes = torch.zeros(classes, 0, 0)  # (c, r, d) sums of numbers, d 0 where nodes have none
        self.chances = torch.zeros(classes, 0, 0)  # (c, r, r) as last estimated
        self.known = torch.zeros(classes, dtype=torch.bool)  # the classes seen by then

    @property
    def places(self) -> int:
        return self.links.shape[-1]

    def see(self, x: Graphs, y: Tensor) -> None:
        """Add the graphs of all processes; the median size of the first ones is the number of places, of several

        medians the largest. Nodes beyond the last are left out.
        """
        classes, sizes = len(self.count), torch.bincount(x.owner, minlength=x.count)
        numbers = x.nodes if x.nodes.is_floating_point() else x.nodes.new_zeros(len(x.nodes), 0, dtype=torch.float32)
        if not self.places:
            r = max(2, *parallel.any_of(int(sizes.median())))
            self.links, self.nodes = torch.zeros(classes, r, r), torch.zeros(classes, r, numbers.shape[1])
        r = self.places
        rank = by_degree(x)
        inside = (rank[x.edges] < r).all(dim=0)
        a, b = rank[x.edges[:, inside]]
        label = y[x.owner[x.edges[0, inside]]]
        linked = torch.bincount((label * r + a) * r + b, minlength=classes * r * r).view(classes, r, r)
        self.links += parallel.total(linked.to("cpu", torch.float32))
        near = rank < r
        at = y[x.owner[near]] * r + rank[near]
        summed = numbers.new_zeros(classes * r, numbers.shape[1]).index_add(0, at, numbers[near].detach())
        self.nodes += parallel.total(summed.view(classes, r, -1).to("cpu", torch.float32))
        self.count += parallel.total(torch.bincount(y, minlength=classes).to("cpu", torch.float32))

    def estimate(self, threshold: float) -> None:
        """The chances of all classes seen, without the singular values below threshold * sqrt(r), within [0, 1]."""
        mean = self.links / self.count.clamp(min=1)[:, None, None]
        u, s, v = torch.linalg.svd(mean)
        large = torch.where(s < threshold * self.places**0.5, 0.0, s)
        self.chances, self.known = ((u * large[:, None]) @ v).clamp(0, 1), self.count > 0

    def features(self, label: int) -> Tensor:
        """(r, d) the mean numbers of the nodes at each place."""
        return self.nodes[label] / self.count[label]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, state[name].clone())


def by_degree(x: Graphs) -> Tensor:
    """(v,) the place of each node in its graph, from the highest degree to the lowest."""
    degree = torch.bincount(x.edges[0], minlength=len(x.nodes))
    order = torch.argsort(x.owner * (int(degree.max()) + 1) - degree, stable=True)
    sizes = torch.bincount(x.owner, minlength=x.count)
    first = sizes.cumsum(0) - sizes
    rank = torch.empty_like(x.owner)
    rank[order] = torch.arange(len(order), device=order.device) - first[x.owner[order]]
    return rank


def drawn(chances: Tensor, features: Tensor) -> Graphs:
    """One graph with these chances of edges, without the nodes that got none; one node where no edge was drawn."""
    r = len(chances)
    upper = torch.triu(torch.rand(r, r) < chances, diagonal=1)
    linked = upper | upper.T
    kept = linked.any(dim=1)
    kept[0] |= not bool(kept.any())
    edges = linked[kept][:, kept].nonzero().T
    return Graphs(features[kept], edges, torch.zeros(int(kept.sum()), dtype=torch.long), 1)

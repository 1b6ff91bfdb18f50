"""G-Mixup: graphs drawn between the graphons of two classes, with a target between theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.nn.backbones.graph_inputs import HasGraphForm
from holdfast.nn.heads import Head
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class GMixup(Method):
    """The risk on the batch and on `share` as many graphs drawn from l*W_i + (1-l)*W_j (Han et al., 2022).

    The graphons W are those of all graphs seen so far, estimated anew after 1, 2, 4, 8, ... steps. One pair of
    classes and one l are drawn a step.
    """

    saved_attributes = ("optimizer", "graphons", "steps")

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        share: float = 0.15,
        mix: Sequence[float] = (0.005, 0.01),
        threshold: float = 0.2,
    ) -> None:
        super().__init__()
        if len(mix) != 2 or not 0 <= mix[0] <= mix[1] <= 1 or share < 0:
            raise BadInput(f"mix takes two shares from low to high and share 0 or more, not {list(mix)} and {share}")
        network = model.backbone
        if not isinstance(network, HasGraphForm):
            raise BadInput("g-mixup draws graphs: use it with graphs and an encoder of graphs (--tune full)")
        if network.form.nodes == "categories" or network.form.edge_width:
            raise BadInput("g-mixup takes graphs without features of edges and categories of nodes: leave it out here")
        self.model, self.task, self.form = model, task, network.form
        self.share, self.mix, self.threshold = share, (float(mix[0]), float(mix[1])), threshold
        self.graphons, self.steps = Graphons(cast(Head, model.head).outputs), 0
        self.optimizer = optimizer(model.trainable_parameters())

    def step(self, batch: DomainBatch) -> Metrics:
        assert isinstance(batch.x, Graphs)
        self.graphons.see(batch.x, batch.y)
        self.steps += 1
        if self.steps & (self.steps - 1) == 0:  # 1, 2, 4, 8, ...
            self.graphons.estimate(self.threshold)
        b, new = len(batch.y), round(self.share * len(batch.y))
        known = self.graphons.known.nonzero()[:, 0]
        made = self._draw(new, known) if new and len(known) > 1 else None
        with tape() as side:
            if made is None:
                risk = loss = self.task.loss(self.model(batch.x), batch.y)
            else:
                graphs, (first, second), part = made
                output = self.model(inputs.cat([batch.x, inputs.to(graphs, batch.y.device)]))
                risk, mixed = self.task.loss(output[:b], batch.y), output[b:]
                soft = part * self.task.loss(mixed, batch.y.new_full((new,), first))
                soft = soft + (1 - part) * self.task.loss(mixed, batch.y.new_full((new,), second))
                loss = (b * risk + new * soft) / (b + new)
        extra = auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        return {"risk": risk.detach(), "mixed": loss.detach()}

    def _draw(self, count: int, known: Tensor) -> tuple[Graphs, tuple[int, int], float]:
        """So many graphs between two classes, how the classes are called and the share of the first."""
        first, second = known[torch.randperm(len(known))[:2]].tolist()
        low, high = self.mix
        part = low + (high - low) * float(torch.rand(()))
        chances = part * self.graphons.chances[first] + (1 - part) * self.graphons.chances[second]
        nodes = part * self.graphons.features(first) + (1 - part) * self.graphons.features(second)
        if self.form.nodes != "numbers":
            nodes = nodes[:, :0]  # degrees are counted in the graph that is drawn
        graphs = [self.form.prepare(drawn(chances, nodes), signed=True) for _ in range(count)]
        return inputs.cat(graphs), (first, second), part


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
            r = max(2, *parallel.all_max(int(sizes.median())))
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

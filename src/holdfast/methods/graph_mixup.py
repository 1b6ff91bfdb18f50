"""G-Mixup: graphs drawn between the graphons of two classes, with a target between theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import MakeOptimizer, Method, Metrics
from holdfast.methods.graphons import Graphons, drawn
from holdfast.nn.backbones.graph_inputs import Formed
from holdfast.nn.heads import Head
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class GMixup(Method):
    """The risk on the batch and on `share` as many graphs drawn from l*W_i + (1-l)*W_j (Han et al., 2022).

    The graphons W are those of all graphs seen so far, estimated anew after 1, 2, 4, 8, ... steps. One pair of
    classes and one l are drawn a step.
    """

    kept = ("optimizer", "graphons", "steps")

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: MakeOptimizer,
        share: float = 0.15,
        mix: Sequence[float] = (0.005, 0.01),
        threshold: float = 0.2,
    ) -> None:
        super().__init__()
        if len(mix) != 2 or not 0 <= mix[0] <= mix[1] <= 1 or share < 0:
            raise BadInput(f"mix takes two shares from low to high and share 0 or more, not {list(mix)} and {share}")
        network = model.backbone
        if not isinstance(network, Formed):
            raise BadInput("g-mixup draws graphs: use it with graphs and an encoder of graphs (--tune full)")
        if network.form.nodes == "categories" or network.form.edge_width:
            raise BadInput("g-mixup takes graphs without features of edges and categories of nodes: leave it out here")
        self.model, self.task, self.form = model, task, network.form
        self.share, self.mix, self.threshold = share, (float(mix[0]), float(mix[1])), threshold
        self.graphons, self.steps = Graphons(cast(Head, model.head).outputs), 0
        self.optimizer = optimizer(model.learning())

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
        self.optimizer.descend(loss if extra is None else loss + extra)
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
        graphs = [self.form.prepared(drawn(chances, nodes), signed=True) for _ in range(count)]
        return inputs.cat(graphs), (first, second), part

"""Rules that split each graph into what decides and what misleads: CIGA, and DIR.

b graphs, c classes, d width
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.tape import auxiliary, tape
from holdfast.methods.base import Method, Metrics, OptimizerFactory
from holdfast.methods.contrastive import supervised_contrast
from holdfast.nn.backbones.graph_pooling import SubgraphNetwork
from holdfast.nn.heads import Head
from holdfast.nn.model import Model
from holdfast.tasks.base import Task


class CIGA(Method):
    """risk + contrast * supervised contrast of the deciding parts (+ hinge * the rest's risk) (Chen et al., 2022).

    v1 has the first two. v2 also lets the rest say what it can of the label, where it knows less than the deciding
    part does: its risk counts for the graphs on which it is the higher of the two.
    """

    def __init__(
        self,
        model: Model,
        *,
        task: Task,
        optimizer: OptimizerFactory,
        contrast: float = 1.0,
        temperature: float = 1.0,
        hinge: float = 1.0,
    ) -> None:
        super().__init__()
        splitting(model, "ciga")
        self.model, self.task = model, task
        self.contrast, self.temperature, self.hinge = contrast, temperature, hinge
        self.rest = rest_head(model) if hinge else None
        learning = [*model.trainable_parameters(), *(self.rest.parameters() if self.rest else ())]
        self.optimizer = optimizer(learning)

    def step(self, batch: DomainBatch) -> Metrics:
        assert isinstance(batch.x, Graphs)
        with tape() as side:
            network = splitting(self.model, "ciga")
            kept, rest = network.both(batch.x) if self.rest else (network(batch.x), None)
            z = self.model.apply_neck(kept)
        output = self.model.head(z)
        risk = self.task.loss(output, batch.y)
        near = F.normalize(z, dim=-1)
        none = near[:0], batch.y[:0]
        contrast = supervised_contrast(near, batch.y, *none, self.temperature)
        loss, told = risk + self.contrast * contrast, {"risk": risk.detach(), "contrast": contrast.detach()}
        if self.rest is not None and rest is not None:
            knows_less = hinged(self.rest(rest), output, batch.y)
            loss, told["rest"] = loss + self.hinge * knows_less, knows_less.detach()
        extra = auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        return told


class DIR(Method):
    """The risk must not depend on which misleading part a graph is seen with (Wu et al., 2022).

    risk + rest's own risk + weight * (mean + variance over j of the risk with the rest of graph j), where the outputs
    of a deciding part are scaled by the sigmoid of what that rest says. The weight grows from 0 over all steps.
    """

    saved_attributes = ("optimizer", "steps")

    def __init__(self, model: Model, *, task: Task, optimizer: OptimizerFactory, weight: float = 1.0) -> None:
        super().__init__()
        splitting(model, "dir")
        self.model, self.task, self.weight, self.steps = model, task, weight, 0
        self.rest = rest_head(model)
        self.optimizer = optimizer([*model.trainable_parameters(), *self.rest.parameters()])

    def step(self, batch: DomainBatch) -> Metrics:
        assert isinstance(batch.x, Graphs)
        with tape() as side:
            kept, rest = splitting(self.model, "dir").both(batch.x)
            z = self.model.apply_neck(kept)
        output, misled = self.model.head(z), self.rest(rest.detach())
        risk, own = self.task.loss(output, batch.y), self.task.loss(misled, batch.y)
        swapped = interventions(output, misled.detach(), batch.y)  # (b,)
        grown = self.weight * min(1.0, self.steps / max(1, self.optimizer.settings.steps)) ** 1.6
        loss, extra = risk + own + grown * (swapped.mean() + swapped.var(unbiased=False)), auxiliary(side)
        self.optimizer.minimize(loss if extra is None else loss + extra)
        self.steps += 1
        return {"risk": risk.detach(), "swapped": swapped.mean().detach()}


def hinged(rest: Tensor, kept: Tensor, y: Tensor) -> Tensor:
    """The mean risk of outputs (b, c) of the rest over the graphs on which the deciding part's is lower."""
    high, low = F.cross_entropy(rest, y, reduction="none"), F.cross_entropy(kept, y, reduction="none")
    counts = (high > low).float()
    return (high * counts).sum() / counts.sum().clamp(min=1)


def interventions(output: Tensor, rest: Tensor, y: Tensor) -> Tensor:
    """(b,) the mean risk of all outputs (b, c) when every graph is seen with the rest of graph j."""
    swapped = rest.sigmoid()[:, None] * output  # (b, b, c): the rest of j, the deciding part of i
    losses = F.cross_entropy(swapped.flatten(0, 1), y.repeat(len(y)), reduction="none")
    return losses.view(len(y), len(y)).mean(dim=1)


def splitting(model: Model, rule: str) -> SubgraphNetwork:
    if not isinstance(model.backbone, SubgraphNetwork):
        raise BadInput(f"{rule} splits graphs: use it with --encoder gin-subgraph or gcn-subgraph and --tune full")
    return model.backbone


def rest_head(model: Model) -> nn.Sequential:
    """What reads the label off the misleading part; it is gone with the training."""
    width, classes = splitting(model, "a head for the rest").width, cast(Head, model.head).outputs
    made = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, classes))
    return made.to(next(model.head.parameters()).device)

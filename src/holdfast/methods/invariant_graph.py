"""CIGA and DIR: split each graph into a causal subgraph, which decides the label, and the spurious rest.

Shapes: b graphs, c classes, d width.
"""

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.settings import checked_settings, choice, log, retired_settings, setting
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics
from holdfast.methods.contrastive import supervised_contrast
from holdfast.nn.backbones.graph_pooling import SubgraphNetwork
from holdfast.nn.heads import Head


class SubgraphMethod(Method):
    """Base of methods whose encoder splits each graph into a causal subgraph and the rest."""

    def setup(self) -> None:
        if not isinstance(self.model.backbone, SubgraphNetwork):
            name = type(self).__name__.lower()
            raise BadInput(f"{name} needs an encoder that splits graphs: use --encoder gin-subgraph and --tune full")

    @property
    def network(self) -> SubgraphNetwork:
        return cast(SubgraphNetwork, self.model.backbone)

    def trained_rest_head(self) -> nn.Sequential:
        """Build the head that predicts the label from the rest in training, and train it with the model."""
        width, classes = self.network.width, cast(Head, self.model.head).outputs
        head = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, classes)).to(self.device)
        self.optimizer = self.make_optimizer([*self.model.trainable_parameters(), *head.parameters()])
        return head


class CIGA(SubgraphMethod):
    """Minimise risk + contrast * supervised contrast of causal subgraphs (+ hinge * rest's risk) (Chen et al., 2022).

    Version 1 has the first two terms. In version 2 the rest also predicts the label; its risk counts for the graphs on
    which it is higher than that of the causal subgraph.
    """

    @checked_settings
    class Settings:
        contrast: float = setting(1.0, search=choice(0.5, 1.0, 2.0, 4.0, 8.0), help="weight of the contrastive loss")
        hinge: float = setting(1.0, search=choice(0.5, 1.0, 2.0, 4.0), help="weight of the risk of the rest")

        retired = retired_settings(temperature=1.0)

    def setup(self) -> None:
        super().setup()
        self.rest = self.trained_rest_head() if self.settings.hinge else None

    def step(self, batch: DomainBatch) -> Metrics:
        assert isinstance(batch.x, Graphs)
        with tape() as side:
            causal, rest = self.network.both(batch.x) if self.rest else (self.network(batch.x), None)
            z = self.model.apply_neck(causal)
        output = self.model.head(z)
        risk = self.task.loss(output, batch.y)
        unit = F.normalize(z, dim=-1)
        contrast = supervised_contrast(unit, batch.y, unit[:0], batch.y[:0], temperature=1.0)
        loss, metrics = risk + self.settings.contrast * contrast, {"risk": risk, "contrast": contrast}
        if self.rest is not None and rest is not None:
            rest_risk = hinged(self.rest(rest), output, batch.y)
            loss, metrics["rest"] = loss + self.settings.hinge * rest_risk, rest_risk
        return self.minimize(loss, side, **metrics)


class DIR(SubgraphMethod):
    """Make the risk independent of the spurious rest that a causal subgraph is combined with (Wu et al., 2022).

    risk + risk of the rest + weight * (mean + variance over j of the risk with the rest of graph j), where the outputs
    of a causal subgraph are scaled by the sigmoid of the outputs of that rest. The weight grows from 0 over all steps.
    """

    @checked_settings
    class Settings:
        weight: float = setting(1.0, search=log(1e-2, 10.0), help="final weight of the intervention loss")

    saved_attributes = ("optimizer", "steps")

    def setup(self) -> None:
        super().setup()
        self.steps, self.rest = 0, self.trained_rest_head()

    def step(self, batch: DomainBatch) -> Metrics:
        assert isinstance(batch.x, Graphs)
        with tape() as side:
            causal, rest = self.network.both(batch.x)
            z = self.model.apply_neck(causal)
        output, spurious = self.model.head(z), self.rest(rest.detach())
        risk, rest_risk = self.task.loss(output, batch.y), self.task.loss(spurious, batch.y)
        swapped = interventions(output, spurious.detach(), batch.y)  # (b,)
        weight = self.settings.weight * min(1.0, self.steps / max(1, self.optimizer.settings.steps)) ** 1.6
        loss = risk + rest_risk + weight * (swapped.mean() + swapped.var(unbiased=False))
        metrics = self.minimize(loss, side, risk=risk, swapped=swapped.mean())
        self.steps += 1
        return metrics


def hinged(rest: Tensor, causal: Tensor, y: Tensor) -> Tensor:
    """Mean risk of the rest's outputs (b, c) over the graphs on which it exceeds that of the causal subgraph."""
    high, low = F.cross_entropy(rest, y, reduction="none"), F.cross_entropy(causal, y, reduction="none")
    counts = (high > low).float()
    return (high * counts).sum() / counts.sum().clamp(min=1)


def interventions(output: Tensor, rest: Tensor, y: Tensor) -> Tensor:
    """Return (b,) the mean risk of all outputs (b, c) when every graph is combined with the rest of graph j."""
    swapped = rest.sigmoid()[:, None] * output  # (b, b, c): the rest of j, the causal subgraph of i
    losses = F.cross_entropy(swapped.flatten(0, 1), y.repeat(len(y)), reduction="none")
    return losses.view(len(y), len(y)).mean(dim=1)

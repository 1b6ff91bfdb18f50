"""Mixup, manifold mixup and G-Mixup: combinations of examples, of features or of the graphons of two classes.

Shapes: n domains, b batch, d width or node features, c classes, r nodes of a graphon, v nodes of all graphs.
"""

from typing import Any, cast

import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs, select_nodes
from holdfast.core.seeds import use_shared_rng
from holdfast.core.settings import checked_settings, choice, log, retired_settings, setting
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics
from holdfast.nn.backbones.graph import GraphBackbone
from holdfast.nn.heads import Head
from holdfast.tasks.base import Task

LEAST_SHARE, MOST_SHARE = 0.005, 0.01  # of the first graphon in a synthetic graph
THRESHOLD = 0.2  # singular values of a graphon below this, times the root of its size, are dropped


def mixed_loss(task: Task, output: Tensor, share: float, first: Tensor, second: Tensor) -> Tensor:
    """Return share * loss for the first targets + (1 - share) * loss for the second."""
    return share * task.loss(output, first) + (1 - share) * task.loss(output, second)


class Mixup(Method):
    """Train on l*x_i + (1-l)*x_j of domains i and j, l ~ Beta(alpha, alpha) (Zhang et al., 2018; Yan et al., 2020).

    Tensors are mixed as inputs; texts and graphs, which cannot be, as features.
    """

    @checked_settings
    class Settings:
        alpha: float = setting(0.2, search=log(0.1, 10), help="parameter of the Beta distribution")

    min_domains = 2

    def step(self, batch: DomainBatch) -> Metrics:
        n, alpha = len(batch.sizes), self.settings.alpha
        with use_shared_rng():
            ring = torch.randperm(n).tolist()  # each domain is mixed with the next one in a random ring
            share = torch.distributions.Beta(alpha, alpha).sample((n,)).tolist()
        partner = {ring[i]: ring[(i + 1) % n] for i in range(n)}
        x, mixes_inputs = batch.x, isinstance(batch.x, Tensor)
        if isinstance(x, Tensor) and x.dtype == torch.uint8:
            x = x.float() / 255
        with tape() as side:
            groups = batch.split(x if mixes_inputs else self.model.features(x))
            sizes = [min(batch.sizes[i], batch.sizes[partner[i]]) for i in range(n)]
            pairs = [(groups[i][: sizes[i]], groups[partner[i]][: sizes[i]]) for i in range(n)]
            mixed = torch.cat([s * a + (1 - s) * b for s, (a, b) in zip(share, pairs, strict=True)])
            output = self.model(mixed) if mixes_inputs else self.model.head(mixed)
        ys = batch.split(batch.y)
        risks = [
            mixed_loss(self.task, o, share[i], ys[i][: sizes[i]], ys[partner[i]][: sizes[i]])
            for i, o in enumerate(output.split(sizes))
        ]
        risk = torch.stack(risks).mean()
        return self.minimize(risk, side, risk=risk)


class ManifoldMixup(Method):
    """Train on l*z_i + (1-l)*z_j of the features of any two examples, l ~ Beta(alpha, alpha) (Verma et al., 2019)."""

    @checked_settings
    class Settings:
        alpha: float = setting(1.0, search=log(0.1, 10), help="parameter of the Beta distribution")

    def step(self, batch: DomainBatch) -> Metrics:
        with use_shared_rng():
            share = float(torch.distributions.Beta(self.settings.alpha, self.settings.alpha).sample())
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        other = torch.randperm(len(z)).to(z.device)
        output = self.model.head(share * z + (1 - share) * z[other])
        risk = mixed_loss(self.task, output, share, batch.y, batch.y[other])
        return self.minimize(risk, side, risk=risk)


class GMixup(Method):
    """Minimise the risk on the batch and on synthetic graphs sampled from l*W_i + (1-l)*W_j (Han et al., 2022).

    The graphons W are estimated from all graphs seen so far, after 1, 2, 4, 8, ... steps. One pair of classes and one
    l are drawn per step.
    """

    @checked_settings
    class Settings:
        share: float = setting(
            0.15, least=0, search=choice(0.1, 0.15, 0.2, 0.25), help="synthetic graphs per real graph"
        )

        retired = retired_settings(mix=[0.005, 0.01], threshold=0.2)

    saved_attributes = ("optimizer", "graphons", "steps")

    def setup(self) -> None:
        network = self.model.backbone
        if not isinstance(network, GraphBackbone):
            raise BadInput("g-mixup needs graphs and a trained graph encoder: use --encoder gin and --tune full")
        if network.form.nodes == "categories" or network.form.edge_width:
            raise BadInput("g-mixup does not support edge features or categorical nodes: use another method")
        self.form = network.form
        self.graphons, self.steps = Graphons(cast(Head, self.model.head).outputs), 0

    def step(self, batch: DomainBatch) -> Metrics:
        assert isinstance(batch.x, Graphs)
        self.graphons.update(batch.x, batch.y)
        self.steps += 1
        if self.steps & (self.steps - 1) == 0:  # 1, 2, 4, 8, ...
            self.graphons.estimate(THRESHOLD)
        b, new = len(batch.y), round(self.settings.share * len(batch.y))
        known = self.graphons.known.nonzero()[:, 0]
        with tape() as side:
            if not new or len(known) < 2:
                risk = loss = self.task.loss(self.model(batch.x), batch.y)
            else:
                graphs, (first, second), part = self._sample(new, known)
                output = self.model(inputs.cat([batch.x, inputs.to(graphs, batch.y.device)]))
                risk, mixed = self.task.loss(output[:b], batch.y), output[b:]
                targets = (batch.y.new_full((new,), label) for label in (first, second))
                loss = (b * risk + new * mixed_loss(self.task, mixed, part, *targets)) / (b + new)
        return self.minimize(loss, side, risk=risk, mixed=loss)

    def _sample(self, count: int, known: Tensor) -> tuple[Graphs, tuple[int, int], float]:
        """Return (`count` graphs between two classes, the two classes, the share of the first)."""
        first, second = known[torch.randperm(len(known))[:2]].tolist()
        part = LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * float(torch.rand(()))
        edges = part * self.graphons.chances[first] + (1 - part) * self.graphons.chances[second]
        nodes = part * self.graphons.features(first) + (1 - part) * self.graphons.features(second)
        if self.form.nodes != "numbers":
            nodes = nodes[:, :0]  # node degrees are computed from the sampled graph
        graphs = [self.form.prepare(sample_graph(edges, nodes), signed=True) for _ in range(count)]
        return inputs.cat(graphs), (first, second), part


_STATE = ("count", "links", "nodes", "chances", "known")


class Graphons:
    """Graphon per class: the mean adjacency matrix, smoothed by a threshold on singular values (Chatterjee, 2015)."""

    def __init__(self, classes: int) -> None:
        self.count = torch.zeros(classes)
        self.links = torch.zeros(classes, 0, 0)  # (c, r, r) sums of adjacency matrices
        self.nodes = torch.zeros(classes, 0, 0)  # (c, r, d) sums of node features; d is 0 if nodes have none
        self.chances = torch.zeros(classes, 0, 0)  # (c, r, r) estimated edge probabilities
        self.known = torch.zeros(classes, dtype=torch.bool)  # classes in the estimate

    @property
    def size(self) -> int:
        return self.links.shape[-1]

    def update(self, x: Graphs, y: Tensor) -> None:
        """Add the graphs of all processes.

        The size r is the median size of the first graphs, the largest over processes; further nodes are ignored.
        """
        classes, sizes = len(self.count), torch.bincount(x.owner, minlength=x.count)
        numbers = x.nodes if x.nodes.is_floating_point() else x.nodes.new_zeros(len(x.nodes), 0, dtype=torch.float32)
        if not self.size:
            r = max(2, *parallel.all_max(int(sizes.median())))
            self.links, self.nodes = torch.zeros(classes, r, r), torch.zeros(classes, r, numbers.shape[1])
        r = self.size
        rank = degree_rank(x)
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
        """Estimate edge probabilities without the singular values below threshold * sqrt(r)."""
        mean = self.links / self.count.clamp(min=1)[:, None, None]
        u, s, v = torch.linalg.svd(mean)
        large = torch.where(s < threshold * self.size**0.5, 0.0, s)
        self.chances, self.known = ((u * large[:, None]) @ v).clamp(0, 1), self.count > 0

    def features(self, label: int) -> Tensor:
        """Return (r, d) the mean node features of a class."""
        return self.nodes[label] / self.count[label]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, state[name].clone())


def degree_rank(x: Graphs) -> Tensor:
    """Return (v,) the rank of each node in its graph by descending degree."""
    degree = torch.bincount(x.edges[0], minlength=len(x.nodes))
    order = torch.argsort(x.owner * (int(degree.max()) + 1) - degree, stable=True)
    sizes = torch.bincount(x.owner, minlength=x.count)
    first = sizes.cumsum(0) - sizes
    rank = torch.empty_like(x.owner)
    rank[order] = torch.arange(len(order), device=order.device) - first[x.owner[order]]
    return rank


def sample_graph(probabilities: Tensor, features: Tensor) -> Graphs:
    """Sample a graph from edge probabilities (r, r); isolated nodes are dropped, but at least one node remains."""
    r = len(probabilities)
    upper = torch.triu(torch.rand(r, r) < probabilities, diagonal=1)
    linked = upper | upper.T
    connected = linked.any(dim=1)
    connected[0] |= not bool(connected.any())
    return select_nodes(Graphs(features, linked.nonzero().T, torch.zeros(r, dtype=torch.long), 1), connected)

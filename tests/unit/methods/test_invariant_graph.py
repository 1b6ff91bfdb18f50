"""CIGA and DIR: their terms computed by hand, and which parameters they train."""

import pytest
import torch
import torch.nn.functional as F

from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.methods.invariant_graph import CIGA, DIR, hinged, interventions
from holdfast.nn.backbones.graph_pooling import SubgraphNetwork
from holdfast.nn.backbones.small import Features
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests.unit.methods.streams import build

Y = torch.tensor([0, 1, 1])


def test_the_hinge_counts_graphs_where_the_rest_is_worse():
    rest = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    causal = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # better, better, worse
    wanted = F.cross_entropy(rest[:2], Y[:2])
    torch.testing.assert_close(hinged(rest, causal, Y), wanted)
    assert hinged(causal, causal, Y) == 0


def test_interventions_combine_every_graph_with_every_rest():
    torch.manual_seed(0)
    output, rest = torch.randn(3, 2), torch.randn(3, 2)
    wanted = [F.cross_entropy(torch.sigmoid(one) * output, Y) for one in rest]
    torch.testing.assert_close(interventions(output, rest, Y), torch.stack(wanted))
    same = interventions(output, rest[:1].expand(3, 2), Y)
    assert float(same.var()) == pytest.approx(0, abs=1e-12)


def rule(make, **settings):
    torch.manual_seed(0)
    graphs = []
    for i in range(6):
        a = torch.arange(4 + i)
        ends = torch.stack([a, (a + 1) % (4 + i)])
        edges = torch.cat([ends, ends.flip(0)], dim=1)
        graphs.append(Graphs(torch.randn(4 + i, 3), edges, torch.zeros(4 + i, dtype=torch.long), 1))
    network = SubgraphNetwork.build(lambda: graphs, layers=2, hidden=8, dropout=0.0)
    model = Model(network, NoNeck(8), Linear(8, 2))
    return build(make, model, {"steps": 10}, **settings), DomainBatch(
        network.prepare(graphs).take(torch.arange(6)), torch.arange(6) % 2, (0,), (6,)
    )


@pytest.mark.graph
def test_without_contrast_and_hinge_ciga_is_the_risk_of_the_causal_subgraph():
    made, batch = rule(CIGA, contrast=0.0, hinge=0.0)
    assert made.rest is None
    seen = []
    made.optimizer.minimize = seen.append
    metrics = made.step(batch)
    torch.testing.assert_close(seen[0].detach(), metrics["risk"])
    assert "rest" not in metrics


@pytest.mark.graph
def test_the_hinge_trains_the_network():
    """The hinge also trains the network, because the rest depends on the chosen edges."""
    made, batch = rule(CIGA, contrast=0.0, hinge=1.0)
    causal, rest = made.model.backbone.both(batch.x)
    loss = hinged(made.rest(rest), made.model.head(causal).detach() * 100, batch.y)
    (grad,) = torch.autograd.grad(loss, made.model.backbone.score[0].weight)
    assert bool(grad.abs().sum() > 0)


@pytest.mark.graph
def test_the_weight_of_dir_grows_and_the_rest_does_not_train_the_network():
    made, batch = rule(DIR, weight=1.0)
    made.model.train()
    seen = []
    made.optimizer.minimize = seen.append
    metrics = made.step(batch)
    score = made.model.backbone.score[0].weight
    alone = torch.autograd.grad(F.cross_entropy(made.model(batch.x), batch.y), score)
    found = torch.autograd.grad(seen[0], [score, made.rest[0].weight])
    torch.testing.assert_close(found[0], alone[0])
    assert bool(found[1].abs().sum() > 0)
    first = float(seen[0].detach()) - float(metrics["risk"])  # at step 0 only the risk of the rest is added
    _, rest = made.model.backbone.both(batch.x)
    torch.testing.assert_close(first, float(F.cross_entropy(made.rest(rest), batch.y).detach()), rtol=1e-4, atol=1e-4)
    made.steps = 10
    more = made.step(batch)
    assert float(seen[1].detach()) - float(more["risk"]) > first + 0.1


@pytest.mark.parametrize("make", [CIGA, DIR])
def test_another_encoder_is_an_error(make):
    with pytest.raises(BadInput, match="--encoder gin-subgraph"):
        build(make, Model(Features(inputs=3), NoNeck(3), Linear(3, 2)))

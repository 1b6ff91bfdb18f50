"""G-Mixup: estimated graphons, sampled graphs and the training step."""

import pytest
import torch

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.methods import mixup
from holdfast.methods.mixup import GMixup, Graphons, degree_rank, sample_graph
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.small import Features
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from tests.unit.methods.streams import build


def graph(v, edges, nodes=None) -> Graphs:
    ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    nodes = torch.zeros(v, 0) if nodes is None else nodes
    return Graphs(nodes, torch.cat([ends, ends.flip(0)], dim=1), torch.zeros(v, dtype=torch.long), 1)


PATH = graph(3, [(0, 1), (1, 2)])  # node 1 has the highest degree
STAR = graph(4, [(2, 0), (2, 1), (2, 3)])
CLIQUE = graph(3, [(0, 1), (1, 2), (0, 2)])


def test_nodes_are_ranked_by_degree():
    assert degree_rank(inputs.cat([PATH, STAR])).tolist() == [1, 0, 2, 1, 2, 0, 3]


def test_a_graphon_is_the_mean_of_aligned_graphs_of_the_median_size():
    graphons = Graphons(2)
    graphons.update(inputs.cat([PATH, STAR, CLIQUE]), torch.tensor([0, 0, 1]))
    assert graphons.size == 3
    path = torch.tensor([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]])  # equal to the star without its last leaf
    graphons.estimate(0.0)
    torch.testing.assert_close(graphons.chances, torch.stack([path, 1 - torch.eye(3)]), atol=1e-5, rtol=0)
    graphons.update(CLIQUE, torch.tensor([0]))  # two in three are paths, one a clique
    graphons.estimate(0.0)
    wanted = torch.tensor([[0.0, 1, 1], [1, 0, 1 / 3], [1, 1 / 3, 0]])
    torch.testing.assert_close(graphons.chances[0], wanted, atol=1e-5, rtol=0)
    graphons.estimate(10.0)
    assert not graphons.chances.any()  # the threshold is above every singular value


def test_known_classes_and_state_round_trip():
    graphons = Graphons(3)
    nodes = torch.tensor([[1.0], [5.0], [3.0]])
    graphons.update(graph(3, [(0, 1), (1, 2)], nodes), torch.tensor([2]))
    graphons.estimate(0.2)
    assert graphons.known.tolist() == [False, False, True]
    assert graphons.features(2).tolist() == [[5.0], [1.0], [3.0]]
    other = Graphons(3)
    other.load_state_dict(graphons.state_dict())
    assert torch.equal(other.chances, graphons.chances)
    assert torch.equal(other.nodes, graphons.nodes)


def test_sampled_graphs_follow_the_edge_probabilities():
    torch.manual_seed(0)
    chances = torch.tensor([[0.9, 0.8, 0.3], [0.8, 0.9, 0.0], [0.3, 0.0, 0.9]])
    seen = torch.zeros(3, 3)
    for _ in range(2000):
        one = sample_graph(chances, torch.arange(3.0)[:, None])
        place = one.nodes[:, 0].long()
        assert one.edges.shape[1] or len(place) == 1
        seen[place[one.edges[0]], place[one.edges[1]]] += 1
    torch.testing.assert_close(seen / 2000, chances.fill_diagonal_(0.0), atol=0.04, rtol=0)


def method(graphs, **settings) -> tuple[GMixup, DomainBatch]:
    torch.manual_seed(0)
    network = GraphNetwork.build(lambda: graphs, layers=2, hidden=8, dropout=0.0)
    model = Model(network, NoNeck(8), Linear(8, 2))
    x = network.prepare(graphs).take(torch.arange(len(graphs)))
    return build(GMixup, model, {"lr": 1e-3}, **settings), DomainBatch(
        x, torch.arange(len(graphs)) % 2, (0,), (len(graphs),)
    )


@pytest.mark.graph
@pytest.mark.parametrize("numbers", [False, True])
def test_a_step_trains_on_sampled_graphs(numbers, monkeypatch):
    def featured(one):
        return Graphs(torch.rand(len(one.nodes), 3), one.edges, one.owner, 1) if numbers else one

    rule, batch = method([featured(one) for one in (PATH, CLIQUE) * 8], share=0.5)
    sizes = []
    whole = rule.model.forward
    monkeypatch.setattr(rule.model, "forward", lambda x: sizes.append(x.count) or whole(x))
    found = rule.step(batch)
    assert sizes == [24]
    assert found["risk"] != found["mixed"]


@pytest.mark.graph
def test_the_target_is_between_the_two_classes(monkeypatch):
    rule, batch = method([PATH, CLIQUE] * 8, share=0.5)
    monkeypatch.setattr(mixup, "LEAST_SHARE", 0.25)
    monkeypatch.setattr(mixup, "MOST_SHARE", 0.25)
    logits = torch.zeros(24, 2, requires_grad=True)
    monkeypatch.setattr(rule.model, "forward", lambda x: logits)
    losses = []
    monkeypatch.setattr(rule.optimizer, "minimize", losses.append)
    rule.step(batch)
    (grad,) = torch.autograd.grad(losses[0], logits)
    of_sampled = grad[16:] * 24  # softmax - target, per sampled graph
    target = 0.5 - of_sampled[0]
    assert sorted(target.tolist()) == pytest.approx([0.25, 0.75])
    torch.testing.assert_close(of_sampled, of_sampled[:1].expand(8, 2))


@pytest.mark.graph
def test_unsupported_graphs_and_encoders_are_errors():
    tagged = graph(3, [(0, 1), (1, 2)], torch.tensor([[0], [1], [2]]))
    with pytest.raises(BadInput, match=r"g-mixup.*edge features"):
        method([tagged, tagged])
    with pytest.raises(BadInput, match=r"g-mixup.*--encoder"):
        build(GMixup, Model(Features(inputs=3), NoNeck(3), Linear(3, 2)))

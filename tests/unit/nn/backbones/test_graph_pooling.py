"""Clusters of nodes and subgraphs: softmax, adjacency, best edges per graph, and gates on messages."""

import pytest
import torch

from holdfast.core import inputs
from holdfast.core.inputs import Graphs
from holdfast.nn.backbones.graph import GraphNetwork
from holdfast.nn.backbones.graph_pooling import (
    Clusters,
    SubgraphNetwork,
    _cluster_adjacency,
    _cluster_softmax,
    best_edges,
)

pytestmark = pytest.mark.graph


def two_graphs(nodes):
    """Build a path of three nodes and a pair, with edges in both directions."""
    ends = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    return Graphs(nodes, ends, torch.tensor([0, 0, 0, 1, 1]), 2)


def test_cluster_softmax():
    score, centre = torch.tensor([1.0, 2.0, 500.0, -3.0]), torch.tensor([0, 0, 1, 0])
    result = _cluster_softmax(score, centre, 2)
    assert torch.allclose(result[[0, 1, 3]], score[[0, 1, 3]].softmax(0))
    assert result[2] == 1


def test_cluster_adjacency_equals_the_dense_product():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 1, 2, 0, 1, 2], [1, 0, 2, 1, 0, 1, 2]])
    share, stats = torch.rand(7, requires_grad=True), torch.tensor([2, 0])
    dense = torch.zeros(3, 3).index_put((edges[0], edges[1]), share)[:, stats]
    links = torch.zeros(3, 3).index_put((edges[0], edges[1]), torch.ones(7))
    expected = dense.T @ links @ dense
    result = _cluster_adjacency(edges, share, stats, 3).to_dense()
    assert torch.allclose(result, expected, atol=1e-6)
    weight = torch.rand(2, 2)
    (mine,) = torch.autograd.grad((result * weight).sum(), share)
    (theirs,) = torch.autograd.grad((expected * weight).sum(), share)
    assert torch.allclose(mine, theirs, atol=1e-6)


def test_graphs_are_independent_and_all_parameters_train():
    torch.manual_seed(0)
    clusters = Clusters(4, 0.5, 0.0)
    result, weights = clusters(two_graphs(torch.randn(5, 4)))
    assert result.owner.tolist() == [0, 0, 1]
    assert (result.owner[result.edges[0]] == result.owner[result.edges[1]]).all()
    assert (result.edges[0] != result.edges[1]).all()
    (result.nodes.square().sum() + weights.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in clusters.parameters() if p.numel() > 1)


def ring(v: int, *, edges: int = 0, seed: int = 0) -> Graphs:
    rng = torch.Generator().manual_seed(seed)
    a = torch.arange(v)
    ends = torch.stack([a, (a + 1) % v])
    both = torch.cat([ends, ends.flip(0)], dim=1)
    weights = torch.rand(2 * v, edges, generator=rng) if edges else None
    return Graphs(torch.randn(v, 3, generator=rng), both, torch.zeros(v, dtype=torch.long), 1, weights)


def test_best_edges_per_graph():
    x = inputs.cat([ring(3), ring(2)])  # 6 and 4 edges
    scores = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.8, 0.3, -5.0, -1.0, -2.0, -3.0])
    stats = best_edges(x, scores, 0.5)
    assert stats.nonzero()[:, 0].tolist() == [1, 2, 4, 7, 8]
    assert best_edges(x, scores, 0.01).sum() == 2  # at least one per graph


@pytest.mark.parametrize(("kind", "edges"), [("gcn", 0), ("gcn", 1), ("gcn", 2), ("gin", 0), ("gin", 2)])
def test_gate_one_is_identity_and_zero_removes_the_edge(kind, edges):
    torch.manual_seed(0)
    graph = ring(6, edges=edges)
    network = GraphNetwork.build(lambda: [graph], kind=kind, layers=2, hidden=8).eval()
    x = network.prepare([graph]).take(torch.arange(1))
    count = x.edges.shape[1]
    torch.testing.assert_close(network.pooled(x, torch.ones(count)), network(x))
    bare = Graphs(x.nodes, x.edges[:, :0], x.owner, 1, None if x.weights is None else x.weights[:0])
    if edges < 2 or kind == "gin":  # with edge features, GCN divides by the degree before the gate
        torch.testing.assert_close(network.pooled(x, torch.zeros(count)), network(bare))


def built(kind="gin", **options) -> tuple[SubgraphNetwork, Graphs]:
    torch.manual_seed(0)
    graphs = [ring(v, seed=v) for v in (5, 8, 12)]
    network = SubgraphNetwork.build(lambda: graphs, kind=kind, layers=2, hidden=8, **options).eval()
    return network, network.prepare(graphs).take(torch.arange(3))


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_both_encodes_each_part_with_the_body(kind):
    network, x = built(kind, ratio=0.25)
    stats, rest = network.both(x)
    assert torch.equal(network(x), stats)
    one = inputs.take(x, [1])
    scores = network.scores(one)
    mask = best_edges(one, scores, 0.25)
    for own, gate, result in ((mask, scores, stats), (~mask, -scores, rest)):
        ends = one.edges[:, own]
        used = ends.unique()
        place = torch.full((len(one.nodes),), -1)
        place[used] = torch.arange(len(used))
        part = Graphs(one.nodes[used], place[ends], torch.zeros(len(used), dtype=torch.long), 1)
        torch.testing.assert_close(network.body.pooled(part, gate[own].sigmoid())[0], result[1], rtol=1e-4, atol=1e-5)


def test_scores_receive_a_gradient_and_edgeless_graphs_work():
    network, x = built()
    network.both(x)[0].pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.score.parameters())
    lonely = Graphs(torch.randn(2, 3), torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, dtype=torch.long), 1)
    x = network.prepare([lonely, ring(4)]).take(torch.arange(2))
    for part in network.both(x):
        assert torch.isfinite(part).all()

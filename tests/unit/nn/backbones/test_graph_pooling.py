"""Clusters of nodes: softmax, adjacency and independence of graphs."""

import pytest
import torch

from holdfast.core.inputs import Graphs
from holdfast.nn.backbones.graph_pooling import Clusters, _cluster_adjacency, _cluster_softmax

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

"""Clusters of nodes: chosen, weighed and joined as by hand."""

import pytest
import torch

from holdfast.core.inputs import Graphs
from holdfast.nn.backbones.graph_pooling import Clusters, _cluster_adjacency, _cluster_softmax

pytestmark = pytest.mark.graph


def two_graphs(nodes):
    """A path of three nodes and a pair, edges both ways."""
    ends = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    return Graphs(nodes, ends, torch.tensor([0, 0, 0, 1, 1]), 2)


def test_cluster_softmax_of_a_cluster_are_a_softmax():
    score, centre = torch.tensor([1.0, 2.0, 500.0, -3.0]), torch.tensor([0, 0, 1, 0])
    found = _cluster_softmax(score, centre, 2)
    assert torch.allclose(found[[0, 1, 3]], score[[0, 1, 3]].softmax(0))
    assert found[2] == 1


def test_clusters_are_cluster_adjacency_as_the_dense_product_says_and_so_is_the_gradient():
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 1, 2, 0, 1, 2], [1, 0, 2, 1, 0, 1, 2]])
    share, kept = torch.rand(7, requires_grad=True), torch.tensor([2, 0])
    dense = torch.zeros(3, 3).index_put((edges[0], edges[1]), share)[:, kept]
    links = torch.zeros(3, 3).index_put((edges[0], edges[1]), torch.ones(7))
    wanted = dense.T @ links @ dense
    found = _cluster_adjacency(edges, share, kept, 3).to_dense()
    assert torch.allclose(found, wanted, atol=1e-6)
    weight = torch.rand(2, 2)
    (mine,) = torch.autograd.grad((found * weight).sum(), share)
    (theirs,) = torch.autograd.grad((wanted * weight).sum(), share)
    assert torch.allclose(mine, theirs, atol=1e-6)


def test_graphs_stay_apart_and_everything_learns():
    torch.manual_seed(0)
    clusters = Clusters(4, 0.5, 0.0)
    found, weights = clusters(two_graphs(torch.randn(5, 4)))
    assert found.owner.tolist() == [0, 0, 1]
    assert (found.owner[found.edges[0]] == found.owner[found.edges[1]]).all()
    assert (found.edges[0] != found.edges[1]).all()
    (found.nodes.square().sum() + weights.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in clusters.parameters() if p.numel() > 1)

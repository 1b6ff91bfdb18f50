"""Graph augmentations return subgraphs of each graph, drawn at random."""

import pytest
import torch

from holdfast.core import inputs
from holdfast.core.inputs import Graphs
from holdfast.data.augment import drop_edge, drop_node, subgraph

CHANGES = [drop_edge, drop_node, subgraph]


def ring(v: int, name: int) -> Graphs:
    """A ring whose nodes carry the graph and node index and whose edges carry both ends."""
    a = torch.arange(v)
    ends = torch.stack([a, (a + 1) % v])
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    nodes = torch.stack([torch.full((v,), name), a], dim=1).float()
    return Graphs(nodes, edges, torch.zeros(v, dtype=torch.long), 1, nodes[edges[0]] * 100 + nodes[edges[1]])


@pytest.fixture
def x():
    return inputs.cat([ring(40, 1), ring(1, 2), ring(3, 3), ring(60, 4)])


def changed(change, x, seed=0, **how):
    return change(x, torch.Generator().manual_seed(seed), **how)


@pytest.mark.parametrize("change", CHANGES)
def test_result_is_a_subgraph_of_each_graph(change, x):
    found = changed(change, x)
    assert found.count == 4
    assert len(found.nodes) + found.edges.shape[1] < len(x.nodes) + x.edges.shape[1]
    assert torch.bincount(found.owner, minlength=4).min() >= 1
    assert torch.equal(found.nodes[:, 0], found.owner + 1.0)
    assert found.weights is not None
    ends = found.nodes[found.edges[0]] * 100 + found.nodes[found.edges[1]]
    assert torch.equal(found.weights, ends)  # every edge is still between its own nodes
    forth = {tuple(pair) for pair in found.edges.T.tolist()}
    assert forth == {(b, a) for a, b in forth}  # both ways or none


@pytest.mark.parametrize("change", CHANGES)
def test_result_is_random_and_determined_by_the_seed(change, x):
    first, again, other = (changed(change, x, seed) for seed in (0, 0, 1))
    assert torch.equal(first.edges, again.edges)
    assert first.edges.shape != other.edges.shape or not torch.equal(first.nodes[first.edges], other.nodes[other.edges])


@pytest.mark.parametrize("change", CHANGES)
def test_share_of_zero_changes_nothing(change, x):
    found = changed(change, x, share=0.0)
    assert torch.equal(found.nodes, x.nodes)
    assert torch.equal(found.edges, x.edges)


@pytest.mark.parametrize(("change", "left"), [(drop_edge, 0.7), (drop_node, 0.7)])
def test_dropped_fraction_is_close_to_the_share(change, left):
    large = inputs.cat([ring(500, 1)] * 8)
    found = changed(change, large, share=0.3)
    size = found.edges.shape[1] / large.edges.shape[1] if change is drop_edge else len(found.nodes) / len(large.nodes)
    assert size == pytest.approx(left, abs=0.03)


def test_subgraph_is_connected_and_has_the_requested_size():
    x = inputs.cat([ring(40, 1), ring(60, 2)])
    found = changed(subgraph, x, share=0.25)
    assert torch.bincount(found.owner).tolist() == [30, 45]
    # a connected part of a ring is a path with one edge less than nodes, counted in both directions
    assert torch.bincount(found.owner[found.edges[0]]).tolist() == [2 * 29, 2 * 44]


def test_subgraph_of_a_disconnected_graph_stays_in_one_component():
    lonely = Graphs(torch.zeros(5, 1), torch.zeros(2, 0, dtype=torch.long), torch.zeros(5, dtype=torch.long), 1)
    assert len(changed(subgraph, lonely).nodes) == 1

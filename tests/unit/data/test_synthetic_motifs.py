"""Motif graphs: each contains the motif of its class, and node features encode degrees."""

import numpy as np
import pytest
import torch

from holdfast.data.synthetic import DEGREES, MOTIFS, motif_graph


def pairs(graph) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in graph.edges.T}


def test_motifs_are_eight_different_graphs_of_six_nodes():
    degrees = set()
    for edges in MOTIFS:
        assert {node for edge in edges for node in edge} == set(range(6))
        degrees.add(tuple(sorted(np.bincount(np.ravel(edges), minlength=6))))
    assert len(degrees) == 8  # distinguished by their degrees


@pytest.mark.parametrize("label", range(8))
def test_motif_is_attached_to_a_tree(label):
    graph = motif_graph(label, 1, np.random.default_rng(label), noise=0.0)
    tree, found = len(graph.nodes) - 6, pairs(graph)
    assert found == {(b, a) for a, b in found}  # every edge both ways, none twice
    assert graph.edges.shape[1] == len(found)
    inner = {(a - tree, b - tree) for a, b in found if tree <= a < b}
    assert inner == set(MOTIFS[label])
    assert sum(a < b < tree for a, b in found) == tree - 1
    assert sum(a < tree <= b for a, b in found) == 1


def test_features_are_degrees_and_noise_adds_edges():
    plain, noisy = (motif_graph(0, 2, np.random.default_rng(3), noise=n) for n in (0.0, 20.0))
    assert noisy.edges.shape[1] > plain.edges.shape[1]
    for graph in (plain, noisy):
        degree = torch.bincount(graph.edges[0], minlength=len(graph.nodes)).clamp(max=DEGREES)
        assert torch.equal(graph.nodes.argmax(dim=1) + 1, degree)
        assert torch.equal(graph.nodes.sum(dim=1), torch.ones(len(degree)))

"""Synthetic data sets and motif graphs: learnable within a domain, with the documented shift between domains."""

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.synthetic import DEGREES, MOTIFS, WORLDS, motif_graph, world


def features(data: Dataset) -> np.ndarray:
    x = data.raw.take(np.arange(len(data)))
    if data.raw.kind == "text":
        return CountVectorizer().fit_transform(x).toarray()
    if data.raw.kind == "graph":
        return torch.stack([g.nodes.mean(0) for g in x]).numpy()
    return x.flatten(1).numpy() / (128 if data.raw.kind == "image" else 1)


def accuracy(x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    return float(LogisticRegression(max_iter=500).fit(x[train], y[train]).score(x[test], y[test]))


def inside(data: Dataset) -> float:
    """Mean accuracy of a linear classifier trained and tested in the same domain."""
    x, scores = features(data), []
    for name in data.domains:
        rows = data.rows_of(name)
        cut = len(rows) * 3 // 4
        scores.append(accuracy(x, data.y, rows[:cut], rows[cut:]))
    return float(np.mean(scores))


def across(data: Dataset) -> float:
    """Accuracy on the last domain of one trained on the others."""
    last = data.domain == len(data.domains) - 1
    return accuracy(features(data), data.y, np.flatnonzero(~last), np.flatnonzero(last))


@pytest.mark.parametrize(("kind", "shift"), WORLDS)
@pytest.mark.parametrize("classes", [2, 3])
def test_labels_are_learnable(kind, shift, classes):
    data = world(kind, shift, classes=classes, domains=3)
    assert (data.raw.kind, len(data), len(data.domains)) == (kind, 600, 3)
    assert data.checked().classes == tuple(str(k) for k in range(classes))
    assert inside(data) > 0.9


@pytest.mark.parametrize(("kind", "shift"), WORLDS)
def test_seed_determines_the_data(kind, shift):
    made = [world(kind, shift, size=20, seed=seed).fingerprint for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("kind", ["vector", "image", "graph"])
def test_rotation_moves_the_boundary(kind):
    assert across(world(kind, "none")) > 0.95
    assert across(world(kind, "rotation")) < 0.85


@pytest.mark.parametrize("kind", ["vector", "image", "text", "graph"])
def test_spurious_cue_fails_in_the_last_domain(kind):
    data = world(kind, "spurious")
    assert across(data) < inside(data) - 0.08


def test_invariant_features_of_a_spurious_world_generalise():
    data = world("vector", "spurious", size=400)
    x, last = features(data), data.domain == 3
    rows = np.flatnonzero(~last), np.flatnonzero(last)
    assert accuracy(x[:, :2], data.y, *rows) > 0.93
    assert accuracy(x[:, 2:4], data.y, *rows) < 0.2


def test_half_of_the_vocabulary_is_new_per_domain():
    data = world("text", "vocabulary", size=400)
    message = [{w for t in data.raw.take(data.rows_of(d)) for w in t.split()} for d in data.domains]
    for i in range(1, 4):
        new = message[i] - set().union(*(message[j] for j in range(4) if j != i))
        assert len(new) == 8  # four new words for each of two classes
    plain = world("text", "none", size=400)
    same = [{w for t in plain.raw.take(plain.rows_of(d)) for w in t.split()} for d in plain.domains]
    assert same[0] == same[1] == same[2] == same[3]
    assert across(data) < across(plain) - 0.01


@pytest.mark.parametrize("kind", ["vector", "image", "text", "graph"])
def test_label_shift_moves_only_the_proportions(kind):
    data = world(kind, "label", size=400)
    share = [data.y[data.rows_of(d)].mean() for d in data.domains]
    assert share == sorted(share)
    assert share[0] < 0.3
    assert share[-1] > 0.7
    even = world(kind, "none", size=400)
    assert all(0.4 < even.y[even.rows_of(d)].mean() < 0.6 for d in even.domains)


def test_size_shift_grows_graphs():
    data = world("graph", "size", classes=3)
    sizes = [[len(g.nodes) for g in data.raw.take(data.rows_of(d))] for d in data.domains]
    assert [(min(s), max(s)) for s in sizes] == [(10, 14), (22, 26), (34, 38), (46, 50)]
    by_class = [np.asarray(sizes[0])[data.y[data.rows_of("domain-0")] == k].mean() for k in range(3)]
    assert np.ptp(by_class) < 0.7  # the class does not determine the size
    assert across(data) < inside(data) - 0.1


def test_invalid_worlds_are_rejected():
    with pytest.raises(BadInput, match=r"no text world with the shift 'rotation'.*text: none, spurious"):
        world("text", "rotation")
    with pytest.raises(BadInput, match="vector: none, rotation, spurious, label"):
        world("vector", "vocabulary")
    with pytest.raises(BadInput, match="no sound world"):
        world("sound", "none")
    for wrong in ({"domains": 0}, {"classes": 1}, {"classes": 3, "size": 2}, {"noise": -1.0}):
        with pytest.raises(BadInput, match="a world needs"):
            world(**wrong)


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

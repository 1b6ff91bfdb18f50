"""Graph shifts: published percentiles, environments of equal size, independent of labels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.data.dataset import Dataset
from holdfast.data.raw import GraphList
from holdfast.data.shifts import apply_shift, measure
from holdfast.data.synthetic import world


def graph(v: int, edges: int) -> Graphs:
    ends = torch.zeros(2, edges, dtype=torch.long)
    return Graphs(torch.zeros(v, 0), ends, torch.zeros(v, dtype=torch.long), 1)


def pool(graphs) -> Dataset:
    n = len(graphs)
    return Dataset("pool", GraphList(graphs), np.arange(n) % 2, ("0", "1"), np.zeros(n, dtype=np.int64), ("pool",))


@pytest.fixture
def sizes():
    """A hundred graphs of 1 to 100 nodes in random order."""
    order = np.random.default_rng(0).permutation(100) + 1
    return pool([graph(int(v), 4) for v in order]), order


def values(found, name, what="size"):
    return measure(what, found.raw.take(found.rows_of(name)))


def test_size(sizes):
    found = apply_shift(sizes[0], "size")
    assert found.domains == ("small-1", "small-2", "large")
    assert sorted(values(found, "small-1")) == list(range(1, 26))
    assert sorted(values(found, "small-2")) == list(range(26, 51))
    assert sorted(values(found, "large")) == list(range(91, 101))
    assert [set(found.split[found.rows_of(name)].tolist()) for name in found.domains] == [{0}, {0}, {2}]
    assert found.notes[0].startswith("40 graphs")
    labels = dict(zip(sizes[1].tolist(), (np.arange(100) % 2).tolist(), strict=True))
    seen = measure("size", found.raw.take(np.arange(len(found)))).astype(int)
    assert found.y.tolist() == [labels[v] for v in seen]  # every graph has kept its label


def test_degree_and_reversed_degree():
    data = pool([graph(10, e) for e in range(1, 103)])  # those of 1 and 2 edges are left out
    found = apply_shift(data, "degree")
    assert found.domains == ("low-1", "low-2", "middle", "high")
    tens = [sorted((values(found, name, "degree") * 10).round().astype(int)) for name in found.domains]
    assert tens == [list(range(3, 28)), list(range(28, 53)), list(range(53, 83)), list(range(83, 103))]
    assert [set(found.split[found.rows_of(name)].tolist()) for name in found.domains] == [{0}, {0}, {1}, {2}]
    turned = apply_shift(data, "degree-reversed")
    assert turned.domains == ("high-1", "high-2", "middle", "low")
    tens = [sorted((values(turned, name, "degree") * 10).round().astype(int)) for name in turned.domains]
    assert tens == [list(range(53, 78)), list(range(78, 103)), list(range(23, 53)), list(range(3, 23))]


def test_labels_do_not_affect_the_split(sizes):
    data, _ = sizes
    other = apply_shift(replace(data, y=1 - data.y), "size")
    assert np.array_equal(apply_shift(data, "size").domain, other.domain)


def test_invalid_shifts_are_rejected(sizes):
    data, _ = sizes
    with pytest.raises(BadInput, match="unknown shift 'sise': did you mean 'size'"):
        apply_shift(data, "sise")
    with pytest.raises(BadInput, match="vector-none holds vectors"):
        apply_shift(world("vector", "none"), "size")
    with pytest.raises(BadInput, match="no graphs for the domain 'large'"):
        apply_shift(pool([graph(5, 4)] * 10), "size")
    with pytest.raises(BadInput, match="0 training graphs"):
        apply_shift(pool([graph(5, 1)] * 10), "degree")

"""Splitting of texts into words, vocabularies, and the growable word table."""

import copy

import numpy as np
import pytest
import torch

from holdfast.nn.backbones.words import PAD, UNKNOWN, WordTable, split_words, vocabulary


def test_words() -> None:
    assert split_words("Don't pay 1,299.50 for IT_2!") == ["don't", "pay", "1,299.50", "for", "it_2", "!"]
    assert split_words(" \n") == []
    assert split_words("Ünïcode 東京") == ["ünïcode", "東京"]


def test_vocabulary_counts_and_limits() -> None:
    assert vocabulary(["b a a", ("c b", "a")], min_count=1, max_words=10) == ["a", "b", "c"]
    assert vocabulary(["b a a", "c b a"], min_count=2, max_words=10) == ["a", "b"]
    assert vocabulary(["b a a", "c b a"], min_count=1, max_words=1) == ["a"]


def table(words=("a", "b", "c")) -> WordTable:
    torch.manual_seed(0)
    return WordTable(words, 4, spread=1.0)


def test_ids_and_vectors():
    network = table()
    assert network.ids(["c", "zebra", "a"]) == [5, UNKNOWN, 3]
    result = network(torch.tensor([[5, PAD]]))
    assert torch.equal(result[0, 0], network.tables[0][5])
    assert not result[0, 1].any()
    result.sum().backward()
    assert network.tables[0].grad.sum(1).tolist() == [0, 0, 0, 0, 0, 4]


def test_growth_preserves_old_words():
    network = table()
    ids = torch.tensor([[3, 4, UNKNOWN, PAD]])
    before, first = network(ids), network.tables[0]
    (new,) = network.grow(["d", "a", "d", "e"])
    assert new.shape == (2, 4)
    (later,) = network.grow(["f"])
    assert network.grow(["a", "f"]) == []
    assert network.tables[0] is first
    assert torch.equal(network(ids), before)
    assert network.ids(["a", "d", "e", "f"]) == [3, 6, 7, 8]
    result = network(torch.tensor([[6, 8, 3]]))
    assert torch.equal(result[0], torch.stack([new[0], later[0], first[3]]))
    result.sum().backward()
    assert [p.grad.sum(1).nonzero().flatten().tolist() for p in (first, new, later)] == [[3], [0], [0]]
    network.set_vectors({"e": np.ones(4, dtype=np.float32), "b": np.full(4, 2, dtype=np.float32)})
    assert network(torch.tensor([7, 4])).tolist() == [[1] * 4, [2] * 4]


def test_state_contains_later_words():
    network = table()
    network.grow(["d", "é\n"])
    network.grow(["f"])
    fresh = table().requires_grad_(False)
    fresh.load_state_dict(network.state_dict())
    assert fresh.index == network.index
    assert not any(p.requires_grad for p in fresh.parameters())
    ids = torch.arange(9)
    assert torch.equal(fresh(ids), network(ids))
    other = copy.deepcopy(fresh)
    other.grow(["g"])
    assert "g" not in fresh.index
    odd = table()
    odd.grow(["x", "y"])
    with pytest.raises(RuntimeError, match="other words"):
        odd.load_state_dict(network.state_dict())

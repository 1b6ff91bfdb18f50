"""A table of words that grows: old words keep number and vector, and its state says which words came later."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from holdfast.nn.backbones.words import PAD, UNKNOWN, WordTable


def table(words=("a", "b", "c")) -> WordTable:
    torch.manual_seed(0)
    return WordTable(words, 4, spread=1.0)


def test_numbers_and_vectors():
    made = table()
    assert made.ids(["c", "zebra", "a"]) == [5, UNKNOWN, 3]
    found = made(torch.tensor([[5, PAD]]))
    assert torch.equal(found[0, 0], made.tables[0][5])
    assert not found[0, 1].any()
    found.sum().backward()
    assert made.tables[0].grad.sum(1).tolist() == [0, 0, 0, 0, 0, 4]


def test_growth_keeps_what_was_there():
    made = table()
    ids = torch.tensor([[3, 4, UNKNOWN, PAD]])
    before, first = made(ids), made.tables[0]
    (new,) = made.grow(["d", "a", "d", "e"])
    assert new.shape == (2, 4)
    (later,) = made.grow(["f"])
    assert made.grow(["a", "f"]) == []
    assert made.tables[0] is first
    assert torch.equal(made(ids), before)
    assert made.ids(["a", "d", "e", "f"]) == [3, 6, 7, 8]
    found = made(torch.tensor([[6, 8, 3]]))
    assert torch.equal(found[0], torch.stack([new[0], later[0], first[3]]))
    found.sum().backward()
    assert [p.grad.sum(1).nonzero().flatten().tolist() for p in (first, new, later)] == [[3], [0], [0]]
    made.set_vectors({"e": np.ones(4, dtype=np.float32), "b": np.full(4, 2, dtype=np.float32)})
    assert made(torch.tensor([7, 4])).tolist() == [[1] * 4, [2] * 4]


def test_its_state_brings_the_later_words():
    made = table()
    made.grow(["d", "é\n"])
    made.grow(["f"])
    fresh = table().requires_grad_(False)
    fresh.load_state_dict(made.state_dict())
    assert fresh.index == made.index
    assert not any(p.requires_grad for p in fresh.parameters())
    ids = torch.arange(9)
    assert torch.equal(fresh(ids), made(ids))
    other = copy.deepcopy(fresh)
    other.grow(["g"])
    assert "g" not in fresh.index
    odd = table()
    odd.grow(["x", "y"])
    with pytest.raises(RuntimeError, match="other words"):
        odd.load_state_dict(made.state_dict())

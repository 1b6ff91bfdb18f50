"""Pairs of texts: concatenation, splitting, and the pair layer."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.nn.backbones.memory_rnn import PairLayer, split_pairs, token_store


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_pairs_are_concatenated_and_split():
    pairs = [("ab", "cde"), ("f", "g"), ("hijk", "l")]
    x = token_store(pairs, ids, pairs=True).take(torch.arange(3))
    assert isinstance(x, Tokens)
    words, lengths = split_pairs(x)
    assert lengths.tolist() == [2, 1, 4, 3, 1, 1]
    result = ["".join(map(chr, row[:length])) for row, length in zip(words.tolist(), lengths.tolist(), strict=True)]
    assert result == ["ab", "f", "hijk", "cde", "g", "l"]
    single = token_store(["ab", "c"], ids, pairs=False).take(torch.arange(2))
    assert (single.types, single.mask.tolist()) == (None, [[True, True], [True, False]])


def test_mixed_texts_and_pairs_raise():
    with pytest.raises(BadInput, match="built for single texts"):
        token_store(["a", ("a", "b")], ids, pairs=False)
    with pytest.raises(BadInput, match="built for pairs"):
        token_store([("a", "b"), "a"], ids, pairs=True)


def test_widened_layer_ignores_zero_entries():
    torch.manual_seed(0)
    layer = PairLayer(3, 5, dropout=0.0)
    u, v = torch.randn(2, 4, 3)
    before = layer(torch.cat([u, v]))
    assert_close(
        before, torch.cat([u, v, u * v, (u - v).abs()], -1).matmul(layer[0].weight.T).add(layer[0].bias).relu()
    )
    at = torch.tensor([0, 2, 4])
    layer.widen(at, 6)
    wide = torch.zeros(8, 6).index_copy(1, at, torch.cat([u, v]))
    assert layer[0].weight.shape == (5, 24)
    assert_close(layer(wide), before)
    wide[:, 1] = 1
    assert not torch.allclose(layer(wide), before)

"""BiLSTM: pairs, padding and batches."""

import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.rnn import BiLSTM
from holdfast.nn.backbones.words import PAD, SEPARATOR, UNKNOWN

TEXTS = ["The food was good, the wine 3.5!", "Bad film.", "don't go, the film was bad", "", "good good good"]


def net(**options) -> BiLSTM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BiLSTM.build(lambda: TEXTS, embedding=6, hidden=4, min_count=1, **options)


def test_empty_vocabulary_raises() -> None:
    with pytest.raises(BadInput, match="min_count"):
        BiLSTM.build(lambda: ["one two", "three"], min_count=2)


def test_prepare_pairs_unknown_and_empty() -> None:
    backbone = net(length=7)
    words = backbone.settings["words"]
    rows = torch.arange(4)
    pairs = [("good film", "bad"), ("", "zebra"), ("good " * 9, "bad " * 9), ("good " * 9, "bad")]
    result = backbone.prepare(pairs).take(rows)
    good, bad, film = (words.index(w) + 3 for w in ("good", "bad", "film"))
    assert result.ids[0].tolist() == [good, film, SEPARATOR, bad, PAD, PAD, PAD]
    assert result.ids[1].tolist() == [UNKNOWN, SEPARATOR, UNKNOWN, PAD, PAD, PAD, PAD]
    assert result.ids[2].tolist() == [good] * 3 + [SEPARATOR] + [bad] * 3
    assert result.ids[3].tolist() == [good] * 5 + [SEPARATOR, bad]
    assert result.types is None
    single = backbone.prepare(["", "good " * 20]).take(torch.arange(2))
    assert single.mask.sum(1).tolist() == [1, 7]
    assert len(backbone.prepare([])) == 0

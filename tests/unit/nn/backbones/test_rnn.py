"""BiLSTM: pairs, padding and batches."""

from __future__ import annotations

import json

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens, cat
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


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_features_do_not_depend_on_batch_and_padding(pooling: str) -> None:
    backbone = net(pooling=pooling).eval()
    store = backbone.prepare(TEXTS)
    whole = backbone(store.take(torch.arange(len(TEXTS))))
    assert whole.shape == (len(TEXTS), 8)
    for i in range(len(TEXTS)):
        alone = store.take(torch.tensor([i]))
        wide = cat([alone, Tokens(torch.full((1, 30), 5), torch.ones(1, 30, dtype=torch.bool))])
        junk = Tokens(wide.ids.masked_fill(~wide.mask, 7), wide.mask)
        assert_close(backbone(alone)[0], whole[i], atol=1e-5, rtol=1e-5)
        assert_close(backbone(wide)[0], whole[i], atol=1e-5, rtol=1e-5)
        assert_close(backbone(junk)[0], whole[i], atol=1e-5, rtol=1e-5)
        padded = Tokens(torch.nn.functional.pad(alone.ids, (0, 9)), torch.nn.functional.pad(alone.mask, (0, 9)))
        assert_close(backbone(padded)[0], whole[i], atol=1e-5, rtol=1e-5)


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


def test_round_trip(tmp_path) -> None:
    backbone = net().eval()
    again = BiLSTM.load(tmp_path, json.loads(json.dumps(backbone.save(tmp_path)))).eval()
    again.load_state_dict(backbone.state_dict())
    rows = torch.arange(len(TEXTS))
    assert torch.equal(backbone(backbone.prepare(TEXTS).take(rows)), again(again.prepare(TEXTS).take(rows)))
    assert backbone.preparation_key() == again.preparation_key() == net(pooling="mean").preparation_key()
    assert backbone.preparation_key() != net(length=9).preparation_key()


def test_every_parameter_receives_a_gradient() -> None:
    backbone = net()
    backbone(backbone.prepare(TEXTS).take(torch.arange(5))).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())
    assert {id(p) for b in backbone.blocks() for p in b.parameters()} == {id(p) for p in backbone.parameters()}
    assert backbone.embed.weight.grad is not None
    assert not backbone.embed.weight.grad[PAD].any()

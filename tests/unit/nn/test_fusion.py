"""Late fusion of two networks: outputs and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.tape import auxiliary, tape
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.fusion import Fusion
from tests.tiny import tiny_bert, tiny_roberta

Z, Y = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 0])


def head(**options) -> Fusion:
    torch.manual_seed(0)
    return Fusion(8, 3, **{"kind": "dense", "shared": True, "add": "logits", "dropout": 0.0, **options})


@pytest.mark.parametrize("kind", ["dense", "linear"])
def test_logits_are_added(kind):
    one, two = head(kind=kind), head(kind=kind, shared=False)
    assert_close(one(Z), one.heads[0](Z[:, :4]) + one.heads[0](Z[:, 4:]))
    assert_close(two(Z), two.heads[0](Z[:, :4]) + two.heads[1](Z[:, 4:]))
    assert len(list(two.parameters())) == 2 * len(list(one.parameters()))
    assert one.last_layer().out_features == 3


def test_probabilities_are_averaged():
    fused = head(shared=False, add="probabilities").eval()
    expected = (fused.heads[0](Z[:, :4]).softmax(-1) + fused.heads[1](Z[:, 4:]).softmax(-1)) / 2
    assert_close(fused(Z).softmax(-1), expected)


def test_probabilities_train_each_half_separately():
    fused = head(shared=False, add="probabilities").train()
    with tape() as side:
        risk = F.cross_entropy(fused(Z), Y)
    result = torch.autograd.grad(risk + auxiliary(side), list(fused.parameters()))
    alone = F.cross_entropy(fused.heads[0](Z[:, :4]), Y) + F.cross_entropy(fused.heads[1](Z[:, 4:]), Y)
    assert_close(risk + auxiliary(side), alone)
    for a, b in zip(result, torch.autograd.grad(alone, list(fused.parameters())), strict=True):
        assert_close(a, b)


def test_features_of_both_networks_are_concatenated(tmp_path):
    domain, general = str(tiny_bert(tmp_path / "a")), str(tiny_roberta(tmp_path / "b"))
    both = GMap.build(list, domain=domain, general=general, strategy="beside", length=16).eval()
    x = both.prepare(["the good film", "bad"]).take(torch.arange(2))
    assert both.width == 64
    parts = [TextEncoder.build(list, name=name, length=16).eval()(x) for name in (domain, general)]
    assert_close(both(x), torch.cat(parts, -1))
    built = Fusion.build(64, ["a", "b"], both)
    assert built(both(x)).shape == (2, 2)
    both.train()
    built(both(x)).sum().backward()
    assert all(p.grad is None for p in both.companion.second.module.parameters())


def test_fusion_needs_two_networks(tmp_path):
    encoder = TextEncoder.build(list, name=str(tiny_bert(tmp_path)), length=16)
    with pytest.raises(BadInput, match=r"encoder\.strategy=beside"):
        Fusion.build(32, ["a", "b"], encoder)

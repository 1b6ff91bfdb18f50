"""MACs compared with manual and published counts."""

import pytest
import torch
from torch import nn

from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.experts.graft import ExpertsNeck
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.macs import count_macs


def test_by_hand():
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.9), nn.Linear(5, 2)).train()
    rng = torch.get_rng_state()
    assert count_macs(net, torch.zeros(7, 3)) == 3 * 5 + 5 * 2
    assert net.training
    assert torch.equal(rng, torch.get_rng_state())
    assert count_macs(nn.Conv2d(3, 4, 3, padding=1), torch.zeros(2, 3, 8, 8)) == 8 * 8 * 4 * 27


@pytest.mark.parametrize("width", [8, 7])  # with and without the grouped product
def test_experts_count_per_choice(width):
    result = [
        count_macs(SparseMoE(width, 16, nn.GELU(), count=4, top=k, inner=4), torch.randn(10, width)) for k in (1, 2, 3)
    ]
    each = 2 * width * 16  # two matrices; biases are not counted
    assert result[1] - result[0] == result[2] - result[1] == each
    assert result[0] == each + width * 4 + 4 * 4  # the router


@pytest.mark.slow
def test_published_counts():
    x = torch.zeros(1, 3, 224, 224, dtype=torch.uint8)
    result = {}
    for top in (1, 2):
        net = VisionTransformer.build(list, name="vit-s/16")
        ExpertsNeck(net.width, count=6, top=top).attach(net)
        result[top] = count_macs(net, x) / 1e9
    with torch.device("meta"):
        result[0] = count_macs(VisionTransformer.build(list, name="vit-s/16"), x.to("meta")) / 1e9
    assert result[0] == pytest.approx(4.6, abs=0.05)
    assert result[1] == pytest.approx(4.64, abs=0.06)
    assert result[2] == pytest.approx(5.1, abs=0.06)
    for depth, published in ((18, 1.81), (50, 4.09), (101, 7.80)):
        with torch.device("meta"):
            net = ResNet(depth=depth, stem="large")
        assert count_macs(net, x.to("meta")) / 1e9 == pytest.approx(published, abs=0.01)

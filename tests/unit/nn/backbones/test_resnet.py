"""ResNet-18: its names, stems, weights and batch independence."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.resnet import ResNet

IMAGES = torch.randint(0, 256, (3, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def nothing() -> None:
    raise AssertionError("a ResNet learns nothing from the examples when it is built")


@pytest.mark.parametrize("stem", ["small", "large"])
def test_alone_and_in_a_batch(stem: str) -> None:
    net = ResNet.build(nothing, stem=stem, size=16).eval()
    store = net.prepare(IMAGES)
    whole = net(store.take(torch.arange(3)))
    assert whole.shape == (3, 512)
    for i in range(3):
        assert_close(net(store.take(torch.tensor([i])))[0], whole[i], atol=1e-5, rtol=1e-5)


def test_names_and_count_are_the_usual_ones() -> None:
    net = ResNet(stem="large")
    names = set(net.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var"} <= names
    assert not any("layer1" in n and "downsample" in n for n in names)
    assert sum(p.numel() for p in net.parameters()) == 11_176_512  # 11,689,512 with the classifier of 1000
    assert len(names) == 120  # 122 with the classifier
    assert net.size == 224
    assert ResNet().size == 32


def test_round_trip_and_gradients(tmp_path) -> None:
    net = ResNet.build(nothing)
    net(IMAGES).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
    assert {id(p) for b in net.blocks() for p in b.parameters()} == {id(p) for p in net.parameters()}
    again = ResNet.load(tmp_path, json.loads(json.dumps(net.save(tmp_path))))
    again.load_state_dict(net.state_dict())
    assert torch.equal(net.eval()(IMAGES), again.eval()(IMAGES))
    assert net.preparation() == again.preparation() == ResNet.build(nothing).preparation()


def test_zero_init_makes_every_block_its_shortcut() -> None:
    net = ResNet(zero_init=True).eval()
    x = torch.rand(1, 64, 8, 8)
    assert_close(net.layer1(x), x)


def test_weights_from_a_file(tmp_path) -> None:
    source = ResNet(size=16)
    path = tmp_path / "r18.safetensors"
    save_file({**source.state_dict(), "fc.weight": torch.zeros(10, 512)}, path)
    net = ResNet.build(nothing, size=16, weights=str(path))
    assert torch.equal(net.eval()(IMAGES), source.eval()(IMAGES))
    with pytest.raises(BadInput, match="other stem"):
        ResNet.build(nothing, stem="large", weights=str(path))
    with pytest.raises(BadInput, match="cannot read"):
        ResNet.build(nothing, size=16, weights=str(tmp_path / "none.safetensors"))
    save_file({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(BadInput, match="lacks"):
        ResNet.build(nothing, size=16, weights=str(path))


def test_unknown_stem() -> None:
    with pytest.raises(BadInput, match="did you mean 'small'"):
        ResNet(stem="smal")

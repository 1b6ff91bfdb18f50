"""ResNet: names, sizes, stems, weights, frozen statistics and batch independence."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.nn.backbones.resnet import Block, ResNet
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck

IMAGES = torch.randint(0, 256, (3, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def nothing() -> None:
    raise AssertionError("a ResNet learns nothing from the examples when it is built")


def test_parameter_names_and_count() -> None:
    net = ResNet(stem="large")
    names = set(net.state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.running_var"} <= names
    assert not any("layer1" in n and "downsample" in n for n in names)
    assert sum(p.numel() for p in net.parameters()) == 11_176_512  # 11,689,512 with the classifier of 1000
    assert len(names) == 120  # 122 with the classifier
    assert net.size == 224
    assert ResNet().size == 32


def test_weights_from_a_file(tmp_path) -> None:
    source = ResNet(size=16)
    path = tmp_path / "r18.safetensors"
    save_file({**source.state_dict(), "fc.weight": torch.zeros(10, 512)}, path)
    net = ResNet.build(nothing, size=16, weights=str(path))
    assert torch.equal(net.eval()(IMAGES), source.eval()(IMAGES))
    with pytest.raises(BadInput, match=r"encoder\.stem"):
        ResNet.build(nothing, stem="large", weights=str(path))
    with pytest.raises(BadInput, match="cannot read"):
        ResNet.build(nothing, size=16, weights=str(tmp_path / "none.safetensors"))
    save_file({"conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(BadInput, match="lacks"):
        ResNet.build(nothing, size=16, weights=str(path))


@pytest.mark.parametrize(("depth", "learned", "tensors"), [(50, 23_508_032, 318), (101, 42_500_160, 624)])
def test_bottleneck_names_and_counts(depth: int, learned: int, tensors: int) -> None:
    with torch.device("meta"):
        net = ResNet(depth=depth, stem="large")
    result = net.state_dict()
    assert sum(p.numel() for p in net.parameters()) == learned
    assert learned + 2048 * 1000 + 1000 == {50: 25_557_032, 101: 44_549_160}[depth]  # with the classifier of 1000
    assert len(result) == tensors  # two more with the classifier
    assert net.width == 2048
    assert {"layer1.0.downsample.0.weight", "layer1.0.downsample.1.bias", "layer4.2.bn3.running_var"} <= set(result)
    assert result["layer2.0.conv1.weight"].shape == (128, 256, 1, 1)
    assert result["layer3.1.conv3.weight"].shape == (1024, 256, 1, 1)
    assert f"layer3.{ {50: 5, 101: 22}[depth] }.conv2.weight" in result
    assert net.layer2[0].conv2.stride == (2, 2)  # as in torchvision, not at the first 1x1
    assert net.layer2[0].conv1.stride == (1, 1)


def test_bottleneck_equation() -> None:
    net = Block(8, 2, 2, bottleneck=True).eval()
    x = torch.randn(2, 8, 6, 6)
    out = F.relu(net.bn1(F.conv2d(x, net.conv1.weight)))
    out = F.relu(net.bn2(F.conv2d(out, net.conv2.weight, stride=2, padding=1)))
    around = net.downsample(x)
    assert_close(net(x), F.relu(net.bn3(F.conv2d(out, net.conv3.weight)) + around))


def test_frozen_statistics_stay_fixed_and_scales_train(tmp_path) -> None:
    network = partial(catalog.build, "encoders", "resnet50", nothing)
    fresh = network(options={"size": 32})
    assert fresh.settings["statistics"] == "batch"
    assert any(part.training for part in fresh.modules() if isinstance(part, nn.BatchNorm2d))
    path = tmp_path / "r50.safetensors"
    save_file({**fresh.state_dict(), "fc.weight": torch.zeros(10, 2048)}, path)
    net = network(options={"size": 32, "weights": str(path)})
    model = Model(net, NoNeck(2048), Linear(2048, 2)).train()
    assert net.training
    before = {name: value.clone() for name, value in net.named_buffers()}
    model(torch.randint(0, 256, (4, 3, 32, 32)).to(torch.uint8)).square().sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())
    assert net.layer1[0].bn3.weight.grad.abs().sum() > 0
    again = ResNet.load(tmp_path, json.loads(json.dumps(net.save(tmp_path))))
    assert again.settings["statistics"] == "frozen"
    with torch.device("meta"), pytest.raises(BadInput, match="ResNet-101"):
        catalog.build("encoders", "resnet101", nothing, options={"size": 32, "weights": str(path)})


def test_old_model_folder_without_depth_loads(tmp_path) -> None:
    net = ResNet.load(tmp_path, {"stem": "small", "size": 16})
    assert (net.settings["depth"], net.settings["statistics"]) == (18, "batch")

"""Parts inserted into the layer stack of every transformer family."""

import copy

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.small import CNN, MLP, Features
from holdfast.nn.graft.insert import FollowedLayer, append_layer, insert_after
from tests.unit.nn.transformers import FAMILIES, transformer


class Shift(nn.Module):
    """Adds a learned vector, initially zero, to every state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.zeros(width))

    def forward(self, states: Tensor) -> Tensor:
        return states + self.by


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.parametrize("at", [[-1], [0], range(3)])
@pytest.mark.parametrize("family", FAMILIES)
def test_part_is_inserted_after_layers(family, at, folder):
    net, x = transformer(family, folder)
    before = net(x)
    insert_after(net, at, Shift)
    places = [isinstance(layer, FollowedLayer) for layer in net.stack()]
    assert places == [i in {j % 3 for j in at} for i in range(3)]
    assert torch.equal(net(x), before)  # zero part
    net(x).square().sum().backward()
    added = [part.by for part in net.modules() if isinstance(part, Shift)]
    assert len(added) == len({j % 3 for j in at})
    assert len({id(by) for by in added}) == len(added)
    assert all(bool(by.grad.any()) for by in added)
    with torch.no_grad():
        added[-1].add_(torch.linspace(-1, 1, 32))
    assert float((net(x) - before).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_appended_layer_is_initialised_and_used(family, folder):
    net, x = transformer(family, folder)
    before, one = net(x), sum(p.numel() for p in net.stack()[-1].parameters())
    total = sum(p.numel() for p in net.parameters())
    last = copy.deepcopy(net.stack()[-1].state_dict())
    net.requires_grad_(False)
    torch.manual_seed(0)
    append_layer(net)
    assert len(net.stack()) == 4
    assert sum(p.numel() for p in net.parameters()) == total + one
    assert sum(p.numel() for p in net.parameters() if p.requires_grad) == one
    assert not torch.equal(net(x), before)
    net(x).square().sum().backward()
    added = dict(net.stack()[-1].named_parameters())
    # with a final norm, only the norm is sure to have a gradient of the squared sum
    assert sum(bool(p.grad is not None and p.grad.any()) for p in added.values()) >= len(added) - 2
    fresh = [name for name, p in added.items() if p.dim() == 2 and "lambda" not in name]
    assert len(fresh) >= 6
    for name in fresh:
        assert float(added[name].detach().std()) == pytest.approx(0.02, rel=0.2), name
    for name, value in net.stack()[2].state_dict().items():
        assert torch.equal(value, last[name]), name


@pytest.mark.parametrize("backbone", [MLP(inputs=3), CNN(size=8), ResNet(size=16)], ids=lambda b: type(b).__name__)
def test_backbone_without_layers_raises(backbone):
    for put in (lambda: append_layer(backbone), lambda: insert_after(backbone, [-1], Shift)):
        with pytest.raises(BadInput, match=f"{type(backbone).__name__} has no stack of layers .* use a transformer"):
            put()


def test_cached_features_raise():
    with pytest.raises(BadInput, match=r"no stack of layers .*--tune full"):
        append_layer(Features(inputs=4))

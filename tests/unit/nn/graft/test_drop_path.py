"""Stochastic depth: shares per layer, dropped branches, no effect in evaluation."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.graft.insert import DropPath, add_drop_path
from tests.unit.nn.transformers import FAMILIES, transformer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


def test_drop_path_keeps_the_mean():
    torch.manual_seed(0)
    drop = DropPath(0.25)
    branch = torch.ones(4000, 2, 3)
    out = drop(branch)
    assert_close(out.mean(), torch.tensor(1.0), atol=0.03, rtol=0)
    assert_close((out[:, 0, 0] == 0).float().mean(), torch.tensor(0.25), atol=0.03, rtol=0)
    assert torch.equal(out, out[:, :1, :1].expand_as(out))  # complete examples
    assert torch.equal(drop.eval()(branch), branch)


@pytest.mark.parametrize("family", FAMILIES[5:])
def test_layers_drop_both_branches(family, folder):
    torch.manual_seed(0)
    net, x = transformer(family, folder, drop_path=0.9)
    plain, _ = transformer(family, folder)
    assert torch.equal(net(x), plain(x))
    parts = [[part.share for part in layer.modules() if isinstance(part, DropPath)] for layer in net.stack()]
    assert [set(shares) for shares in parts] == [{0.0}, {0.45}, {0.9}]
    last, states = net.stack()[-1].train(), torch.randn(400, 4, net.width)
    out = last(states)
    out = out[0] if isinstance(out, tuple) else out
    same = (out == states).flatten(1).all(1).float().mean()
    assert_close(same, torch.tensor(0.9**2), atol=0.06, rtol=0)


def test_drop_path_survives_saving(folder, tmp_path):
    net, x = transformer("vit", folder, drop_path=0.3)
    again = VisionTransformer.load(tmp_path, net.save(tmp_path))
    again.load_state_dict(net.state_dict())
    assert again.settings == net.settings
    assert torch.equal(again.eval()(x), net(x))
    assert [p.share for p in again.modules() if isinstance(p, DropPath)] == [0.0, 0.15, 0.3]


def test_invalid_drop_path_raises():
    with pytest.raises(BadInput, match=r"drop_path.*1\.0"):
        VisionTransformer.Settings(drop_path=1.0)
    with pytest.raises(BadInput, match=r"drop_path.*Identity"):
        add_drop_path(nn.ModuleList([nn.Identity()]), 0.1)

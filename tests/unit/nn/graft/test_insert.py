"""Parts in the layer stack of every transformer family: layers, prompts and stochastic depth."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.small import CNN, MLP, Features
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.graft.insert import (
    DropPath,
    FollowedLayer,
    PromptedLayer,
    add_drop_path,
    append_layer,
    insert_after,
    prompt_parameters,
)
from holdfast.nn.tuning import tune
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


VISION = ["vit", "deit", "dinov2"]


class Mean(nn.Module):
    """Adds the mean of all tokens to every token; optionally returns a tuple, as some families do."""

    def __init__(self, *, tuples: bool) -> None:
        super().__init__()
        self.tuples = tuples

    def forward(self, states: Tensor, extra: int) -> object:
        out = states + states.mean(1, keepdim=True)
        return (out, extra) if self.tuples else out


@pytest.mark.parametrize("tuples", [True, False])
@pytest.mark.parametrize("stay", [True, False])
def test_prompts_follow_the_first_token(tuples, stay):
    layer, states = PromptedLayer(Mean(tuples=tuples), 2, 3, stay=stay), torch.arange(24.0).view(2, 4, 3)
    out = layer(states, 7)
    if tuples:
        out, extra = out
        assert extra == 7
    prompts = layer.prompts.detach().expand(2, 2, 3)
    among = torch.cat([states[:, :1], prompts, states[:, 1:]], dim=1)
    among = among + among.mean(1, keepdim=True)
    assert_close(out, among if stay else among[:, [0, 3, 4, 5]])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", VISION)
def test_shallow_and_deep_prompts(family, pooling, tmp_path):
    plain, x = transformer(family, tmp_path, pooling=pooling)
    patches = plain.patches
    lengths: list[int] = []
    for prompt, count in (("shallow", 1), ("deep", 3)):
        net, _ = transformer(family, tmp_path, pooling=pooling, prompt=prompt, prompts=4)
        assert [isinstance(layer, PromptedLayer) for layer in net.stack()] == [i < count for i in range(3)]
        assert sum(p.numel() for p in prompt_parameters(net)) == count * 4 * 32
        assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in plain.parameters()) + count * 4 * 32
        lengths.clear()
        for layer in net.stack():
            inner = layer.layer if isinstance(layer, PromptedLayer) else layer
            inner.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
        features = net(x)
        assert features.shape == plain(x).shape
        special = lengths[0] - patches - 4
        assert lengths == [patches + special + 4] * 3  # the number of tokens is the same in every layer
        features.square().sum().backward()
        assert all(bool(p.grad.any()) for p in prompt_parameters(net))
        assert float((features - plain(x)).detach().abs().max()) > 1e-5


def test_prompts_are_trained_with_the_class_token_or_everything(tmp_path):
    net, _ = transformer("vit", tmp_path, prompt="deep")
    tune(net, "head+cls")
    learning = [name for name, p in net.named_parameters() if p.requires_grad]
    assert len(learning) == 4
    assert all(name.endswith(("cls_token", "prompts")) for name in learning)
    tune(net, "full")
    assert all(p.requires_grad for p in net.parameters())
    for mode in ("frozen", "last:1"):
        with pytest.raises(BadInput, match=f"--tune {mode} freezes the prompts"):
            tune(net, mode)


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

"""Experts and wider networks in transformers of every family: equal to the plain network at the start, removable."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.experts.graft import (
    ExpertsNeck,
    WideNeck,
    expert_layers,
    insert_experts,
    layer_indices,
    widen,
)
from holdfast.nn.experts.layer import ExpertSettings, SparseMoE
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.tuning import tune
from tests.unit.nn.transformers import FAMILIES, transformer

ALL = {"count": 4, "at": [0, 1, 2], "inner": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiny")


@pytest.mark.parametrize("family", FAMILIES)
def test_new_experts_equal_the_plain_network(family, folder):
    plain, x = transformer(family, folder)
    net, _ = transformer(family, folder, experts=ALL)
    assert len(expert_layers(net)) == 3
    assert_close(net(x), plain(x), rtol=1e-4, atol=1e-5)
    raw, _ = transformer(family, folder, experts={**ALL, "top": 1})
    assert float((raw(x) - plain(x)).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_every_expert_layer_is_trained(family, folder):
    torch.manual_seed(0)
    net, x = transformer(family, folder, experts={**ALL, "top": 4})
    net.train()
    with tape() as side:
        loss = net(x).square().sum()
    assert len(side["loss/experts"]) == 3
    (loss + sum(side["loss/experts"])).backward()
    for layer in expert_layers(net):
        assert bool(layer.up_proj.grad.any())
        assert bool(layer.router.directions.grad.any())


def test_layer_indices():
    assert layer_indices("last-two", 12) == [8, 10]
    assert layer_indices("every-two", 12) == [0, 2, 4, 6, 8, 10]
    assert layer_indices("last-two", 3) == [1]
    assert layer_indices([-1, 2, 11], 12) == [2, 11]
    for wrong in ([12], [], ["1"]):
        with pytest.raises(BadInput, match=r"experts\.at.*0 to 11"):
            layer_indices(wrong, 12)
    with pytest.raises(BadInput, match="did you mean 'last-two'"):
        layer_indices("last-too", 12)


def test_padding_changes_no_loss(folder):
    net, x = transformer("bert", folder, experts=ALL)
    net.train()
    for layer in net.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    for layer in expert_layers(net):
        layer.settings = ExpertSettings(count=4, inner=8, noise=0.0)
    losses = []
    for extra in (0, 5):
        ids = torch.nn.functional.pad(x.ids, (0, extra), value=1)
        wider = type(x)(ids, torch.nn.functional.pad(x.mask, (0, extra)))
        with tape() as side:
            net(wider)
        losses.append(torch.stack(side["loss/experts"]))
    assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["vit", "dinov2"])
def test_experts_with_prompts(family, folder):
    net, x = transformer(family, folder, experts=ALL, prompt="deep", prompts=2)
    plain, _ = transformer(family, folder, prompt="deep", prompts=2)
    assert len(expert_layers(net)) == 3
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if k in plain.state_dict()}, strict=False)
    assert_close(net(x), plain(x), rtol=1e-4, atol=1e-5)


def test_tuning_that_freezes_all_experts_is_an_error(folder):
    net, _ = transformer("vit", folder, experts={"count": 3, "inner": 4})
    for mode in ("frozen", "head+cls", "last:1"):
        with pytest.raises(BadInput, match=f"--tune {mode.replace('+', '.')} freezes"):
            tune(net, mode)
    tune(net, "last:2")
    assert all(p.requires_grad for p in expert_layers(net)[0].parameters())


def test_experts_of_a_neck_are_trained_in_every_tuning_mode(folder):
    for mode in ("head+cls", "last:1"):
        net, _ = transformer("vit", folder)
        tune(net, mode)
        model = Model(net, ExpertsNeck(32, count=3, inner=4), Linear(32, 2))
        trainable = {id(p) for p in model.trainable_parameters()}
        assert all(id(p) in trainable for layer in expert_layers(net) for p in layer.parameters())
        tune(net, mode, model.neck)  # as when training continues
        assert {id(p) for p in model.trainable_parameters()} == trainable


def test_experts_inserted_twice_are_an_error(folder):
    net, _ = transformer("vit", folder, experts={"count": 3, "inner": 4})
    for neck in (ExpertsNeck(32, count=3, inner=4), WideNeck(32)):
        with pytest.raises(BadInput, match="the encoder already has experts"):
            Model(net, neck, Linear(32, 2))


@pytest.mark.parametrize(("family", "settings"), [
    ("vit", {"neck": "experts", "neck.count": 3, "neck.inner": 4, "neck.top": 1}),
    pytest.param("bert", {"neck": "experts", "neck.count": 3, "neck.inner": 4}, marks=pytest.mark.slow),
    ("vit", {"neck": "wide", "neck.times": 2}),
])  # fmt: skip
def test_saved_model_gives_the_same_predictions(family, settings, tmp_path):
    from tests.unit.nn.memory.test_neck import check_folder  # imports the complete package

    check_folder(family, tmp_path, settings)


def test_neck_inserts_once_and_copies_share_nothing(folder):
    net, x = transformer("vit", folder)
    model = Model(net, ExpertsNeck(32, count=3, inner=4), Linear(32, 2)).eval()
    assert len(expert_layers(model)) == 1
    assert model.prediction_batch is None
    assert Model(net, ExpertsNeck(32, eval_capacity=1.5, at=[0]), Linear(32, 2)).prediction_batch == (64, 0)
    again = Model(model.backbone, model.neck, model.head).eval()
    assert torch.equal(again(x), model(x))
    other, before = copy.deepcopy(model), model(x)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(model(x), before)


def test_networks_without_feed_forward_layers_are_an_error(folder):
    with pytest.raises(BadInput, match="ResNet has no stack of layers"):
        Model(ResNet(size=16), ExpertsNeck(512), Linear(512, 2))
    with pytest.raises(BadInput, match=r"Identity has no feed-forward network .* use a ViT"):
        insert_experts(torch.nn.ModuleList([torch.nn.Identity()]), ExpertSettings())


def test_copies_and_pickles(folder):
    net, x = transformer("vit", folder, experts=ALL)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert len(expert_layers(other)) == len(expert_layers(net)) > 0
        assert torch.equal(other(x), net(x))


@pytest.mark.parametrize("family", FAMILIES)
def test_new_wide_networks_equal_the_plain_network(family, tmp_path):
    plain, x = transformer(family, tmp_path)
    net, _ = transformer(family, tmp_path)
    before = sum(p.numel() for p in net.parameters())
    model = Model(net, WideNeck(32, times=3, at=[0, 1, 2]), Linear(32, 2)).eval()
    assert_close(model.features(x), plain(x), rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in net.parameters()) > before
    again = Model(net, model.neck, model.head).eval()
    assert torch.equal(again(x), model(x))  # widened once


@pytest.mark.parametrize("bias", [True, False])
def test_copies_of_a_hidden_unit_get_different_gradients(bias):
    torch.manual_seed(0)
    up, down = nn.Linear(4, 6, bias=bias), nn.Linear(6, 4, bias=bias)
    wide, narrow = widen(up, down, times=2)
    x = torch.randn(9, 4)
    assert_close(narrow(wide(x).relu()), down(up(x).relu()))
    narrow(wide(x).relu()).square().sum().backward()
    assert not torch.allclose(*wide.weight.grad.chunk(2))


def test_parameters_of_a_wide_network_and_of_experts():
    experts = SparseMoE(32, 128, nn.GELU(), count=6)
    expected = sum(p.numel() for name, p in experts.named_parameters() if not name.startswith("router"))
    layers = widen(nn.Linear(32, 128), nn.Linear(128, 32), times=6)
    assert sum(p.numel() for layer in layers for p in layer.parameters()) == expected - 5 * 32  # one output bias


def test_width_of_zero_is_an_error():
    with pytest.raises(BadInput, match=r"times.*0"):
        widen(nn.Linear(2, 2), nn.Linear(2, 2), times=0)

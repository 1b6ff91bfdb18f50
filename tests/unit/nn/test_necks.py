"""Plain necks: equations and parameter counts."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.nn.model import Model
from holdfast.nn.necks import ExtraLayer, FeedForward, Projection
from holdfast.nn.tuning import tune
from tests.unit.nn.transformers import LABELS, transformer

Z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_projection():
    neck = Projection(6, hidden=3)
    assert neck.width == 3
    assert_close(neck(Z), torch.relu(Z @ neck.layer.weight.T + neck.layer.bias))


def test_feed_forward_equals_a_transformer_sub_layer():
    neck = FeedForward(6)
    inner = Z @ neck.widen.weight.T + neck.widen.bias
    inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
    summed = Z + inner @ neck.narrow.weight.T + neck.narrow.bias
    expected = (summed - summed.mean(1, keepdim=True)) / (summed.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    assert_close(neck(Z), expected)
    assert size(FeedForward(768)) - 2 * 768 == 4_722_432  # 768-3072-768, without the norm
    assert FeedForward(6, hidden=5).widen.out_features == 5


@pytest.mark.parametrize(("family", "mode"), [("bert", "frozen"), ("vit", "full")])
def test_extra_layer_trains_on_frozen_and_tuned_transformers(family, mode, tmp_path):
    net, x = transformer(family, tmp_path)
    tune(net, mode)
    before, one = size(net), size(net.stack()[-1])
    torch.manual_seed(0)
    model = Model(net, ExtraLayer(net.width), nn.Linear(net.width, 2))
    assert size(net) == before + one
    assert Model(net, model.neck, model.head).backbone.stack() is net.stack()
    assert len(net.stack()) == 4  # a second model with the same neck inserts no second layer
    saved = copy.deepcopy(net.state_dict())
    optimizer = torch.optim.Adam(model.trainable_parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model.train()(x), LABELS)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, saved[name])}
    inside = {name for name in saved if ".3." in name}
    assert moved & inside
    assert moved <= inside or mode == "full"

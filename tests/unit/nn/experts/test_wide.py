"""Wider feed-forward networks: the plain network at the start, copies that part, sizes to compare with experts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.experts.graft import WideNeck, widen
from holdfast.nn.experts.layer import SparseMoE
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from tests.unit.nn.transformers import FAMILIES, transformer


@pytest.mark.parametrize("family", FAMILIES)
def test_at_the_start_it_is_the_plain_network(family, tmp_path):
    plain, x = transformer(family, tmp_path)
    net, _ = transformer(family, tmp_path)
    before = sum(p.numel() for p in net.parameters())
    made = Model(net, WideNeck(32, times=3, at=[0, 1, 2]), Linear(32, 2)).eval()
    assert_close(made.features(x), plain(x), rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in net.parameters()) > before
    again = Model(net, made.neck, made.head).eval()
    assert torch.equal(again(x), made(x))  # it is put once


@pytest.mark.parametrize("bias", [True, False])
def test_copies_of_a_unit_get_gradients_of_their_own(bias):
    torch.manual_seed(0)
    up, down = nn.Linear(4, 6, bias=bias), nn.Linear(6, 4, bias=bias)
    wide, narrow = widen(up, down, times=2)
    x = torch.randn(9, 4)
    assert_close(narrow(wide(x).relu()), down(up(x).relu()))
    narrow(wide(x).relu()).square().sum().backward()
    assert wide.weight.grad is not None
    first, second = wide.weight.grad.chunk(2)
    assert not torch.allclose(first, second)


def test_six_times_as_wide_has_the_parameters_of_six_experts():
    experts = SparseMoE(32, 128, nn.GELU(), count=6)
    theirs = sum(p.numel() for name, p in experts.named_parameters() if not name.startswith("router"))
    mine = sum(p.numel() for part in widen(nn.Linear(32, 128), nn.Linear(128, 32), times=6) for p in part.parameters())
    assert mine == theirs - 5 * 32  # one bias down instead of six


def test_a_model_folder_gives_the_same_predictions(tmp_path):
    from tests.unit.nn.memory.test_neck import check_folder  # it needs all of the package, plots too

    check_folder("vit", tmp_path, {"neck": "wide", "neck.times": 2})


def test_no_width_at_all_is_refused():
    with pytest.raises(BadInput, match=r"times.*0"):
        widen(nn.Linear(2, 2), nn.Linear(2, 2), times=0)

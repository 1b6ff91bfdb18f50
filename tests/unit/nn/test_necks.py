"""Plain necks: equations and parameter counts."""

import torch
from torch import nn
from torch.testing import assert_close

from holdfast.nn.necks import FeedForward, Projection

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

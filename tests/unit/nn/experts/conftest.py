"""Devices on which the fused kernels run, and a comparison with exact values and derivatives."""

import itertools

import pytest
import torch

from holdfast.accel import fused_experts
from holdfast.ops import expert_dispatch


@pytest.fixture
def any_width(monkeypatch) -> None:
    """Products for any dtype and width: a loop replaces torch's grouped product."""

    def grouped_mm(x, weight, *, offs):
        spans = [slice(a, b) for a, b in itertools.pairwise([0, *offs.tolist()])]
        if weight.ndim == 2:  # one product per expert
            return torch.stack([x[:, span] @ weight[span] for span in spans])
        return torch.cat([x[span] @ matrix for span, matrix in zip(spans, weight, strict=True)])

    monkeypatch.setattr(expert_dispatch, "_grouped_mm", grouped_mm)
    monkeypatch.setattr(expert_dispatch, "supports_grouped_mm", lambda *_: True)
    monkeypatch.setattr(fused_experts, "supports_grouped_mm", lambda *_: True)


@pytest.fixture
def assert_derivatives():
    """Compare outputs, first and, if `twice`, second derivatives of a function in fp32 with those of another in fp64.

    Both functions take the same tensors and return a tuple, whose weighted sum is differentiated.
    """

    def compare(function, reference, inputs, *, tolerance=2e-5, twice=True):
        exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        outputs, expected = function(*leaves), reference(*exact)
        for a, b in zip(outputs, expected, strict=True):
            assert_near(a, b, tolerance)
        first = [_gradients(out, at, create_graph=twice) for out, at in ((outputs, leaves), (expected, exact))]
        for a, b in zip(*first, strict=True):
            assert_near(a, b, tolerance)
        if not twice:
            return
        for a, b in zip(_gradients(function(*leaves), leaves), first[1], strict=True):  # without create_graph
            assert_near(a, b, tolerance)
        second = (_gradients(grads, at) for grads, at in zip(first, (leaves, exact), strict=True))
        for a, b in zip(*second, strict=True):
            assert_near(a, b, 10 * tolerance)

    return compare


def assert_near(actual, expected, tolerance):
    """Compare relative to the largest entry, since sums are rounded."""
    size = expected.detach().abs().max().clamp_min(0.1) if expected.numel() else 1.0
    assert ((actual.detach().double() - expected.detach()).abs() <= tolerance * size).all()


def _gradients(outputs, at, **options):
    total = 0.0
    for i, out in enumerate(outputs):
        if out.requires_grad:
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(i)).to(out.device)
            total = total + (out.double() * weights).sum()
    grads = torch.autograd.grad(total, at, allow_unused=True, **options)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(grads, at, strict=True)]

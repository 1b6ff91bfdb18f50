"""Kernels on a GPU, or interpreted on a CPU; and a comparison with exact values and derivatives.

Interpreted only with TRITON_INTERPRET=1 and Triton installed, for whoever writes kernels without a GPU.
"""

from __future__ import annotations

import importlib.util
import itertools
import os

import pytest
import torch

from holdfast.nn.experts import dispatch, fast

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
WAYS = [pytest.param("gpu", marks=pytest.mark.gpu), *(["interpreted"] if INTERPRETED else [])]


@pytest.fixture(params=WAYS)
def by_kernels(request, monkeypatch) -> torch.device:
    """A device on which a layer goes through kernels in any type and width: grouped products are those of a loop."""

    def grouped(x, weight, *, offs):
        ends = [0, *offs.tolist()]
        spans = [slice(a, b) for a, b in itertools.pairwise(ends)]
        if weight.ndim == 2:  # rows of both belong to an expert
            return torch.stack([x[:, span] @ weight[span] for span in spans])
        return torch.cat([x[span] @ own for span, own in zip(spans, weight, strict=True)])

    monkeypatch.setattr(dispatch, "_grouped_mm", grouped)
    monkeypatch.setattr(dispatch, "supports_grouped_mm", lambda *_: True)
    monkeypatch.setattr(fast, "supports_grouped_mm", lambda *_: True)
    if request.param == "interpreted":
        monkeypatch.setattr(fast, "_has_kernels", lambda *_: True)
    return torch.device("cuda" if request.param == "gpu" else "cpu")


@pytest.fixture(params=WAYS)
def by_narrow_kernels(request, monkeypatch) -> torch.device:
    """The same in bf16 with torch's own grouped products, whose shapes a compiler knows: widths are multiples of 8."""
    if request.param == "interpreted":
        monkeypatch.setattr(fast, "_has_kernels", lambda *_: True)
        monkeypatch.setattr(fast, "supports_grouped_mm", lambda *_: True)
    return torch.device("cuda" if request.param == "gpu" else "cpu")


@pytest.fixture
def same():
    """Whether outputs and derivatives of a function in fp32 are those of another in fp64, the second ones too.

    Both take the same tensors and give a tuple; what they give is weighed by fixed numbers and added up.
    """

    def compare(mine, theirs, inputs, *, close=2e-5):
        exact = [each.detach().double().requires_grad_() for each in inputs]
        own = [each.detach().clone().requires_grad_() for each in inputs]
        found, wanted = mine(*own), theirs(*exact)
        for a, b in zip(found, wanted, strict=True):
            near(a, b, close)
        first = [_gradients(out, at, create_graph=True) for out, at in ((found, own), (wanted, exact))]
        for a, b in zip(*first, strict=True):
            near(a, b, close)
        for a, b in zip(_gradients(mine(*own), own), first[1], strict=True):  # not to be differentiated again
            near(a, b, close)
        for a, b in zip(*(_gradients(g, at) for g, at in zip(first, (own, exact), strict=True)), strict=True):
            near(a, b, 10 * close)

    return compare


def near(found, wanted, close):
    """Against the largest number: rounding is of sums."""
    size = wanted.detach().abs().max().clamp_min(0.1) if wanted.numel() else 1.0
    assert ((found.detach().double() - wanted.detach()).abs() <= close * size).all()


def _gradients(outputs, at, **how):
    total = 0.0
    for i, out in enumerate(outputs):
        if out.requires_grad:
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(i)).to(out.device)
            total = total + (out.double() * weights).sum()
    found = torch.autograd.grad(total, at, allow_unused=True, **how)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, at, strict=True)]

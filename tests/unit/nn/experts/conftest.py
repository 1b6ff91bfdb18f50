"""Ways through which the same tests go: plain tensors, kernels on a GPU, and kernels interpreted on a CPU.

The last only with TRITON_INTERPRET=1 and Triton installed, for whoever writes kernels without a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

import pytest
import torch

from holdfast.nn.experts import balance, choice, dispatch, passes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
WAYS = ["plain", pytest.param("gpu", marks=pytest.mark.gpu), *(["interpreted"] if INTERPRETED else [])]


def interpreted(name, tensor):
    module = importlib.import_module(f"holdfast.nn.kernels.{name}")
    return module if tensor.dtype in module.TYPES and tensor.numel() and not torch.compiler.is_compiling() else None


@pytest.fixture(params=WAYS)
def way(request, monkeypatch) -> tuple[torch.device, bool]:
    """A device, and whether kernels are to be used on it."""
    if request.param == "interpreted":
        for module in (balance, choice, dispatch, passes):
            monkeypatch.setattr(module, "kernels_unless_compiled", interpreted)
    return torch.device("cuda" if request.param == "gpu" else "cpu"), request.param != "plain"


@pytest.fixture
def same():
    """Whether outputs and derivatives of a function in fp32 are those of another in fp64, the second ones too.

    Both take the same tensors and give a tuple; what they give is weighed by fixed numbers and added up.
    """

    def compare(mine, theirs, inputs, *, close=2e-5, twice=True):
        exact = [each.detach().double().requires_grad_() for each in inputs]
        own = [each.detach().clone().requires_grad_() for each in inputs]
        found, wanted = mine(*own), theirs(*exact)
        for a, b in zip(found, wanted, strict=True):
            near(a, b, close)
        first = [_gradients(out, at, create_graph=twice) for out, at in ((found, own), (wanted, exact))]
        for a, b in zip(*first, strict=True):
            near(a, b, close)
        for a, b in zip(_gradients(mine(*own), own), first[1], strict=True):  # not to be differentiated again
            near(a, b, close)
        if twice:
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

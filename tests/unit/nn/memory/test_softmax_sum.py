"""Softmax over slots summed over heads equals the plain form."""

import pytest
import torch

from holdfast.nn.memory import read as softmax
from holdfast.nn.memory.read import softmax_sum

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def kernels_for_few_scores_too(monkeypatch):
    monkeypatch.setattr(softmax, "LEAST_SCORES", 0)


def plain(scores):
    weights = scores.softmax(dim=-1)
    return weights.sum(dim=0), weights


def gradients(function, scores, by_total, by_weights, *, twice=False):
    total, weights = function(scores)
    requested = (total * by_total).sum() + (0.0 if by_weights is None else (weights * by_weights).sum())
    (first,) = torch.autograd.grad(requested, scores, create_graph=twice)
    return torch.autograd.grad((first**2).sum(), scores)[0] if twice else first


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", [(4, 5, 37), (2, 3, 1024), (1, 1, 1)])
def test_values_and_gradients_equal_the_plain_form(shape, dtype, device):
    rng = torch.Generator().manual_seed(0)
    scores = (4 * torch.randn(shape, generator=rng)).to(device, dtype).requires_grad_()
    by_total = torch.randn(shape[1:], generator=rng).to(device, dtype)
    by_weights = torch.randn(shape, generator=rng).to(device, dtype)
    for actual, reference in zip(softmax_sum(scores), plain(scores.double()), strict=True):
        torch.testing.assert_close(actual.double(), reference, rtol=CLOSE[dtype], atol=CLOSE[dtype])
    for also in (None, by_weights):
        actual = gradients(softmax_sum, scores, by_total, also)
        wide = scores.detach().double().requires_grad_()
        reference = gradients(plain, wide, by_total.double(), None if also is None else also.double())
        torch.testing.assert_close(actual.double(), reference, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_second_derivative(device):
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, 20, generator=rng).to(device).requires_grad_()
    by_total = torch.randn(4, 20, generator=rng).to(device)
    actual = gradients(softmax_sum, scores, by_total, None, twice=True)
    reference = gradients(plain, scores, by_total, None, twice=True)
    torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-6)

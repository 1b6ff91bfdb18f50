"""The fast sum of weighted rows equals a naive sum in values and derivatives."""

import pytest
import torch

from holdfast.accel.table_reads import weighted_rows
from tests.devices import GPU

# rounding of the result: both sides accumulate in a wider type
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def naive(table, rows, weights):
    return (weights[..., None] * table[rows]).sum(dim=1)


def case(dtype, device, *, m=5000, b=7, k=9, d=40, hot=False):
    rng = torch.Generator().manual_seed(0)
    table = torch.randn(m, d, generator=rng).to(device, dtype)
    rows = torch.randint(0, 4 if hot else m, (b, k), generator=rng).to(device)
    rows[0, -1] = rows[0, 0]  # a query reads a row twice
    weights = torch.rand(b, k, generator=rng).to(device, dtype)
    grad = torch.randn(b, d, generator=rng).to(device, dtype)
    return table, rows, weights, grad


def far(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("shape", [{}, {"hot": True}, {"k": 1, "b": 1}, {"m": 30}, {"d": 33, "k": 37}], ids=str)
def test_values_and_gradients_equal_a_naive_sum(dtype, device, shape):
    check(dtype, device, shape)


@pytest.mark.parametrize("d", [1, 2, 3, 64, 72])
def test_kernels_handle_every_width(kernel_device, d):
    check(torch.float32, kernel_device, {"m": 30, "b": 3, "d": d})


def check(dtype, device, shape):
    table, rows, weights, grad = case(dtype, device, **shape)
    t, w = table.clone().requires_grad_(), weights.clone().requires_grad_()
    exact = table.double().requires_grad_(), weights.double().requires_grad_()
    result, expected = weighted_rows(t, rows, w), naive(exact[0], rows, exact[1])
    by_table, by_weights = torch.autograd.grad(result, (t, w), grad)
    wanted_grads = torch.autograd.grad(expected, exact, grad.double())
    assert result.dtype == by_table.dtype == by_weights.dtype == dtype
    assert far(result, expected) < CLOSE[dtype]
    assert far(by_table, wanted_grads[0]) < CLOSE[dtype]
    assert far(by_weights, wanted_grads[1]) < CLOSE[dtype]


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_frozen_table_gets_no_gradient(device):
    table, rows, weights, grad = case(torch.float32, device)
    w = weights.clone().requires_grad_()
    (result,) = torch.autograd.grad(weighted_rows(table, rows, w), (w,), grad)
    assert far(result, torch.einsum("bkd,bd->bk", table[rows], grad)) < CLOSE[torch.float32]
    t = table.clone().requires_grad_()
    (result,) = torch.autograd.grad(weighted_rows(t, rows, weights), (t,), grad)
    (expected,) = torch.autograd.grad(naive(t, rows, weights), (t,), grad)
    assert far(result, expected) < CLOSE[torch.float32]


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_gradient_is_deterministic(device):
    table, rows, weights, grad = case(torch.float32, device, hot=True, b=64)
    t = table.requires_grad_()
    first, second = (torch.autograd.grad(weighted_rows(t, rows, weights), t, grad)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_weights_with_higher_precision():
    table, rows, weights, grad = case(torch.bfloat16, "cpu")
    w = weights.float().requires_grad_()
    result = weighted_rows(table, rows, w)
    assert result.dtype == torch.bfloat16
    assert torch.autograd.grad(result, w, grad)[0].dtype == torch.float32

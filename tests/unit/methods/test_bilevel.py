"""The gradient through inner steps compared with finite differences, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from holdfast.methods.mil import look_ahead, outer_gradient, twice_differentiable

RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(7, 3, generator=RNG).double(), torch.randn(7, generator=RNG).double()
START = [torch.randn(shape, generator=RNG).double() * 0.5 for shape in ((4, 3), (4,), (4,))]
MEMORY = torch.randn(4, generator=RNG).double()


def hidden(theta, m: Tensor) -> Tensor:
    return torch.tanh(X @ theta[0].T + theta[1]) * (1 + m)


def inner_loss(theta, m: Tensor) -> Tensor:
    return ((hidden(theta, m) @ theta[2] - Y) ** 2).mean()


def outer_loss(theta, m: Tensor) -> Tensor:
    return torch.sin(hidden(theta, m)).mean() + (hidden(theta, m) ** 2).mean()


def bilevel_loss(m: Tensor, lr: float, steps: int) -> float:
    """Return O(theta'(m), m), with theta' by gradient descent."""
    theta = [t.clone() for t in START]
    for _ in range(steps):
        theta = [t.requires_grad_() for t in theta]
        grads = torch.autograd.grad(inner_loss(theta, m), theta)
        theta = [(t - lr * g).detach() for t, g in zip(theta, grads, strict=True)]
    return float(outer_loss(theta, m))


def gradient(order: str, lr: float, steps: int = 1) -> Tensor:
    m = MEMORY.clone().requires_grad_()
    now = [t.clone().requires_grad_() for t in START]

    def inner(theta):
        return inner_loss(theta, m)

    _, _, ahead = look_ahead(inner, now, lr=lr, steps=steps, order=order)
    loss = outer_loss(ahead, m)
    (grad,) = outer_gradient(loss, [m], inner=inner, now=now, ahead=ahead, lr=lr, order=order)
    return grad.detach()


def differences(lr: float, steps: int) -> Tensor:
    eps, moved = 1e-5, torch.eye(4, dtype=torch.float64)
    return torch.tensor(
        [
            (bilevel_loss(MEMORY + eps * e, lr, steps) - bilevel_loss(MEMORY - eps * e, lr, steps)) / (2 * eps)
            for e in moved
        ]
    ).double()


@pytest.mark.parametrize("steps", [1, 3])
def test_exact_order_is_the_derivative_of_the_bilevel_loss(steps):
    assert_close(gradient("exact", 0.3, steps), differences(0.3, steps), rtol=1e-6, atol=1e-8)


def test_finite_differences_give_the_second_term():
    exact, finite, first = (gradient(order, 0.3) for order in ("exact", "finite", "first"))
    assert float((exact - first).norm()) > 0.01 * float(exact.norm())  # the second term matters
    assert_close(finite - first, exact - first, rtol=1e-3, atol=1e-6)


def test_the_error_of_first_order_is_proportional_to_the_inner_rate():
    gaps = {lr: float((gradient("exact", lr) - gradient("first", lr)).norm()) for lr in (1e-2, 1e-4, 1e-6)}
    assert gaps[1e-4] == pytest.approx(gaps[1e-2] / 100, rel=0.1)
    assert gaps[1e-6] < 1e-5


@pytest.mark.parametrize("order", ["first", "exact", "finite"])
def test_look_ahead_is_gradient_descent_without_side_effects(order):
    now = [t.clone().requires_grad_() for t in START]
    loss, grads, ahead = look_ahead(lambda t: inner_loss(t, MEMORY), now, lr=0.1, steps=1, order=order)
    expected = torch.autograd.grad(inner_loss(now, MEMORY), now)
    assert_close(loss, inner_loss(now, MEMORY).detach())
    assert not loss.requires_grad
    for start, p, g, w, a in zip(START, now, grads, expected, ahead, strict=True):
        assert torch.equal(start, p)
        assert_close(g, w)
        assert_close(a.detach(), start - 0.1 * w)
        assert (a.grad_fn is not None) == (order == "exact")  # only exact order keeps the graph


@pytest.mark.parametrize("order", ["first", "exact", "finite"])
def test_an_outer_loss_that_does_not_depend_on_the_inner_step(order):
    m, now = MEMORY.clone().requires_grad_(), [t.clone().requires_grad_() for t in START]

    def inner(theta):
        return inner_loss(theta, m)

    _, _, ahead = look_ahead(inner, now, lr=0.1, steps=1, order=order)
    (grad,) = outer_gradient((m**3).sum(), [m], inner=inner, now=now, ahead=ahead, lr=0.1, order=order)
    assert_close(grad, 3 * MEMORY**2)


def test_finite_differences_use_equal_dropout_masks():
    m, now = torch.ones(50, dtype=torch.float64, requires_grad=True), [torch.ones(50).double().requires_grad_()]

    def inner(theta):
        return (F.dropout(theta[0], 0.5) * m).sum()

    torch.manual_seed(0)
    _, _, ahead = look_ahead(inner, now, lr=1.0, steps=1, order="finite")
    (grad,) = outer_gradient(ahead[0].sum(), [m], inner=inner, now=now, ahead=ahead, lr=1.0, order="finite")
    # dL/dm is theta with half of it dropped: its derivative along v = 1 is 0 or 2, times -lr
    assert set(grad.round(decimals=6).tolist()) == {0.0, -2.0}


def test_exact_order_differentiates_attention_twice():
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    with twice_differentiable("exact"):
        out = F.scaled_dot_product_attention(q, q, q)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), q)
    assert bool(second.any())

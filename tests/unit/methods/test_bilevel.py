"""The gradient through the inner step compared with finite differences of the bilevel loss, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from holdfast.methods.meta import look_ahead
from holdfast.methods.mil import finite_gradient

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


def bilevel_loss(m: Tensor, lr: float) -> float:
    """Return O(theta'(m), m), with theta' by a step of gradient descent."""
    theta = [t.clone().requires_grad_() for t in START]
    grads = torch.autograd.grad(inner_loss(theta, m), theta)
    return float(outer_loss([t - lr * g for t, g in zip(theta, grads, strict=True)], m).detach())


def gradients(lr: float) -> tuple[Tensor, Tensor]:
    """Return the gradient of the outer loss with the second term, and without it."""
    m = MEMORY.clone().requires_grad_()
    now = [t.clone().requires_grad_() for t in START]

    def inner(theta):
        return inner_loss(theta, m)

    _, _, ahead = look_ahead(inner, now, lr=lr)
    (first,) = torch.autograd.grad(outer_loss(ahead, m), m)
    (finite,) = finite_gradient(outer_loss(ahead, m), [m], inner=inner, now=now, ahead=ahead, lr=lr)
    return finite.detach(), first


def differences(lr: float) -> Tensor:
    eps, moved = 1e-5, torch.eye(4, dtype=torch.float64)
    sides = [(bilevel_loss(MEMORY + eps * e, lr), bilevel_loss(MEMORY - eps * e, lr)) for e in moved]
    return torch.tensor([(plus - minus) / (2 * eps) for plus, minus in sides]).double()


def test_finite_order_is_the_derivative_of_the_bilevel_loss():
    finite, first = gradients(0.3)
    exact = differences(0.3)
    assert float((exact - first).norm()) > 0.01 * float(exact.norm())  # the second term matters
    assert_close(finite - first, exact - first, rtol=1e-3, atol=1e-6)


def test_the_error_of_first_order_is_proportional_to_the_inner_rate():
    gaps = {lr: float((differences(lr) - gradients(lr)[1]).norm()) for lr in (1e-1, 1e-2, 1e-3)}
    assert gaps[1e-3] == pytest.approx(gaps[1e-2] / 10, rel=0.1)
    assert gaps[1e-2] < gaps[1e-1]


def test_look_ahead_is_gradient_descent_without_side_effects():
    now = [t.clone().requires_grad_() for t in START]
    loss, grads, ahead = look_ahead(lambda t: inner_loss(t, MEMORY), now, lr=0.1)
    expected = torch.autograd.grad(inner_loss(now, MEMORY), now)
    assert_close(loss, inner_loss(now, MEMORY).detach())
    assert not loss.requires_grad
    for start, p, g, w, a in zip(START, now, grads, expected, ahead, strict=True):
        assert torch.equal(start, p)
        assert_close(g, w)
        assert_close(a.detach(), start - 0.1 * w)
        assert a.is_leaf


def test_an_outer_loss_that_does_not_depend_on_the_inner_step():
    m, now = MEMORY.clone().requires_grad_(), [t.clone().requires_grad_() for t in START]

    def inner(theta):
        return inner_loss(theta, m)

    _, _, ahead = look_ahead(inner, now, lr=0.1)
    (grad,) = finite_gradient((m**3).sum(), [m], inner=inner, now=now, ahead=ahead, lr=0.1)
    assert_close(grad, 3 * MEMORY**2)


def test_finite_differences_use_equal_dropout_masks():
    m, now = torch.ones(50, dtype=torch.float64, requires_grad=True), [torch.ones(50).double().requires_grad_()]

    def inner(theta):
        return (F.dropout(theta[0], 0.5) * m).sum()

    torch.manual_seed(0)
    _, _, ahead = look_ahead(inner, now, lr=1.0)
    (grad,) = finite_gradient(ahead[0].sum(), [m], inner=inner, now=now, ahead=ahead, lr=1.0)
    # dL/dm is theta with half of it dropped: its derivative along v = 1 is 0 or 2, times -lr
    assert set(grad.round(decimals=6).tolist()) == {0.0, -2.0}

"""Penalties compared with closed forms in numpy, and their gradients with finite differences."""

from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from holdfast.core.batch import DomainBatch
from holdfast.methods.penalties import GAMMAS, PENALTIES

SIZES = (6, 4, 8)


@pytest.fixture
def case():
    torch.manual_seed(0)
    b, d, c = sum(SIZES), 5, 3
    z = torch.randn(b, d, dtype=torch.float64)
    output = torch.randn(b, c, dtype=torch.float64)
    batch = DomainBatch(z, torch.randint(0, c, (b,)), (0, 1, 2), SIZES)
    return z, output, batch


def pieces(t):
    return np.split(t.numpy(), np.cumsum(SIZES)[:-1])


def softmax(a):
    e = np.exp(a - a.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def cross_entropy(a, y):
    return -np.log(softmax(a)[np.arange(len(y)), y]).mean()


def coral(z, output, y):
    parts = pieces(z)
    return np.mean(
        [
            ((a.mean(0) - b.mean(0)) ** 2).mean() + ((np.cov(a.T) - np.cov(b.T)) ** 2).mean()
            for a, b in combinations(parts, 2)
        ]
    )


def mmd(z, output, y):
    def kernel(a, b):
        total = 0.0
        for x in a:
            for w in b:
                total += sum(np.exp(-g * ((x - w) ** 2).sum()) for g in GAMMAS)
        return total / (len(a) * len(b))

    return np.mean([kernel(a, a) + kernel(b, b) - 2 * kernel(a, b) for a, b in combinations(pieces(z), 2)])


def irm(z, output, y):
    def slope(a, y):  # d/ds mean CE(s a, y) at s = 1
        return (softmax(a) * a).sum(axis=1).mean() - a[np.arange(len(y)), y].mean()

    pairs = zip(pieces(output), pieces(y), strict=True)
    return np.mean([slope(a[::2], t[::2]) * slope(a[1::2], t[1::2]) for a, t in pairs])


def vrex(z, output, y):
    return np.var([cross_entropy(a, t) for a, t in zip(pieces(output), pieces(y), strict=True)])


def bottleneck(z, output, y):
    return np.mean([p.var(axis=0, ddof=1).mean() for p in pieces(z)])


def coral_by_pairs(z, batch):
    """Compute all pairs of covariance matrices explicitly."""
    moments = [(part.mean(0), part.T.cov()) for part in batch.split(z)]
    gaps = [(a - b).pow(2).mean() + (c - e).pow(2).mean() for (a, c), (b, e) in combinations(moments, 2)]
    return torch.stack(gaps).mean()


@pytest.mark.parametrize("width", [2, 17, 18, 19, 64])  # 18 examples: both code paths
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_coral_equals_all_pairs_in_value_and_gradient(width, dtype):
    torch.manual_seed(width)
    batch = DomainBatch(torch.zeros(18, 1), torch.zeros(18), (0, 1, 2), SIZES)
    fast, slow = (torch.randn(18, width, dtype=dtype).add(3.0).requires_grad_() for _ in range(2))
    slow.data.copy_(fast.data)
    values = PENALTIES["coral"](fast, fast, batch, F.cross_entropy), coral_by_pairs(slow, batch)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(v, t)[0] for v, t in zip(values, (fast, slow), strict=True)))


CLOSED = {"coral": coral, "mmd": mmd, "irm": irm, "vrex": vrex, "bottleneck": bottleneck}


def test_every_penalty_has_its_closed_form_here():
    assert set(CLOSED) == set(PENALTIES)


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form(case, name):
    z, output, batch = case
    got = PENALTIES[name](z, output, batch, F.cross_entropy).item()
    assert got == pytest.approx(CLOSED[name](z, output, batch.y), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CLOSED)
def test_gradient_by_finite_differences(case, name):
    z, output, batch = case
    of = "z" if name in ("coral", "mmd", "bottleneck") else "output"

    def value(t):
        return PENALTIES[name](t if of == "z" else z, t if of == "output" else output, batch, F.cross_entropy)

    start = (z if of == "z" else output).clone().requires_grad_()
    assert torch.autograd.gradcheck(value, (start,), eps=1e-6, atol=1e-6)

"""Penalties compared with closed forms in numpy, and their gradients with finite differences."""

from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from holdfast.core.batch import DomainBatch
from holdfast.methods.penalties import GAMMAS, PENALTIES

SIZES = (6, 4, 8)


@pytest.fixture(params=[5, 17, 18, 19, 40])  # features of 18 examples: both code paths of CORAL
def case(request):
    torch.manual_seed(0)
    b, c = sum(SIZES), 3
    z = torch.randn(b, request.param, dtype=torch.float64) * (5 / request.param) ** 0.5
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

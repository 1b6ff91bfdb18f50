"""A-GEM: no applied gradient opposes that of the buffer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.methods.replay import AGEM, project
from tests.unit.methods.streams import (
    batch_of,
    begin,
    build,
)


def dot(a, b):
    return sum(float((x * y).double().sum()) for x, y in zip(a, b, strict=True) if x is not None and y is not None)


@given(seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_the_projection(seed):
    torch.manual_seed(seed)
    g, r = ([torch.randn(3, 2), torch.randn(5)] for _ in range(2))
    projected, is_projected = project(g, r)
    assert float(is_projected) == (dot(g, r) < 0)
    if dot(g, r) >= 0:
        assert all(torch.equal(a, b) for a, b in zip(projected, g, strict=True))
        return
    assert dot(projected, r) == pytest.approx(0.0, abs=1e-5)
    expected = [a - dot(g, r) / dot(r, r) * b for a, b in zip(g, r, strict=True)]
    for a, b in zip(projected, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_parameters_without_a_gradient():
    g, r = [torch.tensor([1.0]), None, torch.tensor([2.0])], [torch.tensor([-1.0]), torch.tensor([1.0]), None]
    projected, is_projected = project(g, r)
    assert float(is_projected) == 1.0
    assert [f.item() for f in projected] == [0.5, 0.5, 2.0]
    assert project([None, torch.ones(1)], [None, torch.ones(1)])[0][0] is None


def test_a_reference_of_zero_changes_nothing():
    g = [torch.tensor([1.0, -2.0])]
    projected, is_projected = project(g, [torch.zeros(2)])
    assert torch.equal(projected[0], g[0])
    assert float(is_projected) == 0.0


def test_applied_gradients_do_not_oppose_the_buffer():
    method = build(AGEM, capacity=16)
    begin(method, 0)
    for _ in range(30):
        assert float(method.step(batch_of(0))["projected"]) == 0.0
    method.end_stage([batch_of(0)])
    begin(method, 1)
    applied, inner = [], method.optimizer.apply_gradients
    method.optimizer.apply_gradients = lambda grads: applied.append(grads) or inner(grads)
    turned = []
    for _ in range(20):
        # the complete buffer is drawn, so the reference is known
        _, reference = method._gradient(method.memory.draw(16, "cpu"))
        metrics = method.step(batch_of(3))
        turned.append(float(metrics["projected"]))
        assert float(metrics["buffer"]) == 16.0
        assert dot(applied[-1], reference) >= -1e-4 * dot(reference, reference) ** 0.5
    assert sum(turned) > 0

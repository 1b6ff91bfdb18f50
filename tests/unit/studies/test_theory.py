"""Theorem 1: Monte Carlo against closed forms, a violated assumption, and the algebra of the proof."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import BadInput
from studies.theory import Expansion, change, disturbance, exact

CASES = {  # D = d = 50, sigma = 0.1: closed form of the disturbance with uniform attention
    (100, 50, None): 1 / 1200,
    (100, 100, None): 1 / 800,
    (1, 1, 1.0): 1 / 8,
    (1, 1, 100.0): 0.5 * (100 / 101) ** 2,
}


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "mass"), CASES)
def test_monte_carlo_matches_the_closed_form(old, new, mass):
    expansion = Expansion(old=old, new=new, mass=mass)
    assert expansion.bound == pytest.approx(0.25)
    assert exact(expansion) == pytest.approx(CASES[old, new, mass])
    estimate = disturbance(expansion, draws=2000)
    assert abs(estimate.hidden.value - 0.25) < 4 * estimate.hidden.error
    # random keys make the attention slightly uneven, which adds |h|^2 sigma^2, half a percent
    assert abs(estimate.memory.value - CASES[old, new, mass]) < 4 * estimate.memory.error + 0.01 * CASES[old, new, mass]
    assert 0 < estimate.memory.error < 0.02 * estimate.memory.value
    assert 0 < estimate.hidden.error < 0.02 * estimate.hidden.value


def test_memory_disturbs_less_unless_the_assumption_is_violated():
    met = disturbance(Expansion(old=1, new=1, mass=1.0), draws=1000)
    assert met.memory.value + 4 * met.memory.error < met.hidden.value - 4 * met.hidden.error
    assert met.assumed == 1
    violated = disturbance(Expansion(old=1, new=1, mass=100.0), draws=1000)
    assert violated.memory.value - 4 * violated.memory.error > violated.hidden.value + 4 * violated.hidden.error
    assert violated.assumed == 0
    # the assumption is sufficient, not necessary: with one slot each the bound is reached at 1 + sqrt 2
    edge = Expansion(old=1, new=1, mass=1 + math.sqrt(2))
    assert exact(edge) == pytest.approx(edge.bound)


@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
)
def test_algebra_of_the_proof(before, added):
    attention, old = np.array(before + added), len(before)
    beta, alpha = change(attention, old), attention / attention.sum()
    values = np.random.default_rng(0).normal(size=(len(attention), 3))
    content = alpha @ values - attention[:old] @ values[:old] / sum(before)
    np.testing.assert_allclose(beta @ values, content, atol=1e-9)
    assert abs(beta.sum()) < 1e-9
    rho = sum(added) / sum(before)
    np.testing.assert_allclose(beta[:old], -rho * alpha[:old])
    np.testing.assert_array_equal(beta[old:], alpha[old:])
    if abs(rho - 1) > 1e-9:
        assert (np.abs(beta) <= alpha * (1 + 1e-12)).all() == (rho < 1)
    assert (alpha**2).sum() <= 1 + 1e-12
    if rho <= 1:
        assert (beta**2).sum() <= (alpha**2).sum() * (1 + 1e-9)


def test_invalid_sizes_raise():
    for wrong in ({"old": 0}, {"new": 0}, {"width": 0}, {"sigma": 0.0}, {"mass": 0.0}):
        with pytest.raises(BadInput):
            Expansion(**{"old": 1, "new": 1, **wrong})
    with pytest.raises(BadInput, match=r"draws.*got 1"):
        disturbance(Expansion(old=1, new=1), draws=1)

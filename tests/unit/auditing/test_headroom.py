"""Headroom is the gap between in-domain and held-out accuracy; erasure removes what predicts the domain."""

import numpy as np
import pytest

from holdfast.auditing.audit import audit
from holdfast.auditing.erasure import ALIGNMENT, leace, measure_erasure
from holdfast.auditing.examples import Examples
from holdfast.auditing.headroom import shift_costs, stratified_interval
from holdfast.data.readers.in_memory import as_dataset
from holdfast.data.synthetic import world


def offsets(*, planted: bool, seed: int = 0, size: int = 300):
    """Vectors with a column that helps inside every domain and misleads on others, since its mean differs."""
    rng = np.random.default_rng(seed)
    domain = np.repeat(np.arange(4), size)
    y = rng.integers(2, size=4 * size)
    x = rng.normal(size=(4 * size, 6))
    x[:, :2] += (2 * y - 1)[:, None]
    if planted:
        x[:, 1] += np.asarray([0.0, 0.5, -0.5, 6.0])[domain]
    return as_dataset(x.astype(np.float32), y, [f"d{index}" for index in domain])


def sample(dataset, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.permutation(dataset.rows_of(name)) for name in dataset.domains}


def test_erased_features_are_uncorrelated_with_the_domain_and_change_least():
    rng = np.random.default_rng(0)
    z = rng.integers(3, size=900)
    x = rng.normal(size=(900, 5)) @ rng.normal(size=(5, 5)) + np.eye(3)[z] @ rng.normal(size=(3, 5))
    shares = np.bincount(z) / len(z)
    means = np.stack([x[z == i].mean(axis=0) for i in range(3)])
    centre, covariance = x.mean(axis=0), np.cov(x.T, bias=True)
    u, v = leace(centre, covariance, means, shares)
    erased = x - (x - centre) @ v @ u.T
    assert np.stack([erased[z == i].mean(axis=0) for i in range(3)]) == pytest.approx(np.tile(centre, (3, 1)))
    assert np.linalg.matrix_rank(u @ v.T, tol=1e-8) == 2  # no more directions than necessary
    assert u @ v.T @ u @ v.T == pytest.approx(u @ v.T)


def test_headroom_of_a_concept_shift_is_positive_and_zero_without_a_shift():
    shifted = world("vector", "rotation", domains=3, size=300)
    costs = shift_costs(Examples(shifted), sample(shifted))
    room = stratified_interval([cost.folds for cost in costs])
    assert room.low > 0
    assert room.mean == pytest.approx(np.mean([cost.inside - cost.outside for cost in costs]), abs=1e-6)
    equal = world("vector", "none", domains=3, size=300)
    null = stratified_interval([cost.folds for cost in shift_costs(Examples(equal), sample(equal))])
    assert null.low < 0.02
    assert abs(null.mean) < 0.03


def test_interval_treats_domains_as_fixed():
    far_apart = stratified_interval([[0.10, 0.11, 0.12], [0.50, 0.51, 0.52]])
    assert far_apart.mean == pytest.approx(0.31)
    assert far_apart.stderr == pytest.approx(np.hypot(0.01, 0.01) / np.sqrt(3) / 2)
    assert far_apart.positive
    assert stratified_interval([[0.1], [0.2]]) is None


def test_erasure_helps_exactly_where_the_domain_misleads():
    planted, plain = (offsets(planted=flag) for flag in (True, False))
    helped = measure_erasure(Examples(planted), sample(planted))
    assert helped.helps
    assert helped.domains[-1].erased - helped.domains[-1].plain > 0.1
    null = measure_erasure(Examples(plain), sample(plain))
    assert not null.helps
    two = world("vector", "rotation", domains=2, size=40)
    assert measure_erasure(Examples(two), sample(two)) is None


def test_audit_states_both_and_does_not_name_methods_that_erasure_contradicts():
    result = audit(offsets(planted=False), near=1.0)
    assert "no shift worth fighting" in result.headline
    assert "LEACE" in result.headline
    assert result.json()["erasure"]["gain"]["low"] <= result.json()["erasure"]["gain"]["high"]
    assert not set(result.advice[-1].split("methods=")[1].strip("')").split(",")) & set(ALIGNMENT)

"""Two-sample tests: calibrated without drift, sensitive with drift, corrected together."""

import numpy as np
import pytest

from holdfast.data.input_statistics import UNKNOWN, InputStatistics
from holdfast.monitor.drift import (
    Finding,
    compare_classes,
    compare_columns,
    compare_features,
    compare_shares,
    compare_values,
    corrected,
    discrepancy,
    median_distance,
)
from holdfast.uncertainty.reference import Columns


def sample(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)) + shift


def test_discrepancy_is_unbiased_and_grows_with_the_shift():
    reference = sample(200, 0)
    median = median_distance(reference)
    equal = [discrepancy(sample(100, seed), sample(100, seed + 100), median) for seed in range(1, 21)]
    assert abs(np.mean(equal)) < 0.01
    small, large = (discrepancy(sample(100, 1, shift), reference, median) for shift in (0.5, 1.5))
    assert 0.02 < small < large


def test_permutation_p_values_are_calibrated_and_find_a_shift():
    ps = []
    for seed in range(40):
        reference = sample(80, 1000 + seed)
        ps.append(compare_features(sample(60, seed), reference, seed=seed, median=median_distance(reference))[1])
    assert 0.3 < np.mean(ps) < 0.7
    assert np.mean(np.asarray(ps) < 0.1) < 0.25
    reference = sample(80, 7)
    value, p = compare_features(sample(60, 1, 0.8), reference, seed=0, median=median_distance(reference))
    assert 1e-12 <= p < 1e-4  # below the resolution of the permutations
    assert value == pytest.approx(discrepancy(sample(60, 1, 0.8), reference, median_distance(reference)))


def test_values_agree_with_scipy_and_quantiles_stand_for_the_sample():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=150), rng.normal(0.4, 1, size=400)
    result, expected = compare_values("x", one, other), ks_2samp(one, other, method="asymp")
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.p == pytest.approx(expected.pvalue, rel=0.5)
    coarse = compare_values("x", one, np.quantile(other, np.linspace(0, 1, 101)), size=400)
    assert coarse.statistic == pytest.approx(result.statistic, abs=0.02)
    assert compare_values("x", one[:5], other) is None


def test_rare_classes_are_counted_together():
    rng = np.random.default_rng(0)
    same = compare_classes(rng.integers(0, 50, 100), rng.integers(0, 50, 100), 50)
    assert same.p > 0.01
    changed = compare_classes(np.zeros(100, dtype=int), rng.integers(0, 2, 100), 2)
    assert changed.p < 1e-6


def test_columns_report_values_missing_values_and_new_categories():
    rng = np.random.default_rng(0)
    names = {"number_names": ("age",), "categories": (("sex", 2),)}
    before = InputStatistics(numbers=rng.normal(size=(300, 1)), codes=rng.integers(0, 2, (300, 1)), **names)
    columns = Columns.of(before, np.zeros(300, dtype=int), 1)
    assert columns is not None
    same = InputStatistics(numbers=rng.normal(size=(200, 1)), codes=rng.integers(0, 2, (200, 1)), **names)
    assert all(finding.p > 0.005 for finding in compare_columns(same, columns, 0))
    numbers, codes = rng.normal(1, 1, size=(200, 1)), rng.integers(0, 2, (200, 1))
    numbers[:40], codes[:30] = np.nan, UNKNOWN
    found = {each.name: each for each in compare_columns(InputStatistics(numbers=numbers, codes=codes), columns, 1)}
    assert found["column age"].p < 1e-6
    assert found["missing values of age"].value == pytest.approx(0.2)
    assert found["new categories of sex"].value == pytest.approx(0.15)
    assert found["new categories of sex"].p < 1e-6
    assert compare_columns(InputStatistics(), columns, 0) == []


def test_correction_gives_the_features_half_of_the_level():
    features = Finding("features", 1.0, None, None, 0.001)
    others = [Finding(str(p), 0.0, None, None, p) for p in (0.0001, 0.2)]
    results = corrected(features, others, level=0.005)
    assert [each.corrected for each in results] == pytest.approx([0.002, 0.0004, 0.4])
    assert [each.drifted for each in results] == [True, True, False]
    (alone,) = corrected(None, others[:1], level=0.005)
    assert alone.corrected == pytest.approx(0.0001)


def test_shares():
    result = compare_shares("foreign rows", (40, 100), (20, 400))
    assert result.value == pytest.approx(0.4)
    assert result.expected == pytest.approx(0.05)
    assert result.p < 1e-10

import math

import numpy as np
import pytest
from scipy import stats

from holdfast.core.errors import BadInput
from holdfast.stats.statistics import Cell, holm, interval, mcnemar, paired_t, pooled, summarise


def test_paired_t():
    result = paired_t([3.0, 4.0, 8.0], [1.0, 1.0, 1.0])  # differences 2, 3, 7
    assert result.difference == 4.0
    assert result.stdev == pytest.approx(math.sqrt(7))
    assert result.stderr == pytest.approx(math.sqrt(7 / 3))
    assert result.n == 3


def test_paired_t_equals_scipy():
    rng = np.random.default_rng(0)
    for n in (2, 5, 30):
        a, b = rng.normal(size=(2, n))
        expected = stats.ttest_rel(a, b)
        actual = paired_t(a.tolist(), b.tolist())
        assert (actual.t, actual.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))


@pytest.mark.parametrize("b", [[0.5, 0.6, 0.7], [0.4, 0.5, 0.6]], ids=["no difference", "equal differences"])
def test_differences_without_spread_have_no_p(b):
    result = paired_t([0.5, 0.6, 0.7], b)
    assert (result.t, result.p) == (None, None)
    assert result.difference == pytest.approx(0.5 - b[0])


def test_one_pair_has_no_p_and_unequal_lengths_raise():
    assert paired_t([1.0], [0.0]).p is None
    with pytest.raises(BadInput, match="3 and 2"):
        paired_t([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(BadInput, match="0 and 0"):
        paired_t([], [])


def test_mcnemar():
    # only a: 1; only b: 5; both: 2; none: 1
    a = [1] + [0] * 5 + [1, 1] + [0]
    b = [0] + [1] * 5 + [1, 1] + [0]
    result = mcnemar(a, b)
    assert (result.only_a, result.only_b) == (1, 5)
    assert result.p == pytest.approx(2 * (1 + 6) / 64)
    assert result.chi_square == pytest.approx(9 / 6)
    assert result.p_chi_square == pytest.approx(stats.chi2.sf(1.5, 1))
    assert result.p == pytest.approx(stats.binomtest(1, 6).pvalue)


def test_mcnemar_of_equal_systems():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p == 1.0
    even = mcnemar([1, 0], [0, 1])
    assert (even.p, even.chi_square) == (1.0, 0.0)


def test_correctness_must_be_boolean():
    with pytest.raises(BadInput, match="true or false"):
        mcnemar([0, 2], [0, 1])
    with pytest.raises(BadInput, match="2 and 1"):
        mcnemar([True, False], [True])


def test_holm():
    # sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .06, non-decreasing
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.01, None, 0.5]) == [0.02, None, 0.5]
    assert holm([]) == []


def test_mean_and_errors():
    cell = summarise([1.0, 2.0, 3.0, 4.0])
    assert cell.mean == 2.5
    assert cell.stdev == pytest.approx(math.sqrt(5 / 3))
    assert cell.stderr == pytest.approx(math.sqrt(5 / 3) / 2)
    assert cell.n == 4


def test_single_values_have_no_error():
    assert summarise([0.5]) == Cell(0.5, None, None, 1)
    assert interval([0.5]) is None


def test_equal_values_have_no_spread():
    assert summarise([0.1] * 3).stderr == 0.0
    assert interval([0.5, 0.5]) == (0.5, 0.5)


def test_interval_is_that_of_student():
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    half = 4.302653 / math.sqrt(3)  # t quantile at 97.5 % with 2 degrees of freedom, stdev 1
    assert (low, high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))
    narrow = interval([1.0, 2.0, 3.0], level=0.5) or (0.0, 9.0)
    assert low < narrow[0] < narrow[1] < high


def test_nan_stays_nan():
    assert math.isnan(summarise([0.5, math.nan]).mean)


def test_pooled_error():
    assert pooled(Cell(1, 3.0, 1, 2), Cell(2, 4.0, 1, 2)) == 5.0
    assert pooled(Cell(1, 3.0, 1, 2), Cell(2, None, None, 1)) is None

from __future__ import annotations

import math

import pytest

from holdfast.report.statistics import Cell, interval, pooled, summarise


def test_mean_and_errors_by_hand():
    cell = summarise([1.0, 2.0, 3.0, 4.0])
    assert cell.mean == 2.5
    assert cell.stdev == pytest.approx(math.sqrt(5 / 3))
    assert cell.stderr == pytest.approx(math.sqrt(5 / 3) / 2)
    assert cell.n == 4


def test_a_single_value_has_no_error():
    assert summarise([0.5]) == Cell(0.5, None, None, 1)
    assert interval([0.5]) is None


def test_equal_values_have_no_spread_even_where_rounding_would_make_one():
    assert summarise([0.1] * 3).stderr == 0.0
    assert interval([0.5, 0.5]) == (0.5, 0.5)


def test_interval_is_students():
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    half = 4.302653 / math.sqrt(3)  # t of 2 degrees at 97.5 %, stdev 1
    assert (low, high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))
    narrow = interval([1.0, 2.0, 3.0], level=0.5) or (0.0, 9.0)
    assert low < narrow[0] < narrow[1] < high


def test_nan_stays_nan():
    assert math.isnan(summarise([0.5, math.nan]).mean)


def test_pooled_error():
    assert pooled(Cell(1, 3.0, 1, 2), Cell(2, 4.0, 1, 2)) == 5.0
    assert pooled(Cell(1, 3.0, 1, 2), Cell(2, None, None, 1)) is None

from __future__ import annotations

import math

import pytest

from holdfast.report.streams import average, backward_transfer, forgetting, forward_transfer, learnt_at, transfers
from tests.unit.report.fake_records import leave_one_out, stream
from tests.unit.report.test_page import written

R = [
    [0.90, 0.50, 0.40],
    [0.70, 0.80, 0.55],
    [0.75, 0.85, 0.95],
]


def test_the_four_by_hand():
    assert average(R) == pytest.approx((0.75 + 0.85 + 0.95) / 3)
    assert backward_transfer(R) == pytest.approx((-0.15 + 0.05) / 2)
    assert forward_transfer(R, [0.5, 0.45, 0.50]) == pytest.approx((0.05 + 0.05) / 2)
    assert forgetting(R) == pytest.approx((0.15 - 0.05) / 2)


def test_forgetting_is_since_the_best_moment_not_since_learning():
    rose = [[0.6, 0.1, 0.1], [0.9, 0.8, 0.1], [0.7, 0.8, 0.9]]
    assert forgetting(rose) == pytest.approx((0.2 + 0.0) / 2)
    assert backward_transfer(rose) == pytest.approx((0.1 + 0.0) / 2)


def test_a_loss_is_turned_round():
    losses = [[-v for v in line] for line in R]
    assert average(losses) == pytest.approx(-0.85)
    assert backward_transfer(losses, lower_is_better=True) == pytest.approx(-0.05)
    assert forgetting(losses, lower_is_better=True) == pytest.approx(0.05)
    assert forward_transfer(losses, [-0.5, -0.45, -0.5], lower_is_better=True) == pytest.approx(0.05)


def test_one_stage_transfers_nothing_and_a_missing_score_is_not_guessed():
    assert average([[0.5]]) == 0.5
    assert backward_transfer([[0.5]]) is None
    assert forgetting([[0.5]]) is None
    assert forward_transfer([[0.5]], [0.1]) is None
    holes = [[0.9, math.nan], [math.nan, 0.8]]
    assert average(holes) is None
    assert backward_transfer(holes) is None
    early = [[0.9, math.nan, math.nan], [0.7, 0.8, math.nan], [0.7, 0.8, 0.9]]  # what is scored once it is learnt
    assert forgetting(early) == pytest.approx(0.1)
    assert forward_transfer(early, [0, 0, 0]) is None


def test_domains_learnt_together_and_domains_never_learnt():
    r = [[0.9, 0.8, 0.1, 0.3], [0.8, 0.9, 0.7, 0.3]]  # stage 0 learns the first two, the last is never learnt
    learnt = [0, 0, 1]
    assert average(r, learnt) == pytest.approx(0.8)
    assert backward_transfer(r, learnt) == pytest.approx(0.0)
    assert forgetting(r, learnt) == pytest.approx(0.0)
    assert forward_transfer(r, [0.0, 0.0, 0.05, 0.0], learnt) == pytest.approx(0.05)


def runs():
    names = ["z", "a", "m"]
    made = [dict(zip(names, line, strict=True)) for line in R]
    worse = [*made[:-1], {"z": 0.65, "a": 0.75, "m": 0.95}]
    return [stream("erm", 0, made, names), stream("erm", 1, worse, names)]


def test_records_in_the_order_they_were_learnt_over_seeds():
    assert learnt_at(runs()[0]) == [0, 1, 2]
    (found,) = transfers(runs(), "accuracy")
    assert found.backward is not None
    assert found.backward.mean == pytest.approx((-0.05 - 0.15) / 2)
    assert found.backward.n == 2
    assert found.forward is None
    (found,) = transfers(runs(), "accuracy", baseline=[0.5, 0.45, 0.5])
    assert found.forward is not None
    assert found.forward.mean == pytest.approx(0.05)
    assert transfers(leave_one_out(), "accuracy") == []


def test_the_page_tells_them(tmp_path):
    text = written(tmp_path, runs())
    assert "Transfer along the stream" in text
    assert "-10.0 ± 5.0" in text
    assert "10.0 ± 5.0" in text
    assert "Transfer along the stream" not in written(tmp_path, leave_one_out())

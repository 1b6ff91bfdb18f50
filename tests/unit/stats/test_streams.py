import math

import pytest

from holdfast.report.marks import Rule
from holdfast.report.streams import course_figures
from holdfast.stats.labels import grouped
from holdfast.stats.streams import (
    average,
    backward_transfer,
    courses,
    forgetting,
    forward_transfer,
    learned_at,
    transfers,
)
from tests.unit.report.drawing import SCRIPT, drawn
from tests.unit.report.fake_records import leave_one_out, stream
from tests.unit.report.test_page import written

R = [[0.90, 0.50, 0.40], [0.70, 0.80, 0.55], [0.75, 0.85, 0.95]]
ROSE = [[0.6, 0.1, 0.1], [0.9, 0.8, 0.1], [0.7, 0.8, 0.9]]  # forgetting starts from the best score
LOSSES = [[-v for v in line] for line in R]
LOWER = {"lower_is_better": True}
HOLES = [[0.9, math.nan], [math.nan, 0.8]]
EARLY = [[0.9, math.nan, math.nan], [0.7, 0.8, math.nan], [0.7, 0.8, 0.9]]
PAIR = [[0.9, 0.8, 0.1, 0.3], [0.8, 0.9, 0.7, 0.3]], [0, 0, 1]  # two domains at once, the last one is never learned


@pytest.mark.parametrize(
    ("function", "arguments", "options", "expected"),
    [
        (average, (R,), {}, 0.85),
        (backward_transfer, (R,), {}, (-0.15 + 0.05) / 2),
        (forward_transfer, (R, [0.5, 0.45, 0.50]), {}, (0.05 + 0.05) / 2),
        (forgetting, (R,), {}, (0.15 - 0.05) / 2),
        (forgetting, (ROSE,), {}, (0.2 + 0.0) / 2),
        (backward_transfer, (ROSE,), {}, (0.1 + 0.0) / 2),
        (average, (LOSSES,), {}, -0.85),
        (backward_transfer, (LOSSES,), LOWER, -0.05),
        (forgetting, (LOSSES,), LOWER, 0.05),
        (forward_transfer, (LOSSES, [-0.5, -0.45, -0.5]), LOWER, 0.05),
        (average, ([[0.5]],), {}, 0.5),
        (backward_transfer, ([[0.5]],), {}, None),
        (forgetting, ([[0.5]],), {}, None),
        (forward_transfer, ([[0.5]], [0.1]), {}, None),
        (average, (HOLES,), {}, None),
        (backward_transfer, (HOLES,), {}, None),
        (forgetting, (EARLY,), {}, 0.1),
        (forward_transfer, (EARLY, [0, 0, 0]), {}, None),
        (average, PAIR, {}, 0.8),
        (backward_transfer, PAIR, {}, 0.0),
        (forgetting, PAIR, {}, 0.0),
        (forward_transfer, (PAIR[0], [0.0, 0.0, 0.05, 0.0], PAIR[1]), {}, 0.05),
    ],
)
def test_transfer_and_forgetting(function, arguments, options, expected):
    assert function(*arguments, **options) == (None if expected is None else pytest.approx(expected))


def runs():
    names = ["z", "a", "m"]
    matrix = [dict(zip(names, line, strict=True)) for line in R]
    worse = [*matrix[:-1], {"z": 0.65, "a": 0.75, "m": 0.95}]
    return [stream("erm", 0, matrix, names), stream("erm", 1, worse, names)]


def test_transfers_of_records_over_seeds():
    assert learned_at(runs()[0]) == [0, 1, 2]
    (entry,) = transfers(grouped(runs()), "accuracy")
    assert entry.backward.mean == pytest.approx((-0.05 - 0.15) / 2)
    assert entry.backward.n == 2
    assert transfers(grouped(leave_one_out()), "accuracy") == []


def test_report_has_transfers(tmp_path):
    text = written(tmp_path, runs())
    assert "Transfer along the stream" in text
    assert "-10.0 ± 5.0" in text
    assert "10.0 ± 5.0" in text
    assert "Transfer along the stream" not in written(tmp_path, leave_one_out())


ERM = [
    stream("erm", 0, [{"z": 0.9, "a": 0.5}, {"z": 0.6, "a": 0.8}], ["z", "a"]),
    stream("erm", 1, [{"z": 0.7, "a": 0.3}, {"z": 0.6, "a": 0.8}], ["z", "a"]),
]
EWC = stream("ewc", 0, [{"z": 0.9}, {"z": 0.8, "a": 0.7, "b": 0.4}], ["z", "a"])


def test_courses_are_means_over_seeds_in_the_order_of_learning():
    ((z, a, b),) = courses(grouped([*ERM, EWC]), "accuracy")
    assert [(c.domain, c.stages, c.learned) for c in (z, a, b)] == [
        ("z", ("z", "a"), 0), ("a", ("z", "a"), 1), ("b", ("z", "a"), None),
    ]  # fmt: skip
    first, last = z.lines["erm"]
    assert (first.mean, first.stderr, last.mean) == (pytest.approx(0.8), pytest.approx(0.1), pytest.approx(0.6))
    assert a.lines["ewc"][0] is None  # not scored after the first stage
    assert list(b.lines) == ["ewc"]


def test_each_order_has_its_own_courses_and_other_plans_have_none():
    reverse = stream("si", 0, [{"z": 0.5, "a": 0.9}, {"z": 0.9, "a": 0.7}], ["a", "z"])
    one, other = courses(grouped([*ERM, reverse]), "accuracy")
    assert [c.domain for c in one] == ["z", "a"]
    assert [c.domain for c in other] == ["a", "z"]
    assert list(other[0].lines) == ["si"]
    assert course_figures(grouped(leave_one_out()), "accuracy") == []


def test_course_figures_have_means_errors_and_a_line_at_the_learning_stage():
    (order,) = course_figures(grouped([*ERM, EWC]), "accuracy")
    assert order["stages"] == ("z", "a")
    assert [(sign, label) for _, sign, label in order["legend"]] == [("●", "erm"), ("●", "ewc")]
    assert [domain for domain, _ in order["figures"]] == ["z", "a", "b"]
    z, a, b = (drawn(html) for _, html in order["figures"])
    assert (z.marks[0].x, z.marks[0].y) == ([1, 2], pytest.approx([80.0, 60.0]))
    assert z.marks[0].errors.above == pytest.approx([10.0, 0.0])
    assert (a.marks[1].x, a.marks[1].y) == ([2], pytest.approx([70.0]))  # starts with the first score
    assert [mark.name for mark in b.marks] == ["ewc"]
    assert b.marks[0].colour == z.marks[1].colour == order["legend"][1][0]
    assert (z.rules, a.rules) == ([], [Rule(1.5)])  # z is learned in the first stage


def test_all_domains_share_one_range_that_ignores_nan():
    run = stream("erm", 0, [{"z": 0.5, "a": float("nan")}, {"z": 0.5, "a": 0.5}], ["z", "a"])
    ((_, a),) = courses(grouped([run]), "accuracy")
    assert a.lines["erm"][0] is None
    one, other = (
        drawn(html).y.limits for _, html in course_figures(grouped([*ERM, EWC]), "accuracy")[0]["figures"][:2]
    )
    assert one == other == pytest.approx((30 - 4.8, 90 + 4.8))
    (figures,) = course_figures(grouped([run]), "accuracy")
    assert drawn(figures["figures"][0][1]).y.limits == pytest.approx((47.5, 52.5))  # padding around one value


def test_names_in_course_figures_are_escaped():
    run = stream(SCRIPT, 0, [{SCRIPT: 0.5}, {SCRIPT: 0.6, "a": 0.7}], [SCRIPT, "a"])
    (order,) = course_figures(grouped([run]), "accuracy")
    assert SCRIPT not in order["figures"][0][1]

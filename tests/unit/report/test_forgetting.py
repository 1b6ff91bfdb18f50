"""Scores on a domain as a stream goes on: means over seeds, orders apart, nothing where none was scored."""

import pytest

from holdfast.report.forgetting import courses, panels, reach
from holdfast.report.labels import grouped
from tests.unit.report.fake_records import leave_one_out, stream
from tests.unit.report.test_plots import WILD, figure

ERM = [
    stream("erm", 0, [{"z": 0.9, "a": 0.5}, {"z": 0.6, "a": 0.8}], ["z", "a"]),
    stream("erm", 1, [{"z": 0.7, "a": 0.3}, {"z": 0.6, "a": 0.8}], ["z", "a"]),
]
EWC = stream("ewc", 0, [{"z": 0.9}, {"z": 0.8, "a": 0.7, "b": 0.4}], ["z", "a"])


def test_means_over_seeds_by_domain_in_the_order_of_learning():
    ((z, a, b),) = courses(grouped([*ERM, EWC]), "accuracy")
    assert [(c.domain, c.stages, c.learnt) for c in (z, a, b)] == [
        ("z", ("z", "a"), 0), ("a", ("z", "a"), 1), ("b", ("z", "a"), None),
    ]  # fmt: skip
    first, last = z.lines["erm"]
    assert first is not None
    assert last is not None
    assert (first.mean, first.stderr, last.mean) == (pytest.approx(0.8), pytest.approx(0.1), pytest.approx(0.6))
    assert a.lines["ewc"][0] is None  # not scored then
    assert list(b.lines) == ["ewc"]


def test_each_order_has_its_own_pictures_and_other_plans_have_none():
    back = stream("si", 0, [{"z": 0.5, "a": 0.9}, {"z": 0.9, "a": 0.7}], ["a", "z"])
    one, other = courses(grouped([*ERM, back]), "accuracy")
    assert [c.domain for c in one] == ["z", "a"]
    assert [c.domain for c in other] == ["a", "z"]
    assert list(other[0].lines) == ["si"]
    assert panels(grouped(leave_one_out()), "accuracy") == []


def test_the_picture_has_means_errors_and_marks_when_it_was_learnt():
    (made,) = panels(grouped([*ERM, EWC]), "accuracy")
    assert made.stages == ("z", "a")
    assert [(sign, label) for _, sign, label in made.legend] == [("●", "erm"), ("●", "ewc")]
    assert [domain for domain, _ in made.pictures] == ["z", "a", "b"]
    (z, wide), (a, _), (b, _) = (figure(picture) for _, picture in made.pictures)
    assert (z[0]["x"], z[0]["y"]) == ([1, 2], pytest.approx([80.0, 60.0]))
    assert z[0]["error_y"]["array"] == pytest.approx([10.0, 0.0])
    assert (a[1]["x"], a[1]["y"]) == ([2], pytest.approx([70.0]))  # a line begins where it was scored
    assert [trace["name"] for trace in b] == ["ewc"]
    assert b[0]["line"]["color"] == z[1]["line"]["color"] == made.legend[1][0]
    assert "shapes" not in wide  # learnt from the start
    (line,) = figure(made.pictures[1][1])[1]["shapes"]
    assert (line["x0"], line["x1"]) == (1.5, 1.5)


def test_one_scale_for_all_domains_without_scores_that_are_no_numbers():
    wild = stream("erm", 0, [{"z": 0.5, "a": float("nan")}, {"z": 0.5, "a": 0.5}], ["z", "a"])
    ((z, a),) = courses(grouped([wild]), "accuracy")
    assert a.lines["erm"][0] is None
    assert reach([z, a], "accuracy") == (49.5, 50.5)  # room around one value
    low, high = reach(courses(grouped([*ERM, EWC]), "accuracy")[0], "accuracy")
    assert low == pytest.approx(30 - 4.8)  # 30 to 90
    assert high == pytest.approx(90 + 4.8)


def test_names_are_text():
    (made,) = panels(grouped([stream(WILD, 0, [{WILD: 0.5}, {WILD: 0.6, "a": 0.7}], [WILD, "a"])]), "accuracy")
    assert made.stages[0] == WILD  # the page escapes it
    assert WILD not in made.pictures[0][1]

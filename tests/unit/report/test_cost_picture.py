from __future__ import annotations

from holdfast.report.plots import cost_chart, front, points
from holdfast.report.table import costs, rows
from tests.unit.report.fake_records import COST, record
from tests.unit.report.test_plots import figure

MADE = {"quick": (1.0, 0.6), "slow": (9.0, 0.8), "beaten": (10.0, 0.7), "best": (20.0, 0.9)}
RECORDS = [record(name, 0, {"t": score}, cost={**COST, "seconds": s}) for name, (s, score) in MADE.items()]


def test_the_front_is_what_nobody_beats():
    found = points(rows(RECORDS, "accuracy"), costs(RECORDS))
    assert {label: (seconds, mean) for label, seconds, mean in found} == MADE
    assert [label for label, _, _ in front(found, "accuracy")] == ["quick", "slow", "best"]
    assert [label for label, _, _ in front(found, "nll")] == ["quick"]


def test_equal_costs_leave_the_better_one():
    assert front([("a", 1.0, 0.5), ("b", 1.0, 0.6), ("c", 2.0, 0.6)], "accuracy") == [("b", 1.0, 0.6)]


def test_the_chart_has_the_line_and_a_dot_for_each_that_is_shown():
    table = rows(RECORDS, "accuracy")
    made = cost_chart(table, costs(RECORDS), "accuracy", shown={"quick", "beaten", "best"})
    assert made is not None
    traces, layout = figure(made)
    assert traces[0]["x"] == [1.0, 10.0, 20.0]
    assert {t["meta"]: (t["x"], t["y"]) for t in traces[1:]} == {
        "quick": ([1.0], [60.0]), "beaten": ([10.0], [70.0]), "best": ([20.0], [90.0])
    }  # fmt: skip
    assert layout["xaxis"]["type"] == "log"
    assert cost_chart(table, costs(RECORDS), "accuracy", shown={"quick"}) is None

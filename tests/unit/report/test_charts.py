import pytest

from holdfast.report.charts import AVERAGE, scores_chart, validation_chart
from holdfast.report.plots import COLOURS
from holdfast.report.streams import stream_heatmap
from holdfast.stats.labels import grouped
from holdfast.stats.table import tabulate
from tests.unit.report.drawing import drawn
from tests.unit.report.fake_records import leave_one_out, record, stream


def test_scores_of_targets_and_average_with_errors():
    plot = drawn(scores_chart(tabulate(leave_one_out(), "accuracy").rows, "accuracy"))
    erm, mil = plot.marks
    assert (erm.name, mil.name) == ("erm", "mil")
    assert erm.x == ["books", "films", AVERAGE]
    assert erm.y == pytest.approx([85.0, 65.0, 75.0])
    assert mil.errors.above == pytest.approx([0.0, 5.0, 2.5])
    assert [mark.colour for mark in plot.marks] == list(COLOURS[:2])
    assert plot.y.title == "accuracy (%)"
    assert plot.y.limits == pytest.approx([57.6, 92.4])  # 60 to 90 with a padding of 8 %


def test_percent_axes_end_above_100():
    records = [record(name, 0, {"t": 1.0}) for name in ("erm", "coral")]
    plot = drawn(scores_chart(tabulate(records, "accuracy").rows, "accuracy"))
    assert plot.y.limits == (95.0, 101.0)


def test_more_methods_than_colours_differ_by_symbol():
    records = [record(f"m{i}", 0, {"t": 0.5}) for i in range(len(COLOURS) + 1)]
    plot = drawn(scores_chart(tabulate(records, "accuracy").rows, "accuracy"))
    assert len({(mark.colour, mark.symbol) for mark in plot.marks}) == len(records)


def test_a_domain_may_be_called_average():
    chart = scores_chart(tabulate([record("erm", 0, {"average": 0.5, "t": 0.7})], "accuracy").rows, "accuracy")
    assert drawn(chart).marks[0].x == ["average", "t", AVERAGE]
    assert "<span>average</span><span>t</span><span><b>average</b></span>" in chart


def test_validation_curves_are_means_over_runs():
    low = record("erm", 1, {"films": 0.5})
    low.stages[0]["history"][0]["valid"] = {"a": 0.1, "b": 0.3, "c": None}
    plot = drawn(validation_chart(grouped([record("erm", 0, {"films": 0.5}), low])))
    assert plot.marks[0].x == [10, 20]
    assert plot.marks[0].y == pytest.approx([35.0, 70.0])  # (.5 + .2) / 2
    assert plot.y.title == "validation accuracy (%)"


def test_validation_curves_restore_the_sign_of_losses():
    run = record("erm", 0, {"films": 0.5}, metric="nll")
    run.spec["metric"] = "nll"
    for check, value in zip(run.stages[0]["history"], (-2.5, -1.5), strict=True):
        check["valid"] = dict.fromkeys("ab", value)  # stored with higher is better
    plot = drawn(validation_chart(grouped([run])))
    assert list(plot.marks[0].y) == [2.5, 1.5]
    assert "nll" in plot.y.title


def test_validation_curves_end_with_the_shortest_run():
    short = record("erm", 1, {"films": 0.5})
    del short.stages[0]["history"][1]
    plot = drawn(validation_chart(grouped([record("erm", 0, {"films": 0.5}), short])))
    assert plot.marks[0].x == [10]


def test_steps_continue_over_the_stages_of_a_stream():
    plot = drawn(validation_chart(grouped([stream("erm", 0, [{"a": 0.1}, {"a": 0.2}], ["a", "b"])])))
    assert plot.marks[0].x == [10, 20, 30, 40]


def test_stream_heat_map_shows_the_score_matrix():
    run = stream("erm", 0, [{"z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    plot = drawn(stream_heatmap(run))
    assert plot.marks[0].x == ["z", "a"]
    assert plot.marks[0].y == ["1: z", "2: a"]
    assert plot.marks[0].z == [[90.0, None], [60.0, 80.0]]
    (shared,) = drawn(stream_heatmap(run, span=(0.5, 1.0))).marks
    assert (shared.low, shared.high) == (50.0, 100.0)
    assert plot.marks[0].text == [["90.0", ""], ["60.0", "80.0"]]


def test_stream_heat_map_marks_zero_shot_scores():
    run = stream("erm", 0, [{"z": 0.9, "a": 0.5, "b": 0.4}, {"z": 0.6, "a": 0.8, "b": 0.3}], ["z", "a"])
    plot = drawn(stream_heatmap(run))
    zero_shot = [(0, 1), (0, 2), (1, 2)]  # b is never learned
    assert plot.marks[0].early == zero_shot
    assert stream_heatmap(run).count('<rect class="early cell"') == len(zero_shot)

from __future__ import annotations

import pytest

from holdfast.report.charts import cost_chart, cost_points, pareto_front, scores_chart, validation_chart
from holdfast.report.plots import COLOURS
from holdfast.report.streams import stream_heatmap
from holdfast.stats.labels import grouped
from holdfast.stats.table import costs, tabulate
from holdfast.tasks.respond import Respond
from tests.unit.report.drawing import SCRIPT, figure
from tests.unit.report.fake_records import COST, leave_one_out, record, stream


def test_scores_of_targets_and_average_with_errors():
    traces, layout = figure(scores_chart(tabulate(leave_one_out(), "accuracy").rows, "accuracy"))
    assert [t["name"] for t in traces] == ["erm", "mil"]
    assert traces[0]["x"] == ["books", "films", "<b>average</b>"]
    assert traces[0]["y"] == pytest.approx([85.0, 65.0, 75.0])
    assert traces[1]["error_y"]["array"] == pytest.approx([0.0, 5.0, 2.5])
    assert [t["marker"]["color"] for t in traces] == list(COLOURS[:2])
    assert layout["yaxis"]["title"]["text"] == "accuracy (%)"
    assert layout["yaxis"]["range"] == pytest.approx([57.6, 92.4])  # 60 to 90 with a padding of 8 %


def test_percent_axes_end_above_100():
    records = [record(name, 0, {"t": 1.0}) for name in ("erm", "coral")]
    _, layout = figure(scores_chart(tabulate(records, "accuracy").rows, "accuracy"))
    assert layout["yaxis"]["range"] == [95.0, 101.0]


def test_html_excludes_plotly_and_is_deterministic():
    first, second = (scores_chart(tabulate(leave_one_out(), "accuracy").rows, "accuracy") for _ in range(2))
    assert first == second
    assert len(first) < 20_000
    assert "cdn" not in first


def test_more_methods_than_colours_differ_by_symbol():
    records = [record(f"m{i}", 0, {"t": 0.5}) for i in range(len(COLOURS) + 1)]
    traces, _ = figure(scores_chart(tabulate(records, "accuracy").rows, "accuracy"))
    marks = {(t["marker"]["color"], t["marker"]["symbol"]) for t in traces}
    assert len(marks) == len(records)


def test_names_are_escaped():
    html = scores_chart(tabulate([record(SCRIPT, 0, {SCRIPT: 0.5})], "accuracy").rows, "accuracy")
    assert SCRIPT not in html
    traces, _ = figure(html)
    assert traces[0]["name"] == "&lt;script&gt;alert(1)&lt;/script&gt;"


def test_quotes_in_names_are_not_escaped():
    traces, _ = figure(scores_chart(tabulate([record('erm ["a"]', 0, {"t": 0.5})], "accuracy").rows, "accuracy"))
    assert traces[0]["name"] == 'erm ["a"]'


def test_validation_curves_are_means_over_runs():
    low = record("erm", 1, {"films": 0.5})
    low.stages[0]["history"][0]["valid"] = {"a": 0.1, "b": 0.3, "c": None}
    traces, layout = figure(validation_chart(grouped([record("erm", 0, {"films": 0.5}), low])))
    assert traces[0]["x"] == [10, 20]
    assert traces[0]["y"] == pytest.approx([35.0, 70.0])  # (.5 + .2) / 2
    assert layout["yaxis"]["title"]["text"] == "validation accuracy (%)"


def test_validation_curves_restore_the_sign_of_losses():
    run = record("erm", 0, {"films": 0.5}, metric="nll")
    run.spec["metric"] = "nll"
    for check, value in zip(run.stages[0]["history"], (-2.5, -1.5), strict=True):
        check["valid"] = dict.fromkeys("ab", value)  # stored with higher is better
    traces, layout = figure(validation_chart(grouped([run])))
    assert list(traces[0]["y"]) == [2.5, 1.5]
    assert "nll" in layout["yaxis"]["title"]["text"]


def test_validated_metric_is_that_of_the_task():
    task = Respond()
    for metric in task.metrics:
        run = record("erm", 0, {"films": 0.5})
        run.spec.update(task="respond", metric=metric)
        assert run.validated == task.validation_metric(metric)


def test_validation_curves_end_with_the_shortest_run():
    short = record("erm", 1, {"films": 0.5})
    del short.stages[0]["history"][1]
    traces, _ = figure(validation_chart(grouped([record("erm", 0, {"films": 0.5}), short])))
    assert traces[0]["x"] == [10]


def test_steps_continue_over_the_stages_of_a_stream():
    traces, _ = figure(validation_chart(grouped([stream("erm", 0, [{"a": 0.1}, {"a": 0.2}], ["a", "b"])])))
    assert traces[0]["x"] == [10, 20, 30, 40]


def test_stream_heat_map_shows_the_score_matrix():
    run = stream("erm", 0, [{"z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    traces, _ = figure(stream_heatmap(run))
    assert traces[0]["x"] == ["z", "a"]
    assert traces[0]["y"] == ["1: z", "2: a"]
    assert traces[0]["z"] == [[90.0, None], [60.0, 80.0]]
    shared, _ = figure(stream_heatmap(run, span=(0.5, 1.0)))
    assert (shared[0]["zmin"], shared[0]["zmax"]) == (50.0, 100.0)
    assert traces[0]["text"] == [["90.0", ""], ["60.0", "80.0"]]


def test_stream_heat_map_marks_zero_shot_scores():
    run = stream("erm", 0, [{"z": 0.9, "a": 0.5, "b": 0.4}, {"z": 0.6, "a": 0.8, "b": 0.3}], ["z", "a"])
    traces, layout = figure(stream_heatmap(run))
    assert traces[0]["text"] == [["90.0", "<i>50.0</i>", "<i>40.0</i>"], ["60.0", "80.0", "<i>30.0</i>"]]
    frames = {((f["x0"] + f["x1"]) / 2, (f["y0"] + f["y1"]) / 2) for f in layout["shapes"]}
    assert frames == {(1, 0), (2, 0), (2, 1)}  # b is never learned


MEASURED = {"quick": (1.0, 0.6), "slow": (9.0, 0.8), "beaten": (10.0, 0.7), "best": (20.0, 0.9)}
TIMED = [record(name, 0, {"t": score}, cost={**COST, "seconds": s}) for name, (s, score) in MEASURED.items()]


def test_pareto_front_has_the_points_that_no_other_beats():
    points = cost_points(tabulate(TIMED, "accuracy").rows, costs(grouped(TIMED)))
    assert {label: (seconds, mean) for label, seconds, mean in points} == MEASURED
    assert [label for label, _, _ in pareto_front(points, "accuracy")] == ["quick", "slow", "best"]
    assert [label for label, _, _ in pareto_front(points, "nll")] == ["quick"]
    assert pareto_front([("a", 1.0, 0.5), ("b", 1.0, 0.6), ("c", 2.0, 0.6)], "accuracy") == [("b", 1.0, 0.6)]


def test_cost_chart_has_the_front_and_one_point_per_shown_method():
    table = tabulate(TIMED, "accuracy").rows
    html = cost_chart(table, costs(grouped(TIMED)), "accuracy", shown={"quick", "beaten", "best"})
    assert html is not None
    traces, layout = figure(html)
    assert traces[0]["x"] == [1.0, 10.0, 20.0]
    assert {t["meta"]: (t["x"], t["y"]) for t in traces[1:]} == {
        "quick": ([1.0], [60.0]), "beaten": ([10.0], [70.0]), "best": ([20.0], [90.0])
    }  # fmt: skip
    assert layout["xaxis"]["type"] == "log"
    assert cost_chart(table, costs(grouped(TIMED)), "accuracy", shown={"quick"}) is None

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast.report.plots import COLOURS, curves, scores_chart, stream_heatmap
from holdfast.report.table import rows
from holdfast.tasks.respond import Respond
from tests.unit.report.fake_records import leave_one_out, record, stream

WILD = "<script>alert(1)</script>"


def figure(fragment: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The traces and the layout that plotly.js gets."""
    start = re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*', fragment)
    assert start is not None
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(fragment, start.end())
    layout, _ = decoder.raw_decode(fragment, fragment.index("{", end))
    return traces, layout


def test_scores_have_targets_average_and_errors():
    traces, layout = figure(scores_chart(rows(leave_one_out(), "accuracy"), "accuracy"))
    assert [t["name"] for t in traces] == ["erm", "mil"]
    assert traces[0]["x"] == ["books", "films", "<b>average</b>"]
    assert traces[0]["y"] == pytest.approx([85.0, 65.0, 75.0])
    assert traces[1]["error_y"]["array"] == pytest.approx([0.0, 5.0, 2.5])
    assert [t["marker"]["color"] for t in traces] == list(COLOURS[:2])
    assert layout["yaxis"]["title"]["text"] == "accuracy (%)"
    assert layout["yaxis"]["range"] == pytest.approx([57.6, 92.4])  # 60 to 90, and 8 % of that around


def test_an_axis_of_percent_ends_a_little_above_100():
    made = [record(name, 0, {"t": 1.0}) for name in ("erm", "coral")]
    _, layout = figure(scores_chart(rows(made, "accuracy"), "accuracy"))
    assert layout["yaxis"]["range"] == [95.0, 101.0]


def test_fragments_leave_plotly_out_and_are_the_same_each_time():
    first, second = (scores_chart(rows(leave_one_out(), "accuracy"), "accuracy") for _ in range(2))
    assert first == second
    assert len(first) < 20_000
    assert "cdn" not in first


def test_more_methods_than_colours_differ_by_symbol():
    made = [record(f"m{i}", 0, {"t": 0.5}) for i in range(len(COLOURS) + 1)]
    traces, _ = figure(scores_chart(rows(made, "accuracy"), "accuracy"))
    marks = {(t["marker"]["color"], t["marker"]["symbol"]) for t in traces}
    assert len(marks) == len(made)


def test_names_are_text_in_pictures():
    fragment = scores_chart(rows([record(WILD, 0, {WILD: 0.5})], "accuracy"), "accuracy")
    assert WILD not in fragment
    traces, _ = figure(fragment)
    assert traces[0]["name"] == "&lt;script&gt;alert(1)&lt;/script&gt;"


def test_quotes_in_names_are_shown_as_quotes():
    traces, _ = figure(scores_chart(rows([record('erm ["a"]', 0, {"t": 0.5})], "accuracy"), "accuracy"))
    assert traces[0]["name"] == 'erm ["a"]'


def test_curves_are_means_over_runs():
    low = record("erm", 1, {"films": 0.5})
    low.stages[0]["history"][0]["valid"] = {"a": 0.1, "b": 0.3, "c": None}
    traces, layout = figure(curves([record("erm", 0, {"films": 0.5}), low]))
    assert traces[0]["x"] == [10, 20]
    assert traces[0]["y"] == pytest.approx([35.0, 70.0])  # (.5 + .2) / 2
    assert layout["yaxis"]["title"]["text"] == "validation accuracy (%)"


def test_curves_of_what_should_be_low_are_of_true_values():
    made = record("erm", 0, {"films": 0.5}, metric="nll")
    made.spec["metric"] = "nll"
    for check, value in zip(made.stages[0]["history"], (-2.5, -1.5), strict=True):
        check["valid"] = dict.fromkeys("ab", value)  # as the loop writes them: higher is better
    traces, layout = figure(curves([made]))
    assert list(traces[0]["y"]) == [2.5, 1.5]
    assert "nll" in layout["yaxis"]["title"]["text"]


def test_curves_of_answers_are_of_what_was_looked_at():
    task = Respond()
    for metric in task.metrics:
        made = record("erm", 0, {"films": 0.5})
        made.spec.update(task="respond", metric=metric)
        assert made.validated == task.validation_metric(metric)


def test_curves_keep_to_steps_all_runs_reached():
    short = record("erm", 1, {"films": 0.5})
    del short.stages[0]["history"][1]
    traces, _ = figure(curves([record("erm", 0, {"films": 0.5}), short]))
    assert traces[0]["x"] == [10]


def test_a_stream_goes_on_counting_steps():
    traces, _ = figure(curves([stream("erm", 0, [{"a": 0.1}, {"a": 0.2}], ["a", "b"])]))
    assert traces[0]["x"] == [10, 20, 30, 40]


def test_heatmap_shows_the_r_matrix():
    made = stream("erm", 0, [{"z": 0.9}, {"a": 0.8, "z": 0.6}], ["z", "a"])
    traces, _ = figure(stream_heatmap(made))
    assert traces[0]["x"] == ["z", "a"]
    assert traces[0]["y"] == ["1: z", "2: a"]
    assert traces[0]["z"] == [[90.0, None], [60.0, 80.0]]
    shared, _ = figure(stream_heatmap(made, span=(0.5, 1.0)))
    assert (shared[0]["zmin"], shared[0]["zmax"]) == (50.0, 100.0)
    assert traces[0]["text"] == [["90.0", ""], ["60.0", "80.0"]]


def test_heatmap_marks_what_was_scored_before_it_was_learnt():
    made = stream("erm", 0, [{"z": 0.9, "a": 0.5, "b": 0.4}, {"z": 0.6, "a": 0.8, "b": 0.3}], ["z", "a"])
    traces, layout = figure(stream_heatmap(made))
    assert traces[0]["text"] == [["90.0", "<i>50.0</i>", "<i>40.0</i>"], ["60.0", "80.0", "<i>30.0</i>"]]
    frames = {((f["x0"] + f["x1"]) / 2, (f["y0"] + f["y1"]) / 2) for f in layout["shapes"]}
    assert frames == {(1, 0), (2, 0), (2, 1)}  # b is never learnt

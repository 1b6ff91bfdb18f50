"""Figures as inline SVG: axes, marks, tooltips and text alternatives."""

import re

import pytest
from markupsafe import Markup

from holdfast.report.axes import Axis, label, number
from holdfast.report.marks import Bars, Points, Rule, contour_lines, shades
from holdfast.report.plots import Plot, heatmap, series
from tests.unit.report.drawing import SCRIPT


def labels(axis: Axis) -> list[str]:
    return [text for _, text in axis.placed()]


def across(*values, cells=False, zero=False, **settings) -> Axis:
    return Axis(**settings).fit(values, vertical=False, cells=cells, zero=zero)


def up(*values, zero=False, **settings) -> Axis:
    return Axis(**settings).fit(values, vertical=True, zero=zero)


def test_linear_axes_have_round_ticks_and_padding():
    axis = across(10.0, 20.0)
    assert (axis.first, axis.last) == (9.5, 20.5)
    assert labels(axis) == ["10", "12", "14", "16", "18", "20"]
    assert axis.at(15.0) == pytest.approx(0.5)
    assert labels(up(limits=(0, 2.05))) == ["0", "0.5", "1", "1.5", "2"]


def test_vertical_axes_start_at_the_bottom_unless_reversed():
    assert up(limits=(0, 10)).at(10) == 0
    assert up("a", "b").at("a") == pytest.approx(0.75)
    assert up("a", "b", reverse=True).at("a") == pytest.approx(0.25)


def test_ranges_start_at_zero_on_request():
    assert Axis(zero=True).fit([2.0, 4.0], vertical=True).first == 0
    assert up(2.0, 4.0, zero=True).first == 0
    assert up(-1.0, 4.0, zero=True).first < -1
    assert (up().first, up(3.0).first) == (0.0, pytest.approx(2.85))


def test_categories_keep_their_order_and_long_axes_show_some():
    assert labels(across("a", "b", names=["b", "a"])) == ["b", "a"]
    assert labels(across(*(f"c{i}" for i in range(30)))) == [f"c{i}" for i in range(0, 30, 3)]
    assert labels(up("a", "b", ticks=[("a", "short")])) == ["short"]


def test_texts_are_escaped_once_and_bold_stays():
    assert label(SCRIPT) == "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert label("a &amp; b") == "a &amp;amp; b"
    assert label(Markup("<b>average</b>")) == "<b>average</b>"
    assert number(-0.5) == "\N{MINUS SIGN}0.5"
    named = Points([SCRIPT], [1], SCRIPT, name=SCRIPT, owner=SCRIPT)
    assert SCRIPT not in Plot(named, named, x=Axis(SCRIPT), y=Axis(SCRIPT)).html(SCRIPT, height=200)
    assert SCRIPT not in heatmap([[1.0]], [SCRIPT], [SCRIPT], "{x}{y}{text}", text=[[SCRIPT]]).html("x", height=200)


def test_points_have_positions_tooltips_error_bars_and_an_owner():
    marks = series("erm", 0, [("a", 50.0, 5.0, ", a: 50.0"), ("b", 100.0, 0.0, ", b: 100.0")], lines=True)
    chart = Plot(marks, y=Axis(limits=(0, 100))).html("scores", height=270, legend=False)
    assert re.findall(r'<circle cx="(\S+)" cy="(\S+)"', chart) == [("25%", "100"), ("75%", "0")]
    assert re.findall(r"<title>(.*?)</title>", chart) == ["erm, a: 50.0", "erm, b: 100.0"]
    assert 'd="M0 90V110' in chart  # 45 to 55 of 100 on 200 pixels
    assert chart.count('class="mark"') == 1  # an error of zero is not drawn
    assert '<g data-label="erm">' in chart
    assert 'd="M250 100L750 0"' in chart
    assert chart.description == "erm, a: 50.0; erm, b: 100.0"


def test_missing_values_leave_out_the_point():
    chart = Plot(Points([1, 2, 3], [1.0, None, float("nan")])).html("x", height=200)
    assert chart.count("<circle") == 1


def test_many_equal_texts_are_counted():
    assert Plot(Points([1, 2], [1, 2], "target")).html("x", height=200).description == "2 points, target"


def test_bars_are_grouped_and_the_dotted_line_marks_the_even_share():
    bars = [Bars(["x", "y"], heights, name=name) for name, heights in (("a", [1.0, 0.5]), ("b", [0.5, 1.0]))]
    chart = Plot(*bars, y=Axis(limits=(0, 1)), rules=[Rule(y=0.5)]).html("bars", height=170)
    bars = re.findall(r'<rect x="(\S+)%" width="(\S+)%" y="(\S+)" height="(\S+)"', chart)
    low, high = ("50", "50"), ("0", "100")  # top and height
    assert bars == [("5", "20", *high), ("55", "20", *low), ("25", "20", *low), ("75", "20", *high)]
    assert 'd="M0 50L1000 50"' in chart
    assert re.sub(r"<[^>]+>", "", re.search(r'<div class="names">(.*?)</div>', chart)[1]) == "■ a ■ b"


def test_heat_maps_have_numbers_or_an_image():
    figure = heatmap([[0.0, 1.0], [None, 0.5]], ["a", "b"], ["one", "two"], "{y}, {x}: {z:.1f}")
    chart = figure.html("map", height=170)
    assert re.findall(r"<text[^>]*>(.*?)</text>", chart) == ["0.00", "1.00", "0.50"]
    assert re.findall(r"<title>(.*?)</title>", chart)[:2] == ["one, a: 0.0", "one, b: 1.0"]
    assert 'fill="rgb(244, 248, 251)"' in chart
    names = [str(i) for i in range(40)]
    chart = heatmap([[0.0] * 40] * 40, names, names, "{z}").html("large", height=170)
    assert chart.count("<rect") == 0
    assert chart.count("data:image/png;base64,") == 1


def test_colours_are_interpolated_between_their_stops():
    colour = shades([(0.0, "#000000"), (0.5, "#0000ff"), (0.5, "#ff0000"), (1.0, "#ff0000")], 0.0, 10.0)
    assert [colour(value) for value in (-5.0, 2.5, 5.0, 20.0)] == [(0, 0, 0), (0, 0, 128), (255, 0, 0), (255, 0, 0)]


def test_contours_cross_the_edges_where_the_level_lies():
    assert list(contour_lines([[0.0, 1.0], [0.0, 1.0]], 0.25)) == [((0.25, 0.0), (0.25, 1.0))]
    assert list(contour_lines([[0.0, 0.0], [0.0, 0.0]], 0.25)) == []
    assert len(list(contour_lines([[1.0, 0.0], [0.0, 1.0]], 0.5))) == 2


def test_reference_lines_span_the_plot():
    points = Points([0.0, 10.0], [0.0, 1.0])
    assert 'd="M500 100L500 0"' in Plot(points, x=Axis(limits=(0, 10)), rules=[Rule(5)]).html("x", height=170)


def test_points_of_one_series_may_have_different_sizes():
    chart = Plot(Points([1, 2], [1, 2], colour="red", size=[6, 10])).html("points", height=200)
    assert re.findall(r' r="(\d+)" fill="red"', chart) == ["3", "5"]

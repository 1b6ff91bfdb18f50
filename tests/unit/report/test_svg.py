"""Charts as inline SVG: axes, marks, tooltips and text alternatives."""

import re

import plotly.graph_objects as go
import pytest

from holdfast.report.axes import Axis, label, number
from holdfast.report.grids import contour_lines, shades
from holdfast.report.plots import DOTTED, add_series, grouped_bars, heatmap, to_html
from holdfast.report.tooltips import fill_template
from tests.unit.report.drawing import SCRIPT


def labels(axis: Axis) -> list[str]:
    return [text for _, text in axis.ticks()]


def test_linear_axes_have_round_ticks_and_padding():
    axis = Axis({}, [10.0, 20.0], vertical=False)
    assert (axis.first, axis.last) == (9.5, 20.5)
    assert labels(axis) == ["10", "12", "14", "16", "18", "20"]
    assert axis.at(15.0) == pytest.approx(0.5)
    assert labels(Axis({"range": [0, 2.05], "dtick": 0.5}, [], vertical=True)) == ["0", "0.5", "1", "1.5", "2"]
    assert labels(Axis({"range": [0.7, 4.3], "dtick": 1, "tick0": 1}, [], vertical=False)) == ["1", "2", "3", "4"]


def test_vertical_axes_start_at_the_bottom_unless_reversed():
    assert Axis({"range": [0, 10]}, [], vertical=True).at(10) == 0
    names = ["a", "b"]
    assert Axis({}, names, vertical=True).at("a") == pytest.approx(0.75)
    assert Axis({"autorange": "reversed"}, names, vertical=True).at("a") == pytest.approx(0.25)


def test_ranges_start_at_zero_on_request():
    assert Axis({"rangemode": "tozero"}, [2.0, 4.0], vertical=True).first == 0
    assert Axis({}, [2.0, 4.0], vertical=True, zero=True).first == 0
    assert Axis({}, [-1.0, 4.0], vertical=True, zero=True).first < -1
    assert (Axis({}, [], vertical=True).first, Axis({}, [3.0], vertical=True).first) == (0.0, pytest.approx(2.85))


def test_logarithmic_axes_have_ticks_at_one_two_and_five():
    axis = Axis({"type": "log"}, [1.0, 20.0], vertical=False)
    assert labels(axis) == ["1", "2", "5", "10", "20"]
    assert axis.at(10.0) - axis.at(1.0) == pytest.approx(2 * (axis.at(10.0**0.5) - axis.at(1.0)))
    assert labels(Axis({"type": "log"}, [1.0, 1e6], vertical=False)) == [
        "1",
        "10",
        "100",
        "1000",
        "10000",
        "100000",
        "1,000,000",
    ]


def test_categories_keep_their_order_and_long_axes_show_some():
    ordered = Axis({"categoryorder": "array", "categoryarray": ["b", "a"]}, ["a", "b"], vertical=False)
    assert labels(ordered) == ["b", "a"]
    many = Axis({}, [f"c{i}" for i in range(30)], vertical=False)
    assert labels(many) == [f"c{i}" for i in range(0, 30, 3)]
    shown = Axis({"tickvals": ["a"], "ticktext": ["short"]}, ["a", "b"], vertical=True)
    assert labels(shown) == ["short"]


def test_texts_are_escaped_once_and_bold_stays():
    assert label(SCRIPT) == label("&lt;script&gt;alert(1)&lt;/script&gt;") == "&lt;script&gt;alert(1)&lt;/script&gt;"
    assert label("<b>a &amp; b</b>") == "<b>a &amp; b</b>"
    assert number(-0.5) == "\N{MINUS SIGN}0.5"
    chart = to_html(go.Figure(go.Scatter(x=[SCRIPT], y=[1], name=SCRIPT, meta=SCRIPT)), "x", height=200)
    assert SCRIPT not in chart


def test_templates_have_formats_and_parts_of_lists():
    values = {"x": "films", "y": 0.12345, "customdata": ["a", 3], "fullData.name": "<b>erm</b>"}
    template = "%{fullData.name}, %{x}: %{y:.3~f} of %{customdata[1]}<br>%{y:.2f}<extra></extra>"
    assert fill_template(template, values) == "erm, films: 0.123 of 3\n0.12"
    assert fill_template("%{y:.3~f}", {"y": 2.0}) == "2"


def test_points_have_positions_tooltips_error_bars_and_an_owner():
    figure = go.Figure()
    add_series(figure, "erm", 0, ["a", "b"], [50.0, 100.0], errors=[5.0, 0.0], hover=", %{x}: %{y:.1f}", lines=True)
    figure.update_yaxes(range=[0, 100])
    chart = to_html(figure, "scores", height=270, legend=False)
    assert re.findall(r'<circle cx="(\S+)" cy="(\S+)"', chart) == [("25%", "100"), ("75%", "0")]
    assert re.findall(r"<title>(.*?)</title>", chart) == ["erm, a: 50.0", "erm, b: 100.0"]
    assert 'd="M0 90V110' in chart  # 45 to 55 of 100 on 200 pixels
    assert chart.count('class="mark"') == 1  # an error of zero is not drawn
    assert '<g data-label="erm">' in chart
    assert 'd="M250 100L750 0"' in chart
    assert chart.description == "erm, a: 50.0; erm, b: 100.0"


def test_missing_values_leave_out_the_point():
    chart = to_html(go.Figure(go.Scatter(x=[1, 2, 3], y=[1.0, None, float("nan")], mode="markers")), "x", height=200)
    assert chart.count("<circle") == 1


def test_bars_are_grouped_and_the_dotted_line_marks_the_even_share():
    figure = grouped_bars([("a", [1.0, 0.5], {}), ("b", [0.5, 1.0], {})], ["x", "y"], even=0.5)
    figure.update_yaxes(range=[0, 1])
    chart = to_html(figure, "bars", height=170)
    bars = re.findall(r'<rect x="(\S+)%" width="(\S+)%" y="(\S+)" height="(\S+)"', chart)
    low, high = ("50", "50"), ("0", "100")  # top and height
    assert bars == [("5", "20", *high), ("55", "20", *low), ("25", "20", *low), ("75", "20", *high)]
    assert 'd="M0 50L1000 50"' in chart
    assert re.sub(r"<[^>]+>", "", re.search(r'<div class="names">(.*?)</div>', chart)[1]) == "■ a ■ b"


def test_heat_maps_have_numbers_or_an_image():
    figure = heatmap([[0.0, 1.0], [None, 0.5]], ["a", "b"], ["one", "two"], hover="%{y}, %{x}: %{z:.1f}")
    chart = to_html(figure, "map", height=170)
    assert re.findall(r"<text[^>]*>(.*?)</text>", chart) == ["0.00", "1.00", "0.50"]
    assert re.findall(r"<title>(.*?)</title>", chart)[:2] == ["one, a: 0.0", "one, b: 1.0"]
    assert 'fill="rgb(244, 248, 251)"' in chart
    large = go.Figure(go.Heatmap(z=[[0.0] * 40] * 40, colorscale="Inferno", hovertemplate="%{z}<extra></extra>"))
    chart = to_html(large, "large", height=170)
    assert chart.count("<rect") == 0
    assert chart.count("data:image/png;base64,") == 1
    assert chart.description == "40 by 40 cells"


def test_colours_are_interpolated_between_their_stops():
    colour = shades([(0.0, "#000000"), (0.5, "#0000ff"), (0.5, "#ff0000"), (1.0, "#ff0000")], 0.0, 10.0)
    assert [colour(value) for value in (-5.0, 2.5, 5.0, 20.0)] == [(0, 0, 0), (0, 0, 128), (255, 0, 0), (255, 0, 0)]


def test_contours_cross_the_edges_where_the_level_lies():
    assert list(contour_lines([[0.0, 1.0], [0.0, 1.0]], 0.25)) == [((0.25, 0.0), (0.25, 1.0))]
    assert list(contour_lines([[0.0, 0.0], [0.0, 0.0]], 0.25)) == []
    assert len(list(contour_lines([[1.0, 0.0], [0.0, 1.0]], 0.5))) == 2


def test_reference_lines_span_the_plot():
    figure = go.Figure(go.Scatter(x=[0.0, 10.0], y=[0.0, 1.0], mode="markers"))
    figure.update_xaxes(range=[0, 10])
    figure.add_vline(x=5, line=DOTTED)
    assert 'd="M500 100L500 0"' in to_html(figure, "x", height=170)


def test_images_from_other_sources_are_not_shown():
    figure = go.Figure(go.Scatter(x=[0], y=[0]))
    figure.add_layout_image(source="https://example.org/x.png", x=0, y=0, sizex=1, sizey=1)
    assert "example.org" not in to_html(figure, "x", height=100, bare=True)


def test_points_of_one_series_may_have_different_markers():
    figure = go.Figure()
    marker = {"size": [6, 10], "symbol": ["circle", "circle-open"], "color": ["red", "blue"]}
    figure.add_scatter(x=[1, 2], y=[1, 2], mode="markers", marker=marker)
    small, large = re.findall(r"<circle [^>]*>", str(to_html(figure, "points", height=200)))
    assert 'r="3"' in small
    assert 'fill="red"' in small
    assert 'r="5"' in large
    assert 'stroke="blue"' in large

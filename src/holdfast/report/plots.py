"""Plot style of the report and helpers that turn plotly figures into HTML with inline SVG."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from holdfast.report import svg
from holdfast.report.tooltips import describe

# the palette of Okabe and Ito without black and yellow; each cycle of colours has its own symbol and dash
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
SIGNS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "x": "✕"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SHADES = ((0.0, "#f4f8fb"), (1.0, "#4a9bd1"))  # light enough for dark numbers on every shade
DARK = "#14181d"
DOTTED = {"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"}  # reference lines


class Chart(Markup):
    """HTML of a figure, with the traces and the layout that it was drawn from."""

    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    description: str  # text alternative


def style(index: int) -> tuple[str, str, str]:
    """Return colour, symbol and dash of the method at this index; they are equal in all figures of a report."""
    cycle = index // len(COLOURS)
    return COLOURS[index % len(COLOURS)], SYMBOLS[cycle % len(SYMBOLS)], DASHES[cycle % len(DASHES)]


def legend(labels: Iterable[str], shown: Iterable[str] | None = None) -> list[tuple[str, str, str]]:
    """Return (colour, sign, label) per method; `shown` limits the entries, the order of `labels` sets the style."""
    labels = list(labels)
    wanted = set(labels if shown is None else shown)
    styles = [(style(index), label) for index, label in enumerate(labels) if label in wanted]
    return [(colour, SIGNS[symbol], label) for (colour, symbol, _), label in styles]


def escape(text: str) -> str:
    """Escape a name for plotly, which renders some HTML in labels; quotes stay as they are."""
    return html.escape(text, quote=False)


def to_html(figure: go.Figure, name: str, *, height: int, legend: bool = True, bare: bool = False) -> Chart:
    """Draw a figure; `name` is its HTML id, `bare` draws the plot area without axes."""
    document = figure.to_dict()
    chart = Chart(svg.render(document, name, height=height, legend=legend, bare=bare))
    chart.traces, chart.layout, chart.description = document["data"], document["layout"], describe(document)
    return chart


def heatmap(
    values: Sequence[Sequence[float | None]], x: Sequence[str], y: Sequence[str], *, hover: str,
    text: Sequence[Sequence[str]] | None = None, customdata: Sequence[Any] | None = None,
    low: float | None = 0.0, high: float | None = 1.0,
) -> go.Figure:  # fmt: skip
    """Draw categories by categories as shaded cells with a number per cell (two decimals unless `text` is set)."""
    if text is None:
        text = [["" if v is None else f"{v:.2f}" for v in line] for line in values]
    cells = go.Heatmap(
        z=values, x=x, y=y, text=text, customdata=customdata, texttemplate="%{text}",
        textfont={"color": DARK, "size": 12}, colorscale=SHADES, zmin=low, zmax=high, xgap=2, ygap=2,
        showscale=False, hovertemplate=f"{hover}<extra></extra>",  # no scale: every cell shows its number
    )  # fmt: skip
    figure = go.Figure(cells)
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    return figure


def grouped_bars(
    bars: Sequence[tuple[str, Sequence[float], Mapping[str, Any]]], x: Sequence[Any], *, even: float | None = None
) -> go.Figure:
    """Draw one group of bars per x from (name, heights, other trace options); the dotted line marks `even`."""
    figure = go.Figure()
    for name, heights, options in bars:
        figure.add_bar(name=name, x=x, y=heights, **options)
    if even is not None:
        figure.add_hline(y=even, line=DOTTED)
    figure.update_layout(barmode="group", bargap=0.2)
    return figure


def add_series(
    figure: go.Figure, label: str, index: int, x: Sequence[Any], y: Sequence[float], *, hover: str,
    errors: Sequence[float] | None = None, size: int = 6, lines: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Add the points of one method in its style, with error bars and lines if requested."""
    colour, symbol, dash = style(index)
    figure.add_scatter(
        name=escape(label), meta=label, x=x, y=y, mode="lines+markers" if lines else "markers",
        line={"color": colour, "dash": dash, "width": 2},
        marker={"size": size, "color": colour, "symbol": symbol},
        error_y=None if errors is None else {"type": "data", "array": errors, "thickness": 1.5, "width": size - 2},
        hovertemplate=f"%{{fullData.name}}{hover}<extra></extra>", **options,
    )  # fmt: skip


def plane_axes(figure: go.Figure, variance: Sequence[float] | None) -> None:
    """Set the axes of a two-dimensional projection; `variance` holds the explained variance of PCA's components."""
    for update, axis in ((figure.update_xaxes, 0), (figure.update_yaxes, 1)):
        text = "" if variance is None else f"{('first', 'second')[axis]} component, {100 * variance[axis]:.0f} %"
        update(range=[-0.04, 1.04], dtick=0.5, tickfont={"size": 11}, title={"text": text, "font": {"size": 12}})

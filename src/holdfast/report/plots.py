"""Pictures of scores, validation curves and streams as HTML fragments; the page holds plotly.js once."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import grouped
from holdfast.report.streams import unlearnt
from holdfast.report.table import Row, columns, score_matrix, stream_domains
from holdfast.report.words import is_percent, metric_name, number, scaled, show

# Okabe and Ito's palette without black and yellow; a round of colours has one symbol and one dash
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
SIGNS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "x": "✕"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SHADES = ((0.0, "#f4f8fb"), (1.0, "#4a9bd1"))  # light enough for dark numbers on any of them
GRID = "rgba(128,128,128,0.25)"
TEMPLATE = go.Figure(layout={"template": "none"}).to_dict()["layout"]["template"]
CLEAR = dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0,0,0,0)")
MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
FONT = "system-ui, sans-serif"
TEXT = {
    "font": {"family": FONT, "size": 14, "color": "#767676"},
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    "hoverlabel": {"font": {"family": FONT}},
}


def scores_chart(rows: Sequence[Row], metric: str) -> str:
    """Dots with standard errors: targets along the axis, the average last, one colour a method."""
    targets = columns(rows)
    figure = go.Figure()
    for place, row in enumerate(rows):
        cells = [(plain(t), row.cells[t]) for t in targets if t in row.cells]
        if row.average is not None:
            cells.append(("<b>average</b>", row.average))
        errors = [0.0 if c.stderr is None else scaled(c.stderr, metric) for _, c in cells]
        colour, symbol, _ = style(place)
        figure.add_scatter(
            name=plain(row.label),
            meta=row.label,
            x=[t for t, _ in cells],
            y=[scaled(c.mean, metric) for _, c in cells],
            error_y={"type": "data", "array": errors, "thickness": 1.5, "width": 6},
            mode="markers",
            marker={"size": 8, "color": colour, "symbol": symbol},
            offsetgroup=str(place),
            customdata=[[plain(_hover(c.mean, c.stderr, metric)), c.n] for _, c in cells],
            hovertemplate="%{fullData.name}, %{x}: %{customdata[0]} (n=%{customdata[1]})<extra></extra>",
        )
    order = [*(plain(t) for t in targets), "<b>average</b>"]
    figure.update_layout(scattermode="group", scattergap=0.35)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order, range=[-0.5, len(order) - 0.5])
    figure.update_yaxes(title=metric_name(metric), range=_reach(rows, metric))
    figure.add_vline(x=len(targets) - 0.5, line={"color": "rgba(128,128,128,0.7)", "width": 1, "dash": "dot"})
    return fragment(figure, "scores", height=400, legend=False)


def curves(records: Iterable[RunRecord]) -> str:
    """Validation score over steps, one line a method: the mean over validation domains, targets and seeds."""
    groups = grouped(records)
    metrics = list(dict.fromkeys(r.validated for g in groups.values() for r in g))
    metric = metrics[0] if len(metrics) == 1 else "score"
    figure = go.Figure()
    for place, (name, group) in enumerate(groups.items()):
        lines = [line for line in map(_curve, group) if line]
        # a step counts once all runs have reached it, or the mean would jump where a run ends
        steps = sorted(set.intersection(*(set(line) for line in lines))) if lines else []
        colour, symbol, dash = style(place)
        figure.add_scatter(
            name=plain(name),
            meta=name,
            x=steps,
            y=[scaled(math.fsum(line[s] for line in lines) / len(lines), metric) for s in steps],
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"size": 5, "symbol": symbol},
            hovertemplate="%{fullData.name}, step %{x}: %{y:.3~f}<extra></extra>",
        )
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"validation {metric_name(metric)}")
    return fragment(figure, "curves", height=360, legend=False)


def stream_heatmap(record: RunRecord, metric: str | None = None, *, span: tuple[float, float] | None = None) -> str:
    """The R matrix of a stream: the score on each domain (column) after each stage (row).

    Zero-shot scores, of domains not learnt yet, are in italics in a dotted frame. Pictures to be compared take one
    `span`: the scores of the lightest and of the darkest colour.
    """
    metric = metric or str(record.spec["metric"])
    values = score_matrix(record, metric)
    shown = [[None if math.isnan(v) else scaled(v, metric) for v in line] for line in values]
    after = [f"{i + 1}: " + plain("+".join(s["train"])) for i, s in enumerate(record.stages)]
    zero_shot = unlearnt(record)
    told = [["" if math.isnan(v) else number(v, metric) for v in line] for line in values]
    figure = go.Figure(
        go.Heatmap(
            z=shown,
            x=[plain(d) for d in stream_domains(record)],
            y=after,
            text=[
                [f"<i>{v}</i>" if v and (i, j) in zero_shot else v for j, v in enumerate(line)]
                for i, line in enumerate(told)
            ],
            texttemplate="%{text}",
            textfont={"color": "#14181d", "size": 12},
            colorscale=SHADES,
            zmin=None if span is None else scaled(span[0], metric),
            zmax=None if span is None else scaled(span[1], metric),
            xgap=2,
            ygap=2,
            showscale=False,  # the numbers are there, and a phone has no room
            hovertemplate="%{x} after stage %{y}: %{text}<extra></extra>",
        )
    )
    for i, j in zero_shot:
        frame = {"color": "#14181d", "width": 1, "dash": "dot"}
        figure.add_shape(x0=j - 0.47, x1=j + 0.47, y0=i - 0.42, y1=i + 0.42, line=frame)
    figure.update_xaxes(title="scored on", type="category", showgrid=False)
    figure.update_yaxes(title="after learning", type="category", autorange="reversed", showgrid=False)
    return fragment(figure, f"stream-{record.id}", height=160 + 44 * len(after))


def _curve(record: RunRecord) -> dict[int, float]:
    """Step -> mean over validation domains; the steps of a later stage go on from the earlier one's."""
    line: dict[int, float] = {}
    for stage in record.stages:
        history = stage.get("history", [])
        last = max(line, default=-1)
        start = last if history and history[0]["step"] <= last else 0
        for entry in history:
            values = [v for v in record.validations(entry).values() if v is not None]
            if values:
                line[start + entry["step"]] = math.fsum(values) / len(values)
    return line


def _reach(rows: Sequence[Row], metric: str) -> list[float] | None:
    """The axis from the lowest to the highest error bar: plotly would start grouped dots at zero."""
    cells = [c for r in rows for c in (*r.cells.values(), r.average) if c is not None and math.isfinite(c.mean)]
    if not cells:
        return None
    low = scaled(min(c.mean - (c.stderr or 0.0) for c in cells), metric)
    high = scaled(max(c.mean + (c.stderr or 0.0) for c in cells), metric)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    most = 101.0 if is_percent(metric) else math.inf  # a dot at 100 is still whole
    return [low - room, min(high + room, max(high, most))]


def style(place: int) -> tuple[str, str, str]:
    """Colour, symbol and dash of the method at this place: the same in every picture of a page."""
    turn = place // len(COLOURS)
    return COLOURS[place % len(COLOURS)], SYMBOLS[turn % len(SYMBOLS)], DASHES[turn % len(DASHES)]


def legend(labels: Iterable[str], shown: Iterable[str] | None = None) -> list[tuple[str, str, str]]:
    """Colour, sign and label of each method that is shown, all where nothing is said; the order decides the looks."""
    every = list(labels)
    some = set(every if shown is None else shown)
    looks = [(style(place), label) for place, label in enumerate(every) if label in some]
    return [(colour, SIGNS[symbol], label) for (colour, symbol, _), label in looks]


def _hover(mean: float, stderr: float | None, metric: str) -> str:
    error = "" if stderr is None else f" ± {number(stderr, metric)}"
    return number(mean, metric) + error + (" %" if is_percent(metric) else "")


def plain(text: str) -> str:
    """A name is text: plotly reads some HTML in labels, but would show an escaped quote as it is written."""
    return html.escape(text, quote=False)


def fragment(figure: go.Figure, name: str, *, height: int, legend: bool = True, bare: bool = False) -> str:
    """A figure as HTML in the looks of the page, without plotly.js; a bare one has no room for axes."""
    drawn = figure.to_dict()
    layout = drawn["layout"]  # plain dicts: by plotly's own objects the same takes ten times as long
    layout |= {"template": TEMPLATE, "height": height, "showlegend": legend, **CLEAR}
    looks = {**TEXT, "margin": dict.fromkeys("lrtb", 2) if bare else MARGIN}
    for key, look in looks.items():
        layout[key] = {**layout.get(key, {}), **look}
    for key in {"xaxis", "yaxis", *(key for key in layout if re.fullmatch(r"[xy]axis\d+", key))}:
        axis = layout[key] = {**layout.get(key, {}), "automargin": True, "zeroline": False, "gridcolor": GRID}
        if key.startswith("y"):
            axis["title"] = {**axis.get("title", {}), "standoff": 12}
    return pio.to_html(
        drawn,
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        default_height=f"{height}px",
        config={"displayModeBar": False, "responsive": True},
        validate=False,
    )


def share_map(
    values: Sequence[Sequence[float]], x: Sequence[str], y: Sequence[str], hover: str, more: Sequence[Any] | None = None
) -> go.Figure:
    """Shares between 0 and 1 as shaded cells with their numbers in them; `more` is what `hover` tells besides."""
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=x,
            y=y,
            text=[[f"{value:.2f}" for value in line] for line in values],
            customdata=more,
            texttemplate="%{text}",
            textfont={"color": "#14181d"},
            colorscale=SHADES,
            zmin=0,
            zmax=1,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate=f"{hover}<extra></extra>",
        )
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    return figure


Point = tuple[str, float, float]  # label, seconds, average


def points(table: Sequence[Row], costs: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Every row that has both, in the order of the table."""
    seconds = {str(entry["method"]): entry["seconds"] for entry in costs}
    found = []
    for row in table:
        spent = seconds.get(row.label)
        if spent and row.average is not None and math.isfinite(row.average.mean):
            found.append((row.label, float(spent), row.average.mean))
    return found


def front(found: Sequence[Point], metric: str) -> list[Point]:
    """The points that no other beats: none is quicker and at least as good. The quickest comes first."""
    up = -1 if metric in LOWER_IS_BETTER else 1
    kept: list[Point] = []
    for point in sorted(found, key=lambda p: (p[1], -up * p[2])):
        if not kept or up * point[2] > up * kept[-1][2]:
            kept.append(point)
    return kept


def cost_chart(
    table: Sequence[Row], costs: Sequence[Mapping[str, Any]], metric: str, *, shown: Collection[str]
) -> str | None:
    """A dot for each row that is shown, and a dotted line through those that nobody beats; None for fewer than two."""
    found = [point for point in points(table, costs) if point[0] in shown]
    if len(found) < 2:
        return None
    rows = {row.label: (place, row.average) for place, row in enumerate(table)}
    best, figure = front(found, metric), go.Figure()
    figure.add_scatter(
        x=[seconds for _, seconds, _ in best],
        y=[scaled(mean, metric) for _, _, mean in best],
        mode="lines",
        line={"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    for label, seconds, mean in found:
        place, average = rows[label]
        colour, symbol, _ = style(place)
        error = 0.0 if average is None or average.stderr is None else scaled(average.stderr, metric)
        figure.add_scatter(
            name=plain(label),
            meta=label,
            x=[seconds],
            y=[scaled(mean, metric)],
            error_y={"type": "data", "array": [error], "thickness": 1.5, "width": 6},
            mode="markers",
            marker={"size": 9, "color": colour, "symbol": symbol},
            customdata=[show(average, metric)],
            hovertemplate="%{fullData.name}: %{customdata}, %{x:.3~g} s<extra></extra>",
        )
    figure.update_xaxes(title="seconds of a run", type="log", dtick="D2", tickformat="~g")
    figure.update_yaxes(title=f"average {metric_name(metric)}")
    return fragment(figure, "cost-score", height=380, legend=False)

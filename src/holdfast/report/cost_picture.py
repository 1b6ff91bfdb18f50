"""What a score costs: seconds of a run against the average score, and the methods that nobody beats in both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from holdfast.record import LOWER_IS_BETTER
from holdfast.report.plots import fragment, plain, style
from holdfast.report.table import Row
from holdfast.report.words import metric_name, scaled, show

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

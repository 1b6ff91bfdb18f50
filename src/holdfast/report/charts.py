"""Charts of scores, validation curves and costs."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.plots import DOTTED, add_series, escape, to_html
from holdfast.stats.formatting import format_cell, is_percent, metric_name, scaled
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean
from holdfast.stats.table import Row, columns, has_many

MOST_POINTS = 150  # of a line
Point = tuple[str, float, float]  # label, seconds, average score


def scores_chart(rows: Sequence[Row], metric: str) -> str:
    """Draw one point with standard error per method and target; the average comes last. Many targets are a strip."""
    targets = columns(rows)
    if has_many(targets):
        return domain_strip(rows, metric)
    figure = go.Figure()
    for index, row in enumerate(rows):
        cells = [(escape(target), row.cells[target]) for target in targets if target in row.cells]
        if row.average is not None:
            cells.append(("<b>average</b>", row.average))
        unit = " %" if is_percent(metric) else ""
        add_series(
            figure, row.label, index, [target for target, _ in cells], [scaled(cell.mean, metric) for _, cell in cells],
            errors=[scaled(cell.stderr or 0.0, metric) for _, cell in cells], size=8, offsetgroup=str(index),
            customdata=[[escape(format_cell(cell, metric) + unit), cell.n] for _, cell in cells],
            hover=", %{x}: %{customdata[0]} (n=%{customdata[1]})",
        )  # fmt: skip
    order = [*(escape(target) for target in targets), "<b>average</b>"]
    figure.update_layout(scattermode="group", scattergap=0.35)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order, range=[-0.5, len(order) - 0.5])
    figure.update_yaxes(title=metric_name(metric), range=_score_range(rows, metric))
    figure.add_vline(x=len(targets) - 0.5, line={**DOTTED, "color": "rgba(128,128,128,0.7)"})
    return to_html(figure, "scores", height=400, legend=False)


def domain_strip(rows: Sequence[Row], metric: str) -> str:
    """Draw the scores of all targets per method, sorted, over their share of the targets.

    Of more than `MOST_POINTS` targets, a line has evenly spaced ones.
    """
    figure, unit = go.Figure(), " %" if is_percent(metric) else ""
    for index, row in enumerate(rows):
        cells = sorted(row.cells.items(), key=lambda item: item[1].mean)
        cells = [(place, *item) for place, item in enumerate(cells) if math.isfinite(item[1].mean)]
        step = max(1, -(-len(cells) // MOST_POINTS))
        chosen = [cell for i, cell in enumerate(cells) if i % step == 0 or i == len(cells) - 1]
        add_series(
            figure, row.label, index, [100 * (place + 0.5) / len(row.cells) for place, *_ in chosen],
            [scaled(cell.mean, metric) for *_, cell in chosen], size=5, lines=True,
            customdata=[[escape(target), escape(format_cell(cell, metric) + unit)] for _, target, cell in chosen],
            hover=", %{customdata[0]}: %{customdata[1]}",
        )  # fmt: skip
    figure.update_xaxes(title="target domains, sorted by score (%)", range=[0, 100])
    figure.update_yaxes(title=metric_name(metric))
    worst = 90 if metric in LOWER_IS_BETTER else 10
    figure.add_vline(x=worst, line={**DOTTED, "color": "rgba(128,128,128,0.7)"})
    return to_html(figure, "scores", height=400, legend=False)


def _score_range(rows: Sequence[Row], metric: str) -> list[float] | None:
    """Return the axis range from the lowest to the highest error bar; plotly would start grouped points at zero."""
    cells = [c for r in rows for c in (*r.cells.values(), r.average) if c is not None and math.isfinite(c.mean)]
    if not cells:
        return None
    low = scaled(min(c.mean - (c.stderr or 0.0) for c in cells), metric)
    high = scaled(max(c.mean + (c.stderr or 0.0) for c in cells), metric)
    padding = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    limit = 101.0 if is_percent(metric) else math.inf  # a point at 100 is not cut off
    return [low - padding, min(high + padding, max(high, limit))]


def validation_chart(groups: Groups) -> str:
    """Draw validation score over steps per method: the mean over validation domains, targets and seeds."""
    metrics = list(dict.fromkeys(r.validated for group in groups.values() for r in group))
    metric = metrics[0] if len(metrics) == 1 else "score"
    figure = go.Figure()
    for index, (name, group) in enumerate(groups.items()):
        curves = [curve for curve in map(_validation_curve, group) if curve]
        # only steps that all runs reached: the mean would jump where a run ends
        steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
        means = [scaled(fmean(curve[s] for curve in curves), metric) for s in steps]
        add_series(figure, name, index, steps, means, size=5, lines=True, hover=", step %{x}: %{y:.3~f}")
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=f"validation {metric_name(metric)}")
    return to_html(figure, "curves", height=360, legend=False)


def _validation_curve(record: RunRecord) -> dict[int, float]:
    """Map step to the mean over validation domains; the steps of later stages continue those of earlier ones."""
    curve: dict[int, float] = {}
    for stage in record.stages:
        history = stage.get("history", [])
        last = max(curve, default=-1)
        start = last if history and history[0]["step"] <= last else 0
        for entry in history:
            if (value := mean(record.validations(entry).values())) is not None:
                curve[start + entry["step"]] = value
    return curve


def cost_points(table: Sequence[Row], costs: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Return every row that has both a cost and an average score, in the order of the table."""
    seconds = {str(entry["method"]): entry["seconds"] for entry in costs}
    return [
        (row.label, float(seconds[row.label]), row.average.mean)
        for row in table
        if seconds.get(row.label) and row.average is not None and math.isfinite(row.average.mean)
    ]


def pareto_front(points: Sequence[Point], metric: str) -> list[Point]:
    """Return the points that no other point beats in both cost and score, the fastest first."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p[1], -sign * p[2])):
        if not front or sign * point[2] > sign * front[-1][2]:
            front.append(point)
    return front


def cost_chart(
    table: Sequence[Row], costs: Sequence[Mapping[str, Any]], metric: str, *, shown: Collection[str]
) -> str | None:
    """Draw average score over seconds with the Pareto front as a dotted line; None for fewer than two points."""
    points = [point for point in cost_points(table, costs) if point[0] in shown]
    if len(points) < 2:
        return None
    rows = {row.label: (index, row.average) for index, row in enumerate(table)}
    front, figure = pareto_front(points, metric), go.Figure()
    x, y = [seconds for _, seconds, _ in front], [scaled(score, metric) for *_, score in front]
    figure.add_scatter(x=x, y=y, mode="lines", line=DOTTED, hoverinfo="skip")
    for label, seconds, score in points:
        index, average = rows[label]
        assert average is not None
        add_series(
            figure, label, index, [seconds], [scaled(score, metric)], errors=[scaled(average.stderr or 0.0, metric)],
            size=9, customdata=[format_cell(average, metric)], hover=": %{customdata}, %{x:.3~g} s",
        )  # fmt: skip
    figure.update_xaxes(title="seconds per run", type="log", dtick="D2", tickformat="~g")
    figure.update_yaxes(title=f"average {metric_name(metric)}")
    return to_html(figure, "cost-score", height=380, legend=False)

"""Charts of scores, validation curves and costs."""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from markupsafe import Markup

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.axes import Axis
from holdfast.report.marks import DOTTED, Points, Rule, Stroke
from holdfast.report.plots import Chart, Plot, cell_point, error_range, series
from holdfast.stats.formatting import format_cell, is_percent, metric_name, scaled
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean
from holdfast.stats.table import Row, columns, has_many

MOST_POINTS = 150  # of a line
AVERAGE = Markup("<b>average</b>")  # the last category, next to the names of targets
FAINT = Stroke("rgba(128,128,128,0.7)", 1, "dot")
Point = tuple[str, float, float]  # label, seconds, average score


def scores_chart(rows: Sequence[Row], metric: str) -> Chart:
    """Draw one point with standard error per method and target; the average comes last. Many targets are a strip."""
    targets = columns(rows)
    if has_many(targets):
        return domain_strip(rows, metric)
    marks, unit = [], " %" if is_percent(metric) else ""
    for index, row in enumerate(rows):
        cells = {target: row.cells[target] for target in targets if target in row.cells}
        if row.average is not None:
            cells[AVERAGE] = row.average
        points = []
        for target, cell in cells.items():
            tip = f", {'average' if target is AVERAGE else target}: {format_cell(cell, metric)}{unit} (n={cell.n})"
            points.append(cell_point(target, cell, metric, tip))
        marks.append(series(row.label, index, points, size=8, grouped=True))
    x = Axis(names=[*targets, AVERAGE], limits=(-0.5, len(targets) + 0.5))
    y, average = Axis(metric_name(metric), limits=_score_range(rows, metric)), Rule(len(targets) - 0.5, stroke=FAINT)
    return Plot(*marks, x=x, y=y, rules=[average], gap=0.35).html("scores", height=400, legend=False)


def domain_strip(rows: Sequence[Row], metric: str) -> Chart:
    """Draw the scores of all targets per method, sorted, over their share of the targets.

    Of more than `MOST_POINTS` targets, a line has evenly spaced ones.
    """
    marks, unit = [], " %" if is_percent(metric) else ""
    for index, row in enumerate(rows):
        cells = sorted(row.cells.items(), key=lambda item: item[1].mean)
        cells = [(place, *item) for place, item in enumerate(cells) if math.isfinite(item[1].mean)]
        step = max(1, -(-len(cells) // MOST_POINTS))
        chosen = [cell for i, cell in enumerate(cells) if i % step == 0 or i == len(cells) - 1]
        points = [
            (
                100 * (place + 0.5) / len(row.cells),
                scaled(c.mean, metric),
                0.0,
                f", {t}: {format_cell(c, metric)}{unit}",
            )
            for place, t, c in chosen
        ]
        marks.append(series(row.label, index, points, size=5, lines=True))
    share, worst = Axis("target domains, sorted by score (%)", limits=(0, 100)), 90 if metric in LOWER_IS_BETTER else 10
    figure = Plot(*marks, x=share, y=Axis(metric_name(metric)), rules=[Rule(worst, stroke=FAINT)])
    return figure.html("scores", height=400, legend=False)


def _score_range(rows: Sequence[Row], metric: str) -> list[float] | None:
    """Return the axis range from the lowest to the highest error bar."""
    cells = [c for r in rows for c in (*r.cells.values(), r.average) if c is not None and math.isfinite(c.mean)]
    if not cells:
        return None
    low, high = error_range(cells, metric)
    padding = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    limit = 101.0 if is_percent(metric) else math.inf  # a point at 100 is not cut off
    return [low - padding, min(high + padding, max(high, limit))]


def validation_chart(groups: Groups) -> Chart:
    """Draw validation score over steps per method: the mean over validation domains, targets and seeds."""
    metrics = list(dict.fromkeys(r.validated for group in groups.values() for r in group))
    metric = metrics[0] if len(metrics) == 1 else "score"
    marks = []
    for index, (name, group) in enumerate(groups.items()):
        curves = [curve for curve in map(_validation_curve, group) if curve]
        # only steps that all runs reached: the mean would jump where a run ends
        steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
        points = []
        for step in steps:
            value = scaled(fmean(curve[step] for curve in curves), metric)
            shown = f"{value:.3f}".rstrip("0").rstrip(".")
            points.append((step, value, 0.0, f", step {step}: {shown}"))
        marks.append(series(name, index, points, size=5, lines=True))
    figure = Plot(*marks, x=Axis("step"), y=Axis(f"validation {metric_name(metric)}"))
    return figure.html("curves", height=360, legend=False)


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
) -> Chart | None:
    """Draw average score over seconds with the Pareto front as a dotted line; None for fewer than two points."""
    points = [point for point in cost_points(table, costs) if point[0] in shown]
    if len(points) < 2:
        return None
    front = pareto_front(points, metric)
    times, scores = [time for _, time, _ in front], [scaled(score, metric) for *_, score in front]
    marks = [Points(times, scores, size=0, line=DOTTED)]
    seconds = {label: time for label, time, _ in points}
    for index, row in enumerate(table):
        if row.label in seconds and row.average is not None:
            x = seconds[row.label]
            point = cell_point(x, row.average, metric, f": {format_cell(row.average, metric)}, {x:.3g} s")
            marks.append(series(row.label, index, [point], size=9))
    figure = Plot(*marks, x=Axis("seconds per run", log=True), y=Axis(f"average {metric_name(metric)}"))
    return figure.html("cost-score", height=380, legend=False)

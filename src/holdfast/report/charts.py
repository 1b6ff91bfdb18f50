"""Charts of scores and validation curves."""

from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from holdfast.record import RunRecord
from holdfast.report.axes import Axis
from holdfast.report.marks import Rule, Stroke
from holdfast.report.plots import Chart, Plot, cell_point, score_range, series
from holdfast.stats.formatting import format_cell, is_percent, metric_name, scaled
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean
from holdfast.stats.table import Row, shown_columns

AVERAGE = Markup("<b>average</b>")  # the last category, next to the names of targets
FAINT = Stroke("rgba(128,128,128,0.7)", 1, "dot")


def scores_chart(rows: Sequence[Row], metric: str) -> Chart:
    """Draw one point with standard error per method and target of the table; the average comes last."""
    targets = shown_columns(rows)
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
    shown = [cell for row in rows for cell in (*map(row.cells.get, targets), row.average) if cell is not None]
    y, average = Axis(metric_name(metric), limits=score_range(shown, metric)), Rule(len(targets) - 0.5, stroke=FAINT)
    return Plot(*marks, x=x, y=y, rules=[average], gap=0.35).html("scores", height=400, legend=False)


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


def validated(groups: Groups) -> list[str]:
    """Return the labels of the runs that have validation scores."""
    return [
        label for label, group in groups.items()
        if any(entry.get("valid") for r in group for stage in r.stages for entry in stage.get("history", []))
    ]  # fmt: skip


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

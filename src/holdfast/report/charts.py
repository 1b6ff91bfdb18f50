"""Charts of scores, validation curves, and differences to a baseline (forest plot)."""

import math
from collections.abc import Sequence
from statistics import fmean

from markupsafe import Markup

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.axes import Axis
from holdfast.report.marks import Errors, Points, Rule, Stroke
from holdfast.report.plots import COLOURS, Chart, Plot, cell_point, score_range, series
from holdfast.report.sections import Cell
from holdfast.stats.decision import Difference
from holdfast.stats.formatting import (
    format_cell,
    format_difference,
    is_percent,
    metric_name,
    scaled,
    shortened,
    spelled,
)
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean
from holdfast.stats.table import Row, columns, has_many

MOST_POINTS = 150  # of a line
AVERAGE = Markup("<b>average</b>")  # the last category, next to the names of targets
LONGEST = 28  # characters of a label next to the plot, which leave room for it on a phone
GREY = "#767676"  # differences whose interval includes zero
FAINT = Stroke("rgba(128,128,128,0.7)", 1, "dot")


def scores_chart(rows: Sequence[Row], metric: str) -> Chart:
    """Draw one point with standard error per method and target; the average comes last. Many targets are a strip."""
    targets = columns(rows)
    if has_many(targets):
        return _domain_strip(rows, metric)
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


def _domain_strip(rows: Sequence[Row], metric: str) -> Chart:
    """Draw the scores of all targets per method, sorted, over their share of the targets.

    Of more than `MOST_POINTS` targets, a line has evenly spaced ones.
    """
    marks, unit = [], " %" if is_percent(metric) else ""
    for index, row in enumerate(rows):
        cells = [(target, cell) for target, cell in row.cells.items() if math.isfinite(cell.mean)]
        cells = list(enumerate(sorted(cells, key=lambda item: item[1].mean)))
        chosen = dict(cells[:: max(1, -(-len(cells) // MOST_POINTS))] + cells[-1:])
        points = []
        for place, (target, cell) in chosen.items():
            share = 100 * (place + 0.5) / len(row.cells)
            points.append((share, scaled(cell.mean, metric), 0.0, f", {target}: {format_cell(cell, metric)}{unit}"))
        marks.append(series(row.label, index, points, size=5, lines=True))
    share, worst = Axis("target domains, sorted by score (%)", limits=(0, 100)), 90 if metric in LOWER_IS_BETTER else 10
    figure = Plot(*marks, x=share, y=Axis(metric_name(metric)), rules=[Rule(worst, stroke=FAINT)])
    return figure.html("scores", height=400, legend=False)


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


def forest_chart(entries: Sequence[Difference], metric: str) -> Chart | None:
    """Draw one line per row, the best at the top; None without differences."""
    if not entries:
        return None
    marks = []
    for entry in entries:
        mean, colour = entry.pairs.difference, difference_colour(entry, metric)
        half = 0.0 if entry.interval is None else scaled(entry.interval[1] - mean, metric)
        marks.append(Points(
            [scaled(mean, metric)], [entry.label], f"{entry.label}: {difference_text(entry, metric)}",
            name=entry.label, owner=entry.label, colour=colour, errors=Errors([half], None, True, 5, 2), size=11,
            symbol="diamond" if entry.significant else "diamond-open",
        ))  # fmt: skip
    names = [entry.label for entry in entries]
    x = Axis(f"{'points' if is_percent(metric) else 'difference'}, compared with {_rivals(entries)}")
    ticks = [(name, shortened(name, LONGEST)) for name in names]
    y = Axis(names=names[::-1], limits=(-0.5, len(names) - 0.5), ticks=ticks)
    figure = Plot(*marks, x=x, y=y, rules=[Rule(0)])
    return figure.html("forest", height=90 + 30 * len(entries), legend=False)


def forest_lines(entries: Sequence[Difference], metric: str) -> list[tuple[str, list[Cell]]]:
    """Return the numbers of the plot as lines of a table: baseline, difference, interval, pairs, significant."""
    lines: list[tuple[str, list[Cell]]] = []
    for entry in entries:
        state = "not engaged" if entry.idle else "yes" if entry.significant else "no"
        cells: list[Cell] = [
            (entry.rival, None), (format_difference(entry.pairs.difference, metric), entry.pairs.difference),
            (interval_text(entry, metric), None), (str(entry.pairs.n), entry.pairs.n), (state, None),
        ]  # fmt: skip
        lines.append((entry.label, cells))
    return lines


def forest_summary(entries: Sequence[Difference], metric: str) -> str:
    """Return the text alternative of the plot."""
    texts = [f"{entry.label} {difference_text(entry, metric)}" for entry in entries]
    return f"Differences of {spelled(metric)} to {_rivals(entries)} with 95% intervals: {'; '.join(texts)}"


def difference_text(entry: Difference, metric: str) -> str:
    """Format a difference and its interval: `+1.2 (0.3 to 2.1)`."""
    interval = interval_text(entry, metric)
    return format_difference(entry.pairs.difference, metric) + (f" ({interval})" if interval else "")


def interval_text(entry: Difference, metric: str) -> str:
    """Format an interval; empty for a single pair."""
    return " to ".join(format_difference(end, metric) for end in entry.interval or ())


def difference_colour(entry: Difference, metric: str) -> str:
    """Return the colour of a difference: grey if its interval includes zero, else by its direction."""
    better = -1 if metric in LOWER_IS_BETTER else 1
    return GREY if not entry.clear else COLOURS[0] if better * entry.pairs.difference > 0 else COLOURS[1]


def _rivals(entries: Sequence[Difference]) -> str:
    names = list(dict.fromkeys(entry.rival for entry in entries))
    return names[0] if len(names) == 1 else "the baseline of each row"

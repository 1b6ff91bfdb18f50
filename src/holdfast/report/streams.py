"""Figures of streams of domains: the scores after every stage, and their course per domain."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.record import RunRecord
from holdfast.report.axes import Axis
from holdfast.report.marks import Rule
from holdfast.report.plots import Chart, Plot, cell_point, heatmap, legend, score_range, series
from holdfast.stats.formatting import format_cell, format_number, metric_name, scaled
from holdfast.stats.streams import Course, courses, zero_shot_cells
from holdfast.stats.table import score_matrix, stream_domains


def stream_heatmap(record: RunRecord, metric: str | None = None, *, span: tuple[float, float] | None = None) -> Chart:
    """Draw R: the score on each domain (column) after each stage (row).

    Zero-shot scores are in italics in a dotted frame. `span` is the range of the colours, to compare several streams.
    """
    metric = metric or str(record.spec["metric"])
    values = score_matrix(record, metric)
    texts = [["" if math.isnan(v) else format_number(v, metric) for v in line] for line in values]
    after = [f"{i + 1}: {'+'.join(s['train'])}" for i, s in enumerate(record.stages)]
    low, high = (None, None) if span is None else (scaled(value, metric) for value in span)
    figure = heatmap(
        [[None if math.isnan(v) else scaled(v, metric) for v in line] for line in values], stream_domains(record),
        after, "{x} after stage {y}: {text}", text=texts, low=low, high=high, titles=("scored on", "after learning"),
        early=zero_shot_cells(record),
    )  # fmt: skip
    return figure.html(f"stream-{record.id}", height=160 + 44 * len(after))


def course_figures(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> list[dict[str, Any]]:
    """Draw one figure per domain for each order of learning: its stages, its legend, and (domain, figure) pairs."""
    positions = {label: position for position, label in enumerate(groups)}
    entries = []
    for order, domains in enumerate(courses(groups, metric)):
        if not domains:
            continue
        # one axis range for all domains of an order
        cells = [cell for course in domains for line in course.lines.values() for cell in line if cell is not None]
        axis = score_range(cells, metric)
        shown = [label for label in groups if any(label in course.lines for course in domains)]
        figures = [
            (course.domain, _course_chart(course, metric, positions, f"forgetting-{order}-{i}", axis))
            for i, course in enumerate(domains)
        ]
        entries.append({"stages": domains[0].stages, "legend": legend(groups, shown), "figures": figures})
    return entries


def _course_chart(
    course: Course, metric: str, positions: Mapping[str, int], name: str, axis: Sequence[float] | None
) -> Chart:
    """Draw scores with standard errors over stages; the dotted line marks the stage that learned the domain."""
    marks = []
    for label, line in course.lines.items():
        points = [
            cell_point(i + 1, cell, metric, f", {course.stages[i]}: {format_cell(cell, metric)} (n={cell.n})")
            for i, cell in enumerate(line)
            if cell is not None
        ]
        marks.append(series(label, positions[label], points, lines=True))
    last = len(course.stages)
    ticks = [(stage, str(stage)) for stage in range(1, last + 1, max(1, last // 8))]
    x = Axis("after stage", limits=(0.7, last + 0.3), ticks=ticks)
    figure = Plot(*marks, x=x, y=Axis(metric_name(metric), limits=axis))
    figure.rules += [Rule(course.learned + 0.5)] if course.learned else []
    return figure.html(name, height=250, legend=False)

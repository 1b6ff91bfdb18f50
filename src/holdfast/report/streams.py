"""Figures of streams of domains: the scores after every stage, and their course per domain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from holdfast.record import RunRecord
from holdfast.report.plots import DARK, DOTTED, add_series, escape, heatmap, legend, to_html
from holdfast.stats.formatting import format_cell, format_number, metric_name, scaled
from holdfast.stats.streams import Course, courses, zero_shot_cells
from holdfast.stats.table import score_matrix, stream_domains


def stream_heatmap(record: RunRecord, metric: str | None = None, *, span: tuple[float, float] | None = None) -> str:
    """Draw R: the score on each domain (column) after each stage (row).

    Zero-shot scores are in italics in a dotted frame. `span` is the range of the colours, to compare several streams.
    """
    metric = metric or str(record.spec["metric"])
    values, zero_shot = score_matrix(record, metric), zero_shot_cells(record)
    texts = [["" if math.isnan(v) else format_number(v, metric) for v in line] for line in values]
    after = [f"{i + 1}: " + escape("+".join(s["train"])) for i, s in enumerate(record.stages)]
    figure = heatmap(
        [[None if math.isnan(v) else scaled(v, metric) for v in line] for line in values],
        [escape(domain) for domain in stream_domains(record)],
        after,
        hover="%{x} after stage %{y}: %{text}",
        text=[
            [f"<i>{text}</i>" if text and (i, j) in zero_shot else text for j, text in enumerate(line)]
            for i, line in enumerate(texts)
        ],
        low=None if span is None else scaled(span[0], metric),
        high=None if span is None else scaled(span[1], metric),
    )
    for i, j in zero_shot:
        frame = {"color": DARK, "width": 1, "dash": "dot"}
        figure.add_shape(x0=j - 0.47, x1=j + 0.47, y0=i - 0.42, y1=i + 0.42, line=frame)
    figure.update_xaxes(title="scored on")
    figure.update_yaxes(title="after learning", autorange="reversed")
    return to_html(figure, f"stream-{record.id}", height=160 + 44 * len(after))


@dataclass(frozen=True, slots=True)
class CourseFigures:
    """Figures of one order of learning: one per domain."""

    stages: tuple[str, ...]
    legend: list[tuple[str, str, str]]  # colour, sign and label per method
    figures: list[tuple[str, str]]  # domain, HTML


def course_figures(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> list[CourseFigures]:
    """Draw one figure per domain for each order of learning."""
    positions = {label: position for position, label in enumerate(groups)}
    entries = []
    for order, domains in enumerate(courses(groups, metric)):
        if not domains:
            continue
        axis = score_range(domains, metric)
        shown = [label for label in groups if any(label in course.lines for course in domains)]
        figures = [
            (course.domain, _course_chart(course, metric, positions, f"forgetting-{order}-{i}", axis))
            for i, course in enumerate(domains)
        ]
        entries.append(CourseFigures(domains[0].stages, legend(groups, shown), figures))
    return entries


def score_range(domains: Sequence[Course], metric: str) -> tuple[float, float]:
    """Return one axis range for all domains of an order: from the lowest to the highest error bar."""
    cells = [cell for course in domains for line in course.lines.values() for cell in line if cell is not None]
    low = min(scaled(cell.mean - (cell.stderr or 0.0), metric) for cell in cells)
    high = max(scaled(cell.mean + (cell.stderr or 0.0), metric) for cell in cells)
    padding = 0.08 * (high - low) or 0.5
    return low - padding, high + padding


def _course_chart(course: Course, metric: str, positions: Mapping[str, int], name: str, axis: Sequence[float]) -> str:
    """Draw scores with standard errors over stages; the dotted line marks the stage that learned the domain."""
    figure = go.Figure()
    for label, line in course.lines.items():
        scored = [(i, cell) for i, cell in enumerate(line) if cell is not None]
        add_series(
            figure, label, positions[label], [i + 1 for i, _ in scored], [scaled(c.mean, metric) for _, c in scored],
            errors=[scaled(cell.stderr or 0.0, metric) for _, cell in scored], lines=True,
            customdata=[[escape(course.stages[i]), format_cell(cell, metric), cell.n] for i, cell in scored],
            hover=", %{customdata[0]}: %{customdata[1]} (n=%{customdata[2]})",
        )  # fmt: skip
    if course.learned:
        figure.add_vline(x=course.learned + 0.5, line=DOTTED)
    small, last = {"size": 11}, len(course.stages)
    titles = [{"text": text, "font": {"size": 12}} for text in ("after stage", metric_name(metric))]
    figure.update_xaxes(title=titles[0], range=[0.7, last + 0.3], dtick=max(1, last // 8), tick0=1, tickfont=small)
    figure.update_yaxes(title=titles[1], range=list(axis), tickfont=small)
    return to_html(figure, name, height=250, legend=False)

"""How the score on each domain goes as a stream goes on: one picture a domain, one line a method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from holdfast.record import RunRecord
from holdfast.report.plots import fragment, legend, plain, style
from holdfast.report.statistics import Cell, summarise
from holdfast.report.streams import learnt_at
from holdfast.report.table import data_and_plan, stream_domains
from holdfast.report.words import metric_name, scaled, show


@dataclass(frozen=True, slots=True)
class Course:
    """The scores on one domain after each stage of streams with the same order."""

    domain: str
    stages: tuple[str, ...]  # what each learnt
    learnt: int | None  # the stage that first learnt it
    lines: dict[str, list[Cell | None]]  # label -> over seeds, None where a stage was not scored


def courses(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> list[list[Course]]:
    """For each data set and order of learning its domains, with every method that learnt in that order."""
    found: dict[tuple[tuple[str, ...], ...], dict[str, list[RunRecord]]] = {}
    for label, group in groups.items():
        for record in group:
            if len(record.stages) > 1:
                order = (data_and_plan(record), *(tuple(stage["train"]) for stage in record.stages))
                found.setdefault(order, {}).setdefault(label, []).append(record)
    return [_courses(methods, metric) for methods in found.values()]


def _courses(methods: Mapping[str, Sequence[RunRecord]], metric: str) -> list[Course]:
    records = [record for group in methods.values() for record in group]
    domains = list(dict.fromkeys(domain for record in records for domain in stream_domains(record)))
    stages = tuple("+".join(stage["train"]) for stage in records[0].stages)
    made = []
    for domain in domains:
        first = next(record for record in records if domain in stream_domains(record))
        place, learnt = stream_domains(first).index(domain), learnt_at(first)
        lines = {label: [_over_seeds(group, i, domain, metric) for i in range(len(first.stages))]
                 for label, group in methods.items()}  # fmt: skip
        lines = {label: line for label, line in lines.items() if any(cell is not None for cell in line)}
        if lines:
            made.append(Course(domain, stages, learnt[place] if place < len(learnt) else None, lines))
    return made


def _over_seeds(records: Sequence[RunRecord], stage: int, domain: str, metric: str) -> Cell | None:
    scores = [record.stages[stage]["test"].get(domain, {}).get(metric) for record in records]
    there = [float(score) for score in scores if score is not None and math.isfinite(score)]
    return summarise(there) if there else None


def course_chart(course: Course, metric: str, places: Mapping[str, int], *, name: str, reach: Sequence[float]) -> str:
    """Lines with standard errors; what lies left of the dotted line was scored before the domain was learnt."""
    figure = go.Figure()
    for label, line in course.lines.items():
        there = [(i, cell) for i, cell in enumerate(line) if cell is not None]
        colour, symbol, dash = style(places[label])
        errors = [scaled(cell.stderr or 0.0, metric) for _, cell in there]
        figure.add_scatter(
            name=plain(label),
            meta=label,
            x=[i + 1 for i, _ in there],
            y=[scaled(cell.mean, metric) for _, cell in there],
            error_y={"type": "data", "array": errors, "thickness": 1.5, "width": 3},
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"size": 6, "symbol": symbol},
            customdata=[[plain(course.stages[i]), show(cell, metric), cell.n] for i, cell in there],
            hovertemplate="%{fullData.name}, %{customdata[0]}: %{customdata[1]} (n=%{customdata[2]})<extra></extra>",
        )
    if course.learnt:
        figure.add_vline(x=course.learnt + 0.5, line={"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"})
    small, words = {"size": 11}, {"text": "after stage", "font": {"size": 12}}
    last = len(course.stages)
    figure.update_xaxes(title=words, range=[0.7, last + 0.3], dtick=max(1, last // 8), tick0=1, tickfont=small)
    title = {"text": metric_name(metric), "font": {"size": 12}}
    figure.update_yaxes(title=title, range=list(reach), tickfont=small)
    return fragment(figure, name, height=250, legend=False)


def reach(domains: Sequence[Course], metric: str) -> tuple[float, float]:
    """One axis for all domains of an order, so that their losses compare: from the lowest to the highest error bar."""
    cells = [cell for course in domains for line in course.lines.values() for cell in line if cell is not None]
    low = min(scaled(cell.mean - (cell.stderr or 0.0), metric) for cell in cells)
    high = max(scaled(cell.mean + (cell.stderr or 0.0), metric) for cell in cells)
    room = 0.08 * (high - low) or 0.5
    return low - room, high + room


@dataclass(frozen=True, slots=True)
class Panels:
    """The pictures of one order of learning, and what they share."""

    stages: tuple[str, ...]
    legend: list[tuple[str, str, str]]  # colour, sign and label of each method
    pictures: list[tuple[str, str]]  # domain, HTML


def panels(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> list[Panels]:
    """One picture a domain for each order of learning; methods look as in every picture of the page."""
    places = {label: place for place, label in enumerate(groups)}
    made = []
    for turn, domains in enumerate(courses(groups, metric)):
        if not domains:
            continue
        axis = reach(domains, metric)
        there = [label for label in groups if any(label in course.lines for course in domains)]
        pictures = [
            (course.domain, course_chart(course, metric, places, name=f"forgetting-{turn}-{i}", reach=axis))
            for i, course in enumerate(domains)
        ]
        made.append(Panels(domains[0].stages, legend(groups, there), pictures))
    return made

"""Continual learning: transfer and forgetting along a stream of domains, with their figures.

R[i][j] is the score on domain j after stage i, T the number of stages, s(j) the stage that learned domain j (s(j) = j
in a simple stream). Transfer is signed so that higher is better, forgetting so that lower is better, for all metrics.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import grouped
from holdfast.report.plots import DARK, DOTTED, add_series, escape, heatmap, legend, to_html
from holdfast.report.statistics import Cell, summarise
from holdfast.report.table import data_and_plan, score_matrix, stream_domains
from holdfast.report.words import format_cell, format_number, metric_name, scaled

Matrix = Sequence[Sequence[float]]


def average(r: Matrix, learned: Sequence[int] | None = None) -> float | None:
    """ACC = mean over learned j of R[T-1][j] (Lopez-Paz & Ranzato, 2017)."""
    return _mean([r[-1][j] for j in range(len(_stages(r, learned)))])


def backward_transfer(
    r: Matrix, learned: Sequence[int] | None = None, *, lower_is_better: bool = False
) -> float | None:
    """BWT = mean over j learned before the last stage of R[T-1][j] - R[s(j)][j] (Lopez-Paz & Ranzato, 2017)."""
    changes = [r[-1][j] - r[s][j] for j, s in enumerate(_stages(r, learned)) if s < len(r) - 1]
    return _mean(changes, -1 if lower_is_better else 1)


def forward_transfer(
    r: Matrix, baseline: Sequence[float], learned: Sequence[int] | None = None, *, lower_is_better: bool = False
) -> float | None:
    """FWT = mean over j learned after the first stage of R[s(j)-1][j] - b[j] (Lopez-Paz & Ranzato, 2017).

    b[j] is the score on domain j of an untrained model.
    """
    changes = [r[s - 1][j] - baseline[j] for j, s in enumerate(_stages(r, learned)) if s > 0]
    return _mean(changes, -1 if lower_is_better else 1)


def forgetting(r: Matrix, learned: Sequence[int] | None = None, *, lower_is_better: bool = False) -> float | None:
    """F = mean over j learned before the last stage of max_{i < T-1} R[i][j] - R[T-1][j] (Chaudhry et al., 2018).

    Negative if the last stage still improved the score.
    """
    sign = -1 if lower_is_better else 1
    losses = []
    for j, s in enumerate(_stages(r, learned)):
        if s < len(r) - 1:
            before = [sign * r[i][j] for i in range(len(r) - 1) if not math.isnan(r[i][j])]
            losses.append((max(before) if before else math.nan) - sign * r[-1][j])
    return _mean(losses)


def _stages(r: Matrix, learned: Sequence[int] | None) -> Sequence[int]:
    """Return the stage that learned each domain, by default one domain per stage; later columns were never learned."""
    stages = range(len(r)) if learned is None else learned
    assert len({len(line) for line in r}) == 1, "lines of the matrix differ in length"
    assert len(stages) <= len(r[0]), "more domains learned than scored"
    return stages


def _mean(values: Sequence[float], sign: int = 1) -> float | None:
    """Return the mean; None for no values or a missing score."""
    if not values or any(math.isnan(v) for v in values):
        return None
    return sign * math.fsum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Transfer of one configuration over seeds; None if scores are missing."""

    label: str
    average: Cell | None
    backward: Cell | None
    forward: Cell | None
    forgetting: Cell | None


def transfers(records: Iterable[RunRecord], metric: str, *, baseline: Sequence[float] | None = None) -> list[Transfer]:
    """Return one entry per configuration with several stages.

    `baseline` holds the scores of an untrained model by `stream_domains`, for forward transfer.
    """
    lower = metric in LOWER_IS_BETTER

    def cell(values: Iterable[float | None]) -> Cell | None:
        known = [v for v in values if v is not None]
        return summarise(known) if known else None

    entries = []
    for name, group in grouped(records).items():
        runs = [(score_matrix(r, metric), learned_at(r)) for r in group if len(r.stages) > 1]
        if runs:
            forward = (forward_transfer(r, baseline or (), s, lower_is_better=lower) for r, s in runs)
            entries.append(
                Transfer(
                    name,
                    average=cell(average(r, s) for r, s in runs),
                    backward=cell(backward_transfer(r, s, lower_is_better=lower) for r, s in runs),
                    forward=None if baseline is None else cell(forward),
                    forgetting=cell(forgetting(r, s, lower_is_better=lower) for r, s in runs),
                )
            )
    return entries


def learned_at(record: RunRecord) -> list[int]:
    """Return the stage that first learned each domain, for the learned ones among `stream_domains`."""
    first: dict[str, int] = {}
    for i, stage in enumerate(record.stages):
        for domain in stage["train"]:
            first.setdefault(domain, i)
    return [first[d] for d in stream_domains(record) if d in first]


def zero_shot_cells(record: RunRecord) -> list[tuple[int, int]]:
    """Return the cells (stage, domain) of R that were scored before the domain was learned."""
    learned, domains = learned_at(record), stream_domains(record)
    stages = [*learned, *[len(record.stages)] * (len(domains) - len(learned))]
    return [
        (i, j)
        for i, stage in enumerate(record.stages)
        for j, domain in enumerate(domains)
        if domain in stage["test"] and i < stages[j]
    ]


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
class Course:
    """Scores on one domain after each stage of streams with the same order."""

    domain: str
    stages: tuple[str, ...]  # training domains per stage
    learned: int | None  # the first stage that trained on it
    lines: dict[str, list[Cell | None]]  # label -> score over seeds per stage; None if it was not scored


@dataclass(frozen=True, slots=True)
class CourseFigures:
    """Figures of one order of learning: one per domain."""

    stages: tuple[str, ...]
    legend: list[tuple[str, str, str]]  # colour, sign and label per method
    figures: list[tuple[str, str]]  # domain, HTML


def courses(groups: Mapping[str, Sequence[RunRecord]], metric: str) -> list[list[Course]]:
    """Return the courses of all domains per data set and order of learning."""
    orders: dict[tuple[tuple[str, ...], ...], dict[str, list[RunRecord]]] = {}
    for label, group in groups.items():
        for record in group:
            if len(record.stages) > 1:
                order = (data_and_plan(record), *(tuple(stage["train"]) for stage in record.stages))
                orders.setdefault(order, {}).setdefault(label, []).append(record)
    return [_courses(methods, metric) for methods in orders.values()]


def _courses(methods: Mapping[str, Sequence[RunRecord]], metric: str) -> list[Course]:
    records = [record for group in methods.values() for record in group]
    domains = list(dict.fromkeys(domain for record in records for domain in stream_domains(record)))
    stages = tuple("+".join(stage["train"]) for stage in records[0].stages)
    entries = []
    for domain in domains:
        lines = {
            label: [_over_seeds(group, i, domain, metric) for i in range(len(stages))]
            for label, group in methods.items()
        }
        lines = {label: line for label, line in lines.items() if any(cell is not None for cell in line)}
        learned = next((i for i, stage in enumerate(records[0].stages) if domain in stage["train"]), None)
        if lines:
            entries.append(Course(domain, stages, learned, lines))
    return entries


def _over_seeds(records: Sequence[RunRecord], stage: int, domain: str, metric: str) -> Cell | None:
    scores = [record.stages[stage]["test"].get(domain, {}).get(metric) for record in records]
    known = [float(score) for score in scores if score is not None and math.isfinite(score)]
    return summarise(known) if known else None


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

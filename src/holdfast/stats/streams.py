"""Continual learning: transfer and forgetting along a stream of domains.

R[i][j] is the score on domain j after stage i, T the number of stages, s(j) the stage that learned domain j (s(j) = j
in a simple stream). Transfer is signed so that higher is better, forgetting so that lower is better, for all metrics.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import Cell, summarise
from holdfast.stats.table import data_and_plan, score_matrix, stream_domains

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
    forgetting: Cell | None


def transfers(groups: Groups, metric: str) -> list[Transfer]:
    """Return one entry per configuration with several stages."""
    lower, entries = metric in LOWER_IS_BETTER, []
    for name, group in groups.items():
        runs = [(score_matrix(r, metric), learned_at(r)) for r in group if len(r.stages) > 1]
        if runs:
            entries.append(
                Transfer(
                    name,
                    average=_cell(average(r, s) for r, s in runs),
                    backward=_cell(backward_transfer(r, s, lower_is_better=lower) for r, s in runs),
                    forgetting=_cell(forgetting(r, s, lower_is_better=lower) for r, s in runs),
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


@dataclass(frozen=True, slots=True)
class Course:
    """Scores on one domain after each stage of streams with the same order."""

    domain: str
    stages: tuple[str, ...]  # training domains per stage
    learned: int | None  # the first stage that trained on it
    lines: dict[str, list[Cell | None]]  # label -> score over seeds per stage; None if it was not scored


def courses(groups: Groups, metric: str) -> list[list[Course]]:
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
            label: [_cell(r.stages[i]["test"].get(domain, {}).get(metric) for r in group) for i in range(len(stages))]
            for label, group in methods.items()
        }
        lines = {label: line for label, line in lines.items() if any(cell is not None for cell in line)}
        learned = next((i for i, stage in enumerate(records[0].stages) if domain in stage["train"]), None)
        if lines:
            entries.append(Course(domain, stages, learned, lines))
    return entries


def _cell(scores: Iterable[float | None]) -> Cell | None:
    """Summarise the known scores; None without any."""
    known = [float(score) for score in scores if score is not None and math.isfinite(score)]
    return summarise(known) if known else None

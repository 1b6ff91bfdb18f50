"""What learning one domain does to the others: average, backward and forward transfer, forgetting.

R[i][j] score on domain j after stage i, T stages, s(j) the stage that learnt domain j (s(j) = j in a plain stream).
Transfer is turned so that higher is better and forgetting so that lower is better, whatever the metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import grouped
from holdfast.report.statistics import Cell, summarise
from holdfast.report.table import score_matrix, stream_domains

Matrix = Sequence[Sequence[float]]


def average(r: Matrix, learnt: Sequence[int] | None = None) -> float | None:
    """ACC = mean over learnt j of R[T-1][j] (Lopez-Paz & Ranzato, 2017)."""
    return _mean([r[-1][j] for j in range(len(_stages(r, learnt)))])


def backward_transfer(r: Matrix, learnt: Sequence[int] | None = None, *, lower_is_better: bool = False) -> float | None:
    """BWT = mean over j learnt before the last stage of R[T-1][j] - R[s(j)][j] (Lopez-Paz & Ranzato, 2017)."""
    found = [r[-1][j] - r[s][j] for j, s in enumerate(_stages(r, learnt)) if s < len(r) - 1]
    return _mean(found, -1 if lower_is_better else 1)


def forward_transfer(
    r: Matrix, baseline: Sequence[float], learnt: Sequence[int] | None = None, *, lower_is_better: bool = False
) -> float | None:
    """FWT = mean over j learnt after the first stage of R[s(j)-1][j] - b[j] (Lopez-Paz & Ranzato, 2017).

    b[j] is the score on domain j of a model that learnt nothing yet.
    """
    found = [r[s - 1][j] - baseline[j] for j, s in enumerate(_stages(r, learnt)) if s > 0]
    return _mean(found, -1 if lower_is_better else 1)


def forgetting(r: Matrix, learnt: Sequence[int] | None = None, *, lower_is_better: bool = False) -> float | None:
    """F = mean over j learnt before the last stage of max_{i < T-1} R[i][j] - R[T-1][j] (Chaudhry et al., 2018).

    What was lost since the best moment; below zero where the last stage still helped.
    """
    sign = -1 if lower_is_better else 1
    found = []
    for j, s in enumerate(_stages(r, learnt)):
        if s < len(r) - 1:
            before = [sign * r[i][j] for i in range(len(r) - 1) if not math.isnan(r[i][j])]
            found.append((max(before) if before else math.nan) - sign * r[-1][j])
    return _mean(found)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A method's stream in numbers, over seeds; None where the records do not tell."""

    label: str
    average: Cell | None
    backward: Cell | None
    forward: Cell | None
    forgetting: Cell | None


def transfers(records: Iterable[RunRecord], metric: str, *, baseline: Sequence[float] | None = None) -> list[Transfer]:
    """One entry a configuration with more than one stage; `baseline` is by `stream_domains`, for forward transfer."""
    lower = metric in LOWER_IS_BETTER
    made = []
    for name, group in grouped(records).items():
        runs = [(score_matrix(r, metric), learnt_at(r)) for r in group if len(r.stages) > 1]
        if not runs:
            continue
        forward = [] if baseline is None else [forward_transfer(r, baseline, s, lower_is_better=lower) for r, s in runs]
        made.append(
            Transfer(
                name,
                _cell([average(r, s) for r, s in runs]),
                _cell([backward_transfer(r, s, lower_is_better=lower) for r, s in runs]),
                _cell(forward),
                _cell([forgetting(r, s, lower_is_better=lower) for r, s in runs]),
            )
        )
    return made


def learnt_at(record: RunRecord) -> list[int]:
    """The stage that first learnt each domain, for the learnt ones among `stream_domains`."""
    first: dict[str, int] = {}
    for i, stage in enumerate(record.stages):
        for domain in stage["train"]:
            first.setdefault(domain, i)
    return [first[d] for d in stream_domains(record) if d in first]


def unlearnt(record: RunRecord) -> list[tuple[int, int]]:
    """The cells (stage, domain) of R that were scored before the stage that learnt the domain: zero-shot."""
    learnt, tested = learnt_at(record), stream_domains(record)
    found = [learnt[j] if j < len(learnt) else len(record.stages) for j in range(len(tested))]
    return [
        (i, j)
        for i, stage in enumerate(record.stages)
        for j, domain in enumerate(tested)
        if domain in stage["test"] and i < found[j]
    ]


def _stages(r: Matrix, learnt: Sequence[int] | None) -> Sequence[int]:
    """One domain a stage, in order, unless told otherwise; later columns were never learnt."""
    stages = range(len(r)) if learnt is None else learnt
    assert len({len(line) for line in r}) == 1, "a matrix has equal lines"
    assert len(stages) <= len(r[0]), "more domains learnt than scored"
    return stages


def _mean(values: Sequence[float], sign: int = 1) -> float | None:
    """None where there is nothing to average or a score is missing."""
    if not values or any(math.isnan(v) for v in values):
        return None
    return sign * math.fsum(values) / len(values)


def _cell(values: Sequence[float | None]) -> Cell | None:
    given = [v for v in values if v is not None]
    return summarise(given) if given else None

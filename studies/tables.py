"""Rows of an evidence table beside those they are compared with, as the tables print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from holdfast.record import PACKED, RunRecord, load
from holdfast.report.statistics import interval, paired_t

RESULTS = Path(__file__).parents[1] / "results"
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # row -> column -> seed -> score


@cache
def records(study: str) -> tuple[RunRecord, ...]:
    """Return the records of a study, such as `mil/amazon`."""
    return tuple(load(RESULTS / f"{study}{PACKED}"))


def difference(mine: Sequence[float], theirs: Sequence[float], digits: int = 2) -> str:
    """The mean difference with its 95% interval over seeds, and the two-sided p of the paired t-test."""
    told, test = interval([a - b for a, b in zip(mine, theirs, strict=True)]), paired_t(mine, theirs)
    assert told is not None
    assert test.p is not None
    return f"{test.difference:+.{digits}f} ({told[0]:+.{digits}f} to {told[1]:+.{digits}f}), p {test.p:.2f}"


def compared(
    found: Scores,
    rows: Iterable[str],
    columns: Sequence[str],
    *,
    seeds: int,
    against: Mapping[str, str],
    published: Mapping[str, float] | None = None,
    beside: Sequence[str] = (),
) -> list[str]:
    """Every row must have every seed on every column; differences are those of the mean over columns.

    `against` are the rows to compare with and what their columns are called, `published` the printed means of rows,
    `beside` columns that are shown and count for no mean.
    """

    def means(row: str) -> list[float]:
        return [fmean(found[row][column][seed] for column in columns) for seed in range(seeds)]

    told = [] if published is None else ["published"]
    mean = ["mean"] if len(columns) > 1 else []
    head = ["row", *columns, *mean, *beside, *told, *(f"against {name}" for name in against.values())]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        by_column = [fmean(found[row][column][seed] for seed in range(seeds)) for column in columns]
        others = [fmean(found[row][column][seed] for seed in range(seeds)) for column in beside]
        cells = [f"{value:.1f}" for value in [*by_column, *(fmean(by_column) for _ in mean), *others]]
        if published is not None:
            cells.append(f"{published[row]:.1f}" if row in published else "-")
        cells += ["-" if row == other else difference(means(row), means(other)) for other in against]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines

"""Helpers of all studies: reading packed records, paired differences, and comparison tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.record import PACKED, RunRecord, load
from holdfast.stats.statistics import interval, paired_t

RESULTS = Path(__file__).parents[1] / "results"
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]  # row -> column -> seed -> score


@cache
def records(study: str) -> tuple[RunRecord, ...]:
    """Return the records of a study, such as `mil/amazon`."""
    return tuple(load(RESULTS / f"{study}{PACKED}"))


def match_row(rows: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Return the only row whose conditions the facts of a record meet."""
    (name,) = (name for name, wanted in rows.items() if all(facts[key] == value for key, value in wanted.items()))
    return name


def header(*columns: str) -> list[str]:
    """Return the two header lines of a Markdown table."""
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def difference(scores: Sequence[float], baseline: Sequence[float], digits: int = 2) -> str:
    """Format the mean paired difference, its 95% interval over seeds and the two-sided p value of the paired t-test."""
    bounds, test = interval([a - b for a, b in zip(scores, baseline, strict=True)]), paired_t(scores, baseline)
    assert bounds is not None
    if test.p is None:  # all differences are equal
        return f"{test.difference:+.{digits}f}"
    return f"{test.difference:+.{digits}f} ({bounds[0]:+.{digits}f} to {bounds[1]:+.{digits}f}), p {test.p:.2f}"


def compared(
    scores: Scores,
    rows: Iterable[str],
    columns: Sequence[str],
    *,
    seeds: int,
    against: Mapping[str, str],
    published: Mapping[str, float] | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """Return a table with one line per row: columns, their mean, and paired differences of that mean.

    Every row needs every seed in every column. `against` maps the rows to compare with to the names of their columns,
    `published` holds the published mean per row, `extra` names columns that are shown but not part of the mean.
    """

    def means(row: str) -> list[float]:
        return [fmean(scores[row][column][seed] for column in columns) for seed in range(seeds)]

    mean = ["mean"] if len(columns) > 1 else []
    named = [] if published is None else ["published"]
    lines = header("row", *columns, *mean, *extra, *named, *(f"against {name}" for name in against.values()))
    for row in rows:
        by_column = [fmean(scores[row][column][seed] for seed in range(seeds)) for column in columns]
        shown = [fmean(scores[row][column][seed] for seed in range(seeds)) for column in extra]
        cells = [f"{value:.1f}" for value in [*by_column, *(fmean(by_column) for _ in mean), *shown]]
        if published is not None:
            cells.append(f"{published[row]:.1f}" if row in published else "-")
        cells += ["-" if row == other else difference(means(row), means(other)) for other in against]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines

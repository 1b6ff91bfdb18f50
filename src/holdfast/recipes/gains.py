"""How much better a row is than another, in percent of that one: in the domain that trained, and out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from holdfast.recipes.base import Recipe, Row
from holdfast.recipes.measure import Measured
from holdfast.report.stats import summarise

Scores = Mapping[str, float | None]  # column -> score


def gains_told(recipe: Recipe, made: Sequence[Measured]) -> list[str]:
    """A sentence for each row that names others, where both are measured, with what the printed cells give."""
    found: dict[str, dict[str, Measured]] = {}
    for one in made:
        found.setdefault(one.cell.row.name, {})[one.cell.column.name] = one
    told = []
    for name, own in found.items():
        row = recipe.rows[name]
        for rival in row.gain_over:
            base = found.get(rival, {})
            inside, outside = _sides(recipe, row, [column for column in own if column in base])
            for where, columns in (("in the domain that trained", inside), ("out of it", outside)):
                measured = mean_gain(_measured(own), _measured(base), columns)
                if measured is None:
                    continue
                printed = mean_gain(_printed(own), _printed(base), columns)
                mean_of = f", the mean of {len(columns)}" if len(columns) > 1 else ""
                beside = "" if printed is None else f"; the printed cells give {printed:+.1f} %"
                what = f"{row.label}, gain over {recipe.rows[rival].label} {where}{mean_of}"
                told.append(f"{what}: {measured:+.1f} % measured{beside}")
    return told


def mean_gain(own: Scores, base: Scores, columns: Sequence[str]) -> float | None:
    """The mean over columns of 100 (own / base - 1); None where one is not there or the base has nothing right."""
    pairs = [(own.get(column), base.get(column)) for column in columns]
    whole = [(a, b) for a, b in pairs if a is not None and b]
    if not whole or len(whole) < len(pairs):
        return None
    return math.fsum(100 * (a / b - 1) for a, b in whole) / len(whole)


def _sides(recipe: Recipe, row: Row, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns of domains that train, and the others."""
    trained = set(row.settings.get("plan.sources", ()))
    inside = [column for column in columns if trained & set(recipe.columns[column].targets)]
    return inside, [column for column in columns if column not in inside]


def _measured(line: Mapping[str, Measured]) -> Scores:
    return {column: summarise(one.values).mean if one.values else None for column, one in line.items()}


def _printed(line: Mapping[str, Measured]) -> Scores:
    return {column: one.cell.published for column, one in line.items()}

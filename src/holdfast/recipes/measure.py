"""From records to the cells of a published table: what was measured here, in the unit in which it was printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.recipes.base import Cell, Key, Recipe, mismatches
from holdfast.record import RunRecord
from holdfast.report.stats import interval, summarise

BySeed = dict[int, float]  # seed -> value


def _step(record: RunRecord) -> float:
    """Seconds that a training step took."""
    images = record.spec["batch"] * len(record.stages[0]["train"])
    return float(images / record.cost["examples_per_second"])


COSTS: dict[str, Callable[[RunRecord], float]] = {
    "parameters": lambda record: record.cost["parameters"] / 1e6,
    "step_seconds": _step,
    "memory": lambda record: record.cost["peak_memory_mb"] / 1024,
}


@dataclass(frozen=True)
class Measured:
    """A cell and one value a seed; where there is none, the reason."""

    cell: Cell
    values: tuple[float, ...]
    reason: str = ""

    def json(self) -> dict[str, Any]:
        """Row, column, metric, published and its error, mean, stderr, low and high of the 95% interval, n, reason."""
        told: dict[str, Any] = dict.fromkeys(("mean", "stderr", "low", "high"))
        if self.values:
            spread = summarise(self.values)
            low, high = interval(self.values) or (None, None)
            told = {"mean": spread.mean, "stderr": spread.stderr, "low": low, "high": high}
        return self.cell.json() | told | {"n": len(self.values), "reason": self.reason}

    def text(self) -> str:
        """`91.5 / 90.2 ± 0.3`: published, with its error if there is one, then measured; a dash where is no number."""
        column = self.cell.column
        spread = summarise(self.values) if self.values else None
        measured = column.text(None if spread is None else spread.mean)
        error = "" if spread is None or spread.stderr is None else f" ± {column.text(spread.stderr)}"
        return f"{self.cell.printed()} / {measured}{error}"


def measure(
    recipe: Recipe,
    cells: Sequence[Cell],
    records: Mapping[Key, Sequence[RunRecord]],
    reasons: Mapping[Key, str],
) -> list[Measured]:
    """Every cell with what its records say; where there are none, `reasons` tells why."""

    def parts(cell: Cell) -> list[Cell]:
        return [recipe.at(cell.row.name, column) for column in cell.column.mean_of] or [cell]

    def values(cell: Cell) -> BySeed:
        each = [_values(part, records.get(part.key, ())) for part in parts(cell)]
        shared = set.intersection(*(set(one) for one in each))  # a seed counts where it has every column
        return {seed: math.fsum(one[seed] for one in each) / len(each) for seed in sorted(shared)}

    def reason(cell: Cell) -> str:
        told = [reasons[part.key] for part in parts(cell) if part.key in reasons]
        return cell.reason or next(iter(told), "not all of its runs are done")

    made = []
    for cell in cells:
        got = tuple(values(cell).values())
        made.append(Measured(cell, got, "" if got else reason(cell)))
    return made


def _values(cell: Cell, records: Sequence[RunRecord]) -> BySeed:
    """One value a seed: the mean over the cell's targets, for seeds that have them all."""
    column = cell.column
    by_seed: dict[int, dict[str, float]] = {}
    for record in records:
        stage = record.stages[cell.row.stage]
        for target in column.targets:
            own = cell.plan == "single-source" and target in stage["valid"]  # it trained there: rows of it validate
            if not own and target not in stage["test"]:
                continue
            value = COSTS[column.metric](record) if column.metric in COSTS else _score(cell, target, stage, own=own)
            if value is not None:
                by_seed.setdefault(int(record.spec["seed"]), {})[target] = value
    whole = {seed: got for seed, got in sorted(by_seed.items()) if len(got) == len(column.targets)}
    return {seed: math.fsum(got.values()) / len(got) for seed, got in whole.items()}


def _score(cell: Cell, target: str, stage: dict[str, Any], *, own: bool = False) -> float | None:
    """As it is printed: the target's test score, or the mean validation score of the sources of that run."""
    metric, scale = cell.column.metric, 100 if cell.column.percent else 1
    if cell.column.scores == "test":
        value = stage["valid" if own else "test"][target][metric]
        return None if value is None else scale * value
    scores = [found[metric] for found in stage["valid"].values() if found[metric] is not None]
    return scale * math.fsum(scores) / len(scores) if scores else None


def _closed(made: Sequence[Measured]) -> dict[str, list[str]]:
    """Reasons for which whole columns were not run, such as data that is not there -> the labels of the columns."""
    columns: dict[str, set[str]] = {}
    for one in made:
        columns.setdefault(one.cell.column.label, set()).add("" if one.values else one.reason)
    found: dict[str, list[str]] = {}
    for label, reasons in columns.items():
        if len(reasons) == 1 and "" not in reasons:
            found.setdefault(reasons.pop(), []).append(label)
    return found


def remarks(recipe: Recipe, made: Sequence[Measured]) -> list[str]:
    """Sentences beside the table: each row, what was not run and why, and printed means that do not add up."""
    told = [f"{recipe.name} shows that {recipe.claim}"] if recipe.claim else []
    told += recipe.notes
    rows: dict[str, list[Measured]] = {}
    for one in made:
        rows.setdefault(one.cell.row.label, []).append(one)
    closed = _closed(made) if len(rows) > 1 else {}
    for reason, columns in closed.items():
        told.append(f"{', '.join(columns)} not run: {reason}")
    for label, line in rows.items():
        numbers = ", ".join(f"{one.cell.column.label} {one.text()}" for one in line)
        told.append(f"{label}, published / measured: {numbers}")
        why: dict[str, list[str]] = {}
        for one in line:
            if not one.values and one.cell.column.label not in closed.get(one.reason, ()):
                why.setdefault(one.reason, []).append(one.cell.column.label)
        for reason, columns in why.items():
            where = "" if len(columns) == len(line) else f", {', '.join(columns)}"
            told.append(f"{label}{where} not run: {reason}")
    shown = {(one.cell.row.name, one.cell.column.name) for one in made}
    for cell, mean in mismatches(recipe):
        if (cell.row.name, cell.column.name) in shown:
            told.append(
                f"{cell.row.label}, {cell.column.label}: {cell.column.text(cell.published)} is printed, but the "
                f"printed cells average {cell.column.text(mean)}"
            )
    return told

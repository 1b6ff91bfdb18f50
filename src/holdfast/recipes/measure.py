"""From records to the cells of a published table: what was measured here, in the unit in which it was printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.recipes.base import Cell, Key, Recipe, Row, mismatches, run_key
from holdfast.record import RunRecord
from holdfast.report.statistics import interval, summarise

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


@dataclass(frozen=True)
class Job:
    """What one row trains on one data set by one plan."""

    row: Row
    data: str
    plan: str
    select: str = ""  # how a step is chosen, where the table has several ways
    targets: dict[str, str] = field(default_factory=dict)  # target -> which of its rows are scored

    @property
    def key(self) -> Key:
        return run_key(self.row, self.data, self.plan, self.select)

    @property
    def sets(self) -> tuple[str, ...]:
        """The data sets to be read, the one that trains first."""
        return (self.data, *self.targets) if self.plan == "cross-dataset" else (self.data,)

    @property
    def only(self) -> set[str] | None:
        """The names of the episodes it needs; None where it needs all."""
        before = {"leave-one-out": "to", "in-domain": "in"}.get(self.plan)
        return {f"{before}-{target}" for target in self.targets} if before else None


def jobs_for(recipe: Recipe, cells: Sequence[Cell]) -> list[Job]:
    """The jobs of these cells and of the columns that their means are of, in the order of the table."""
    wanted = {(cell.row.name, column) for cell in cells for column in (cell.column.name, *cell.column.mean_of)}
    found: dict[Key, Job] = {}
    for cell in recipe.cells:
        if (cell.row.name, cell.column.name) in wanted and not cell.reason and not cell.column.mean_of:
            job = found.setdefault(cell.key, Job(cell.row, cell.data, cell.plan, cell.column.select))
            job.targets.update(dict.fromkeys(cell.column.targets, cell.column.split))
    return list(found.values())

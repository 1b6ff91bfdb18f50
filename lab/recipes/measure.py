"""Compute the cells of a published table from run records, in the printed unit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.record import RunRecord
from holdfast.stats.statistics import interval, summarise
from lab.recipes.recipe import Cell, Key, Recipe, Row, mismatches, run_key

ScoreBySeed = dict[int, float]
ScoreByColumn = Mapping[str, float | None]


COSTS: dict[str, Callable[[RunRecord], float]] = {
    "parameters": lambda record: record.cost["parameters"] / 1e6,
    "step_seconds": lambda record: _images(record) / record.cost["examples_per_second"],
    "memory": lambda record: record.cost["peak_memory_mb"] / 1024,
}


def _images(record: RunRecord) -> int:
    return record.spec["batch"] * len(record.stages[0]["train"])


@dataclass(frozen=True)
class TableJob:
    """The runs of one row on one training data set with one plan."""

    row: Row
    data: str
    plan: str
    select: str = ""
    targets: dict[str, str] = field(default_factory=dict)  # target -> scored split

    @property
    def key(self) -> Key:
        return run_key(self.row, self.data, self.plan, self.select)

    @property
    def sets(self) -> tuple[str, ...]:
        """Data sets to read; the first one trains."""
        return (self.data, *self.targets) if self.plan == "cross-dataset" else (self.data,)

    @property
    def only(self) -> set[str] | None:
        """Names of the episodes to run, or None for all."""
        prefix = {"leave-one-out": "to", "in-domain": "in"}.get(self.plan)
        return {f"{prefix}-{target}" for target in self.targets} if prefix else None


def jobs_for(recipe: Recipe, cells: Sequence[Cell]) -> list[TableJob]:
    """Return the jobs that score these cells and the columns that their means need, in table order."""
    wanted = {(cell.row.name, column) for cell in cells for column in (cell.column.name, *cell.column.mean_of)}
    jobs: dict[Key, TableJob] = {}
    for cell in recipe.cells:
        if (cell.row.name, cell.column.name) in wanted and not cell.reason and not cell.column.mean_of:
            job = jobs.setdefault(cell.key, TableJob(cell.row, cell.data, cell.plan, cell.column.select))
            job.targets.update(dict.fromkeys(cell.column.targets, cell.column.split))
    return list(jobs.values())


@dataclass(frozen=True)
class Measurement:
    """A cell with one value per seed, or the reason why there is none."""

    cell: Cell
    values: tuple[float, ...]
    reason: str = ""

    @property
    def mean(self) -> float | None:
        return summarise(self.values).mean if self.values else None

    def json(self) -> dict[str, Any]:
        """Return the cell with mean, standard error, 95% interval and number of seeds."""
        stats: dict[str, Any] = dict.fromkeys(("mean", "stderr", "low", "high"))
        if self.values:
            spread = summarise(self.values)
            low, high = interval(self.values) or (None, None)
            stats = {"mean": spread.mean, "stderr": spread.stderr, "low": low, "high": high}
        return self.cell.json() | stats | {"n": len(self.values), "reason": self.reason}

    def text(self) -> str:
        """Format published and measured number, such as `91.5 / 90.2 ± 0.3`."""
        column = self.cell.column
        stderr = summarise(self.values).stderr if self.values else None
        error = "" if stderr is None else f" ± {column.text(stderr)}"
        return f"{self.cell.printed()} / {column.text(self.mean)}{error}"


def measure(
    recipe: Recipe, cells: Sequence[Cell], records: Mapping[Key, Sequence[RunRecord]], reasons: Mapping[Key, str]
) -> list[Measurement]:
    """Return the measured values of every cell; `reasons` explains jobs without records."""

    def members(cell: Cell) -> list[Cell]:
        return [recipe.cell(cell.row.name, column) for column in cell.column.mean_of] or [cell]

    def values(cell: Cell) -> ScoreBySeed:
        scores = [_values(member, records.get(member.key, ())) for member in members(cell)]
        seeds = set.intersection(*(set(column) for column in scores))  # only seeds that have every column
        return {seed: math.fsum(column[seed] for column in scores) / len(scores) for seed in sorted(seeds)}

    def reason(cell: Cell) -> str:
        known = [reasons[member.key] for member in members(cell) if member.key in reasons]
        return cell.reason or next(iter(known), "some of its runs are missing")

    scores = [tuple(values(cell).values()) for cell in cells]
    return [Measurement(cell, seeds, "" if seeds else reason(cell)) for cell, seeds in zip(cells, scores, strict=True)]


def _values(cell: Cell, records: Sequence[RunRecord]) -> ScoreBySeed:
    """Return the mean over the targets of a cell per seed, for seeds that have all targets."""
    column = cell.column
    by_seed: dict[int, dict[str, float]] = {}
    for record in records:
        stage = record.stages[cell.row.stage]
        for target in column.targets:
            source = cell.plan == "single-source" and target in stage["valid"]  # scored on its validation rows
            if not source and target not in stage["test"]:
                continue
            value = COSTS[column.metric](record) if column.metric in COSTS else _score(cell, target, stage, source)
            if value is not None:
                by_seed.setdefault(int(record.spec["seed"]), {})[target] = value
    complete = {seed: scores for seed, scores in sorted(by_seed.items()) if len(scores) == len(column.targets)}
    return {seed: math.fsum(scores.values()) / len(scores) for seed, scores in complete.items()}


def _score(cell: Cell, target: str, stage: dict[str, Any], source: bool) -> float | None:
    """Return the score of a target, or the mean validation score of the sources, in the printed unit."""
    metric, scale = cell.column.metric, 100 if cell.column.percent else 1
    if cell.column.scores == "test":
        value = stage["valid" if source else "test"][target][metric]
        return None if value is None else scale * value
    scores = [domain[metric] for domain in stage["valid"].values() if domain[metric] is not None]
    return scale * math.fsum(scores) / len(scores) if scores else None


def remarks(recipe: Recipe, measurements: Sequence[Measurement]) -> list[str]:
    """Return the claim, the notes, one line per row, what was not run and why, and inconsistent printed means."""
    lines = [f"{recipe.name} shows that {recipe.claim}"] if recipe.claim else []
    lines += recipe.notes
    rows: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        rows.setdefault(measurement.cell.row.label, []).append(measurement)
    skipped = _skipped_columns(measurements) if len(rows) > 1 else {}
    lines += [f"{', '.join(columns)} not run: {reason}" for reason, columns in skipped.items()]
    for label, row in rows.items():
        numbers = ", ".join(f"{cell.cell.column.label} {cell.text()}" for cell in row)
        lines.append(f"{label}, published / measured: {numbers}")
        reasons: dict[str, list[str]] = {}
        for cell in row:
            if not cell.values and cell.cell.column.label not in skipped.get(cell.reason, ()):
                reasons.setdefault(cell.reason, []).append(cell.cell.column.label)
        for reason, columns in reasons.items():
            where = "" if len(columns) == len(row) else f", {', '.join(columns)}"
            lines.append(f"{label}{where} not run: {reason}")
    shown = {(one.cell.row.name, one.cell.column.name) for one in measurements}
    for cell, mean in mismatches(recipe):
        if (cell.row.name, cell.column.name) in shown:
            printed, average = cell.column.text(cell.published), cell.column.text(mean)
            where = f"{cell.row.label}, {cell.column.label}"
            lines.append(f"{where}: the paper prints {printed}, but its printed cells average {average}")
    return lines


def _skipped_columns(measurements: Sequence[Measurement]) -> dict[str, list[str]]:
    """Return reasons why complete columns were not run, such as missing data -> labels of the columns."""
    columns: dict[str, set[str]] = {}
    for one in measurements:
        columns.setdefault(one.cell.column.label, set()).add("" if one.values else one.reason)
    labels: dict[str, list[str]] = {}
    for label, reasons in columns.items():
        if len(reasons) == 1 and "" not in reasons:
            labels.setdefault(reasons.pop(), []).append(label)
    return labels


def gain_remarks(recipe: Recipe, measurements: Sequence[Measurement]) -> list[str]:
    """Return one line per row with `gain_over`: relative gains in and out of the training domain."""
    rows: dict[str, dict[str, Measurement]] = {}
    for one in measurements:
        rows.setdefault(one.cell.row.name, {})[one.cell.column.name] = one
    lines = []
    for name, cells in rows.items():
        row = recipe.rows[name]
        for baseline in row.gain_over:
            base = rows.get(baseline, {})
            means = [{column: cell.mean for column, cell in part.items()} for part in (cells, base)]
            published = [{column: cell.cell.published for column, cell in part.items()} for part in (cells, base)]
            inside, outside = _split_columns(recipe, row, [column for column in cells if column in base])
            for where, columns in (("in the training domain", inside), ("out of the training domain", outside)):
                measured = mean_gain(means[0], means[1], columns)
                printed = mean_gain(published[0], published[1], columns)
                if measured is None:
                    continue
                mean_of = f", mean of {len(columns)}" if len(columns) > 1 else ""
                from_print = "" if printed is None else f", {printed:+.1f}% from the printed cells"
                what = f"{row.label}, gain over {recipe.rows[baseline].label} {where}{mean_of}"
                lines.append(f"{what}: {measured:+.1f}% measured{from_print}")
    return lines


def mean_gain(scores: ScoreByColumn, base: ScoreByColumn, columns: Sequence[str]) -> float | None:
    """Return the mean over columns of 100 (score / base - 1), or None if a score is missing or a base is 0."""
    pairs = [(scores.get(column), base.get(column)) for column in columns]
    complete = [(score, reference) for score, reference in pairs if score is not None and reference]
    if not complete or len(complete) < len(pairs):
        return None
    return math.fsum(100 * (score / reference - 1) for score, reference in complete) / len(complete)


def _split_columns(recipe: Recipe, row: Row, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split columns into those of training domains and the others."""
    sources = set(row.settings.get("plan.sources", ()))
    inside = [column for column in columns if sources & set(recipe.columns[column].targets)]
    return inside, [column for column in columns if column not in inside]

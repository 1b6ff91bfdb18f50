"""A published table: rows, columns, the number printed in each cell, and what has to be run to measure it here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import unknown

Key = tuple[str, ...]  # row, data set that trains, plan; the selection too where columns differ in it


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: what is trained."""

    name: str  # how `--rows` calls it
    label: str  # how the table calls it
    settings: Mapping[str, Any] = field(default_factory=dict)  # as `--set` takes them
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by the data set that trains: settings there
    plan: str = ""  # in place of the column's; in-domain trains and scores inside the target, without a shift
    stage: int = -1  # after which stage of a stream it is scored
    start: str = ""  # which of the recipe's starts it begins with
    turns: str = ""  # a setting that counts the steps for which one domain is held out
    steps: int = 0  # in place of the budget's, where it trained longer or shorter than the others
    reason: str = ""  # why it cannot be run; empty where it can
    gain_over: tuple[str, ...] = ()  # rows that its gain is told over, in the domains that trained and out of them
    asks: Mapping[str, str] = field(default_factory=dict)  # settings that only the user can give -> why not without


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: what is trained on, what is scored on, and by which number."""

    name: str
    label: str
    data: str = ""  # the data set that trains
    targets: tuple[str, ...] = ()  # domains that are left out, or data sets that are only scored; their mean is told
    plan: str = "leave-one-out"
    split: str = "test"  # which rows of a target, where it names splits
    mean_of: tuple[str, ...] = ()  # nothing is run: the mean of these columns
    scores: str = "test"  # valid: the validation rows of the sources instead
    select: str = ""  # how a step is chosen, where columns differ in it
    metric: str = "macro_f1"  # or parameters in millions, seconds of a step, gigabytes at most
    reason: str = ""  # why it is not measured; empty where it is
    digits: int = 1  # decimals in print
    percent: bool = True  # whether it is printed in percent

    def text(self, value: float | None) -> str:
        """A number as this column prints it; a dash where there is none."""
        return "–" if value is None else f"{value:.{self.digits}f}"


def run_key(row: Row, data: str, plan: str, select: str) -> Key:
    """What tells runs apart."""
    return (row.name, data, plan, select) if select else (row.name, data, plan)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a table, as printed; None where none was."""

    recipe: str
    row: Row
    column: Column
    published: float | None
    error: float | None = None  # printed after ±

    @property
    def plan(self) -> str:
        return self.row.plan or self.column.plan

    @property
    def data(self) -> str:
        """The data set that trains; inside a data set that is otherwise only scored it is that one."""
        elsewhere = self.row.plan == "in-domain" and self.column.plan == "cross-dataset"
        return self.column.targets[0] if elsewhere else self.column.data

    @property
    def key(self) -> Key:
        """Cells with equal keys are scored by the same runs."""
        return run_key(self.row, self.data, self.plan, self.column.select)

    @property
    def reason(self) -> str:
        """Why it cannot be run; empty where it can."""
        return self.row.reason or self.column.reason

    def printed(self) -> str:
        """`91.5 ± 0.3` as the table prints it; a dash where there is no number."""
        error = "" if self.error is None else f" ± {self.column.text(self.error)}"
        return self.column.text(self.published) + error

    def json(self) -> dict[str, Any]:
        told = {"row": self.row.name, "column": self.column.name, "metric": self.column.metric}
        return told | {"published": self.published, "published_error": self.error, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run was trained: epochs or steps, examples of all domains in a batch, warm-up."""

    epochs: int = 0
    steps: int = 0  # where steps were published and not epochs
    batch: int
    warmup: float = 0  # steps, or below 1 a share of them
    every: int = 0  # steps between validations; 0 is an epoch, or a tenth where there are none

    def settings(self, *, domains: int, examples: int, steps: int | None = None) -> dict[str, Any]:
        """For so many training domains with so many examples in all; another number of steps scales the rest."""
        assert bool(self.epochs) != bool(self.steps), self
        full = self.steps or math.ceil(self.epochs * examples / self.batch)
        length = full if steps is None else steps
        share = self.warmup if self.warmup < 1 else min(0.5, self.warmup / full)
        warmup = float(self.warmup) if length == full and share < 0.5 else share
        every = self.every or length // (self.epochs or 10) if steps is None else length // 10
        batch = max(1, round(self.batch / domains))
        return {"steps": length, "warmup": warmup, "every": max(1, every), "batch": batch}

    def turn(self, *, domains: int, steps: int) -> int:
        """Steps with one domain held out, so that each is held out once an epoch."""
        return max(1, math.ceil(steps / self.epochs / domains))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A published table or figure and everything that its rows share."""

    name: str
    cells: tuple[Cell, ...]
    encoder: str
    encoder_settings: Mapping[str, Mapping[str, Any]]  # by the data set that trains; another encoder has its own
    settings: Mapping[str, Any]
    budget: Budget
    budgets: Mapping[str, Budget] = field(default_factory=dict)  # by the data set that trains, where it has its own
    # by the data set that trains; one of a part, such as neck.real, goes to the rows whose part has it
    data_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # by start and the data set that trains: settings such as the checkpoint that a row begins with
    starts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    claim: str = ""  # what a figure shows, in words
    notes: tuple[str, ...] = ()  # what a reader of the numbers must know

    @property
    def rows(self) -> dict[str, Row]:
        return {cell.row.name: cell.row for cell in self.cells}

    @property
    def columns(self) -> dict[str, Column]:
        return {cell.column.name: cell.column for cell in self.cells}

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Why rows cannot be run -> the names of these rows."""
        found: dict[str, list[str]] = {}
        for name, row in self.rows.items():
            if row.reason:
                found.setdefault(row.reason, []).append(name)
        return found

    def task(self, data: str) -> str:
        """What is learnt on a data set."""
        return str(self.data_settings.get(data, {}).get("task") or self.settings.get("task") or "classify")

    def choose(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> list[Cell]:
        """The cells of these rows and columns, all where none are named; one sentence for a name that is not there."""
        for kind, names, known in (("row", rows, self.rows), ("column", columns, self.columns)):
            for name in names:
                if name not in known:
                    raise unknown(f"{kind} of {self.name}", name, known)
        return [
            cell
            for cell in self.cells
            if (not rows or cell.row.name in rows) and (not columns or cell.column.name in columns)
        ]

    def at(self, row: str, column: str) -> Cell:
        (found,) = self.choose([row], [column])
        return found

    def json(self) -> list[dict[str, Any]]:
        """One dict a row: name, label, why it cannot be run, the printed number of each column and its error."""
        return [
            {
                "row": name,
                "label": row.label,
                "reason": row.reason,
                "published": {cell.column.name: cell.published for cell in self.choose([name])},
                "published_error": {cell.column.name: cell.error for cell in self.choose([name])},
            }
            for name, row in self.rows.items()
        ]


def grid(
    name: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    printed: Mapping[str, Sequence[float | None]],
    errors: Mapping[str, Sequence[float | None]] | None = None,
) -> tuple[Cell, ...]:
    """All cells of a table, row by row; a row that is not printed is a control of our own."""
    errors = errors or {}
    assert set(errors) <= set(printed) <= {row.name for row in rows}, printed
    nothing = [None] * len(columns)
    return tuple(
        Cell(recipe=name, row=row, column=column, published=value, error=error)
        for row in rows
        for column, value, error in zip(
            columns, printed.get(row.name, nothing), errors.get(row.name, nothing), strict=True
        )
    )


def mismatches(recipe: Recipe) -> Iterator[tuple[Cell, float]]:
    """Printed means that no rounding explains, each with the mean of the cells that it is printed for."""
    for cell in recipe.cells:
        parts = [recipe.at(cell.row.name, column).published for column in cell.column.mean_of]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts) or cell.published is None:
            continue
        mean = math.fsum(known) / len(known)
        # a printed mean and the mean of printed cells each miss the true one by half their last decimal at most
        decimals = [cell.column.digits, min(recipe.columns[column].digits for column in cell.column.mean_of)]
        if abs(mean - cell.published) > sum(0.5 * 10**-n for n in decimals) + 1e-9:
            yield cell, mean

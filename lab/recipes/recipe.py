"""Published tables: rows, columns, the printed number of every cell, and the settings that reproduce them.

The tables are data. There is one TOML file per paper with these sections:

- `notes`: remarks by key
- `columns` and `rows`: fields of `Column` and `Row` by name
- `recipes`: fields of `Recipe` by name; `published` lists the rows with one number per column, `-` where none is
  printed, `85.7±0.5` for a number with its error, and an empty string for a control that was not published

`like = "NAME"` starts from another entry of the section. A row or column `TABLE/NAME` takes precedence over `NAME` in
that table.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from holdfast import catalog
from holdfast.core.errors import check_known

Key = tuple[str, ...]  # row, training data set, plan and, in tables that compare selections, the selection
Section = Mapping[str, Mapping[str, Any]]  # entries of a file by name
Part = TypeVar("Part", "Row", "Column")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table: the model and method that are trained."""

    name: str  # as in `--rows`
    label: str  # as in the printed table
    settings: Mapping[str, Any] = field(default_factory=dict)  # as in `--set`
    data_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by training data set
    plan: str = ""  # replaces the plan of the column
    stage: int = -1  # the stage of a stream after which it is scored
    start: str = ""  # name of a starting checkpoint in `Recipe.starts`
    turn_setting: str = ""  # setting that receives the number of steps for which one domain is held out
    steps: int = 0  # replaces the steps of the budget
    reason: str = ""  # why it cannot be run
    gain_over: tuple[str, ...] = ()  # rows that its relative gain is computed over
    required: Mapping[str, str] = field(default_factory=dict)  # settings that the user must supply -> error message


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: training data, scored domains and metric."""

    name: str
    label: str
    data: str = ""  # training data set
    targets: tuple[str, ...] = ()  # held-out domains, or data sets that are only scored; their mean is reported
    plan: str = "leave-one-out"
    split: str = "test"  # scored rows of a target that has splits
    mean_of: tuple[str, ...] = ()  # the mean of these columns; nothing is run for it
    scores: str = "test"  # or valid: the validation rows of the source domains
    select: str = ""  # selection, in tables that compare selections
    metric: str = "macro_f1"  # or parameters (millions), step_seconds, memory (GB)
    reason: str = ""  # why it is not measured
    digits: int = 1
    percent: bool = True

    def text(self, value: float | None) -> str:
        """Format a number with the digits of this column, or a dash for None."""
        return "–" if value is None else f"{value:.{self.digits}f}"


def run_key(row: Row, data: str, plan: str, select: str) -> Key:
    """Return the key of the runs that score a cell."""
    return (row.name, data, plan, select) if select else (row.name, data, plan)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table with its printed number, or None."""

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
        """Training data set: in-domain rows train on the data set that the column only scores."""
        in_target = self.row.plan == "in-domain" and self.column.plan == "cross-dataset"
        return self.column.targets[0] if in_target else self.column.data

    @property
    def key(self) -> Key:
        """Key of the runs that score it; cells with equal keys share runs."""
        return run_key(self.row, self.data, self.plan, self.column.select)

    @property
    def reason(self) -> str:
        """Why it cannot be run, or an empty string."""
        return self.row.reason or self.column.reason

    def printed(self) -> str:
        """Format as printed, such as `91.5 ± 0.3`."""
        error = "" if self.error is None else f" ± {self.column.text(self.error)}"
        return self.column.text(self.published) + error

    def json(self) -> dict[str, Any]:
        names = {"row": self.row.name, "column": self.column.name, "metric": self.column.metric}
        return {**names, "published": self.published, "published_error": self.error, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of a run: epochs or steps, batch size over all domains, warm-up."""

    epochs: int = 0
    steps: int = 0  # if steps were published instead of epochs
    batch: int
    warmup: float = 0  # steps, or a fraction of them if below 1
    every: int = 0  # steps between validations; 0 is one epoch, or a tenth of the steps

    def settings(self, *, domains: int, examples: int, steps: int | None = None) -> dict[str, Any]:
        """Return run settings for this many training domains and examples; `steps` scales the schedule."""
        assert bool(self.epochs) != bool(self.steps), self
        full = self.steps or math.ceil(self.epochs * examples / self.batch)
        length = full if steps is None else steps
        share = self.warmup if self.warmup < 1 else min(0.5, self.warmup / full)
        warmup = float(self.warmup) if length == full and share < 0.5 else share
        every = self.every or length // (self.epochs or 10) if steps is None else length // 10
        batch = max(1, round(self.batch / domains))
        return {"steps": length, "warmup": warmup, "every": max(1, every), "batch": batch}

    def turn(self, *, domains: int, steps: int) -> int:
        """Return the steps per held-out domain, so that each domain is held out once per epoch."""
        return max(1, math.ceil(steps / self.epochs / domains))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A published table or figure and the settings that its rows share."""

    name: str
    cells: tuple[Cell, ...]
    encoder: str
    settings: Mapping[str, Any]
    budget: Budget
    # by training data set:
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    encoder_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # for `encoder` only
    data_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # neck.* only for necks that have it
    starts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # by start, then data set
    claim: str = ""  # what a figure shows
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> dict[str, Row]:
        return {cell.row.name: cell.row for cell in self.cells}

    @property
    def columns(self) -> dict[str, Column]:
        return {cell.column.name: cell.column for cell in self.cells}

    @property
    def reasons(self) -> dict[str, list[str]]:
        """Reasons why rows cannot be run -> names of these rows."""
        reasons = dict.fromkeys(row.reason for row in self.rows.values() if row.reason)
        return {reason: [name for name, row in self.rows.items() if row.reason == reason] for reason in reasons}

    def task(self, data: str) -> str:
        """Return the task of a training data set."""
        return str(self.data_settings.get(data, {}).get("task") or self.settings.get("task") or "classify")

    def choose(self, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> list[Cell]:
        """Return the cells of these rows and columns, by default of all; raise `BadInput` for an unknown name."""
        for kind, names, known in (("row", rows, self.rows), ("column", columns, self.columns)):
            for name in names:
                check_known(f"{kind} of {self.name}", name, known)
        chosen = [cell for cell in self.cells if not rows or cell.row.name in rows]
        return [cell for cell in chosen if not columns or cell.column.name in columns]

    def cell(self, row: str, column: str) -> Cell:
        """Return one cell."""
        (cell,) = self.choose([row], [column])
        return cell

    def json(self) -> list[dict[str, Any]]:
        """Return one dict per row: name, label, reason, and the printed numbers and errors by column."""
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


def mismatches(recipe: Recipe) -> Iterator[tuple[Cell, float]]:
    """Yield printed means that rounding cannot explain, with the mean of the printed cells."""
    for cell in recipe.cells:
        members = [recipe.cell(cell.row.name, column).published for column in cell.column.mean_of]
        known = [value for value in members if value is not None]
        if not known or len(known) < len(members) or cell.published is None:
            continue
        mean = math.fsum(known) / len(known)
        # the printed mean and the mean of printed cells are each at most half a last digit from the true mean
        digits = [cell.column.digits, min(recipe.columns[column].digits for column in cell.column.mean_of)]
        if abs(mean - cell.published) > sum(0.5 * 10**-n for n in digits) + 1e-9:
            yield cell, mean


def load_recipe(name: str) -> Recipe:
    """Load a published table, such as `mil/table1`."""
    catalog.lookup("recipes", name)
    paper, _, table = name.partition("/")
    document = _document(paper)
    fields = _entry(document["recipes"], table)
    columns = [_part(Column, document["columns"], table, column) for column in fields.pop("columns")]
    cells = []
    for row_name, line in document["recipes"][table]["published"].items():
        row = _part(Row, document["rows"], table, row_name)
        printed = line.split() or ["-"] * len(columns)
        for column, text in zip(columns, printed, strict=True):
            value, _, error = text.partition("±")
            numbers = {"published": None if value == "-" else float(value), "error": float(error) if error else None}
            cells.append(Cell(recipe=name, row=row, column=column, **numbers))
    del fields["published"]
    notes = tuple(document["notes"][key] for key in fields.pop("notes", ()))
    budget = Budget(**fields.pop("budget"))
    budgets = {data: Budget(**options) for data, options in fields.pop("budgets", {}).items()}
    return Recipe(name=name, cells=tuple(cells), notes=notes, budget=budget, budgets=budgets, **fields)


@cache
def _document(paper: str) -> dict[str, Any]:
    return tomllib.loads((files("lab.recipes") / f"{paper}.toml").read_text(encoding="utf-8"))


def _entry(section: Section, name: str) -> dict[str, Any]:
    """Return an entry with everything that it inherits by `like`."""
    entry = dict(section[name])
    parent = entry.pop("like", None)
    return entry if parent is None else _merged(_entry(section, parent), entry)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(base[key], value) for key, value in changes.items() if isinstance(base.get(key), dict)}
    return {**base, **changes, **both}


def _part(kind: type[Part], section: Section, table: str, name: str) -> Part:
    specific = f"{table}/{name}"
    fields: dict[str, Any] = {"name": name, **_entry(section, specific if specific in section else name)}
    fields |= {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return kind(**fields)

"""Check the cells of a table batch by batch: leave rows with bad cells out, and describe all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.errors import BadInput
from holdfast.data.readers.codes import SPLIT_FIX, split_index
from holdfast.data.readers.columns import Roles
from holdfast.data.readers.dates import ISO, DateForm
from holdfast.data.readers.formats import Fault
from holdfast.data.readers.forms import READING, Form
from holdfast.data.readers.numbers import MISSING, NumberForm

SKIP_BAD = ", or leave such rows out with --skip-bad"
SKIPPED = "--skip-bad: "  # start of the note on rows that are left out
SHOWN = 20  # bad cells that an error lists
_MAX_FLOAT = float(np.finfo(np.float32).max)
_TEXT = pa.large_string()
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


class BadCell(NamedTuple):
    """One cell that cannot be used; `problem` groups cells, `value` is empty if it is the same for all of them."""

    row: int  # in the file, from 1
    column: str
    value: str
    problem: str
    fix: str

    def __str__(self) -> str:
        column, value = f", column {self.column!r}" if self.column else "", f"has {self.value}, " if self.value else ""
        return f"row {self.row}{column} {value}{self.problem}"


@dataclass
class BadCells:
    """Bad cells of a file: the first ones, their number, and the number of rows that have one."""

    where: str
    first: list[BadCell]
    counts: Counter[tuple[str, str]]  # (column, problem) -> cells
    rows: int = 0
    hint: str = SKIP_BAD  # how to go on without a fix
    convertible: list[str] = field(default_factory=list)  # columns that could be read as categories

    @staticmethod
    def of(where: str, hint: str) -> BadCells:
        return BadCells(where, [], Counter(), hint=hint)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, cells: Sequence[BadCell]) -> None:
        """Add some cells that are not counted yet, in any order."""
        self.first = sorted([*self.first, *cells], key=lambda cell: cell.row)[:SHOWN]

    def error(self) -> BadInput:
        """Return one sentence that lists the first bad cells."""
        if self.total == 1:
            (cell,) = self.first
            return BadInput(f"{self.where}: {cell}: {cell.fix}{self.hint}")
        groups: dict[tuple[str, str], list[BadCell]] = {}
        for cell in self.first:
            groups.setdefault((cell.column, cell.problem), []).append(cell)
        listing = "; ".join(_described(cells, self.counts[key]) for key, cells in groups.items())
        others = self.total - len(self.first)
        more = f"; and {others:,} more" if others else ""
        count = f"{self.total:,} bad cells in {self.rows:,} row{'s' * (self.rows > 1)}"
        names = ",".join(dict.fromkeys(self.convertible))
        texts = f", or read them as categories with --column category={names}" if names else ""
        return BadInput(f"{self.where} has {count}: {listing}{more}: fix them{self.hint}{texts}")

    def note(self, total: int) -> str:
        """Return a note on the rows that were left out of `total` rows."""
        listing = "; ".join(
            f"{count:,} {f'in column {column!r} ' if column else ''}{problem}"
            for (column, problem), count in self.counts.most_common(SHOWN)
        )
        return f"{SKIPPED}{self.rows:,} of {total:,} rows of {self.where} are left out ({listing})"


def _described(cells: Sequence[BadCell], count: int) -> str:
    """Describe cells with one problem in one column."""
    column = f"column {cells[0].column!r} " if cells[0].column else ""
    if not cells[0].value:
        rows = ", ".join(str(cell.row) for cell in cells)
        return f"{column}{cells[0].problem} (row{'s' * (count > 1)} {rows})"
    return f"{column}has {', '.join(f'{c.value} (row {c.row})' for c in cells)}, {cells[0].problem}"


class CellChecker:
    """Checks batches of one table; `forms` describes how numbers and dates in columns of texts are written.

    `trained` names the columns whose form is that of a model's training data. `damaged` lists rows of the file that
    could not be split into values, so that they are in no batch. Paths of images are relative to `folder`.
    """

    def __init__(
        self, where: str, roles: Roles, need: Collection[str], *, forms: Mapping[str, Form] | None = None,
        trained: Collection[str] = (), hint: str = SKIP_BAD, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.roles, self.need, self.forms, self.trained = roles, need, dict(forms or {}), set(trained)
        self.bad, self.folder = BadCells.of(where, hint), folder or Path()
        self.damaged: list[int] = []
        self.seen = 0  # rows in batches
        self.missing: Counter[tuple[str, str]] = Counter()  # (column, spelling) -> cells read as missing
        self.codes: Counter[str] = Counter()  # column -> cells with a code of a missing value

    @property
    def rows(self) -> int:
        """Number of rows of the file so far."""
        return self.seen + len(self.damaged)

    def add_damaged(self, row: int, faults: Sequence[Fault]) -> None:
        """Count a row of the file that is in no batch."""
        self.damaged.append(row)
        self.bad.rows += 1
        self.bad.counts.update((fault.column, fault.problem) for fault in faults)
        self.bad.add([BadCell(row, fault.column, fault.value, fault.problem, fault.fix) for fault in faults])

    def clean(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the rows without bad cells, with numbers and dates converted, and their positions in the batch."""
        bad_rows = np.zeros(len(batch), dtype=bool)
        cells: list[BadCell] = []
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}

        def report(mask: Any, name: str, problem: str, fix: str, *, show: bool = True) -> None:
            bad = np.asarray(mask.fill_null(False) if isinstance(mask, pa.Array) else mask)
            at = np.flatnonzero(bad)
            if not len(at):
                return
            self.bad.counts[name, problem] += len(at)
            bad_rows[at] = True
            for i in at[:SHOWN].tolist():
                value = _shown(batch.column(name)[i].as_py()) if show else ""
                value = f"the split {value}" if name == self.roles.split else value
                cells.append(BadCell(self._file_row(self.seen + i), name, value, problem, fix))

        self._check_names(columns, report)
        for name, kind in self.roles.features.items():
            if kind in ("number", "boolean", "date") and _is_text(columns[name]):
                columns[name], bad = self._convert(columns[name], name, kind)
                form = self._form(name, kind)
                expected = "true or false" if kind == "boolean" else "a number"
                if isinstance(form, DateForm):
                    expected = f"a date such as {form.example}"
                elif form.words:
                    expected = f"a number with {form.words}"
                fix = f"fix the value, remove the row, or choose another kind with --column category={name}"
                if name in self.trained:
                    expected += " as in the training data"
                    fix = "write the value in this form or remove the row"
                elif bad.true_count:
                    self.bad.convertible.append(name)
                report(bad, name, f"expected {expected}", fix)
            if kind == "number" and pa.types.is_floating(columns[name].type):
                infinite = _infinite(columns[name])
                if infinite is not None:
                    report(infinite, name, "expected a finite number", "fix the value or remove the row")
        self.bad.add(cells)
        self.bad.rows += int(bad_rows.sum())
        self.seen += len(batch)
        cleaned = pa.record_batch(list(columns.values()), names=list(columns))
        kept_rows = np.flatnonzero(~bad_rows)
        return (cleaned if len(kept_rows) == len(batch) else cleaned.take(pa.array(kept_rows))), kept_rows

    def _check_names(self, columns: Mapping[str, Any], report: Any) -> None:
        """Report missing texts, labels, domains and splits."""
        roles = self.roles
        fill = "fill it in or remove the row"
        for name in () if roles.features else roles.texts:  # a text may be missing next to other inputs
            report(is_missing(columns[name]), name, "has no text", fill, show=False)
        if roles.image is not None:
            files = columns[roles.image].cast(_TEXT).fill_null("")
            absent = [path for path in files.unique().to_pylist() if not (self.folder / path).is_file()]
            mask = pc.call_function("is_in", [files], options=pc.SetLookupOptions(pa.array(absent, _TEXT)))
            report(mask, roles.image, f"expected an image file in {self.folder}", "fix the path or remove the row")
        for role in ("label", "domain"):
            name = getattr(roles, role)
            if name is None or (role not in self.need and role != "domain"):  # labels may be missing in a prediction
                continue
            ignore = "" if role in self.need else ", or ignore the column with --column domain="
            report(is_missing(columns[name]), name, f"has no {role}", fill + ignore, show=False)
        if roles.split is not None:
            values = columns[roles.split]
            distinct = values.unique().to_pylist()
            wrong = [value for value in distinct if value is None or split_index(str(value)) == -2]
            mask = pc.call_function("is_in", [values], options=pc.SetLookupOptions(pa.array(wrong, values.type)))
            report(mask, roles.split, "expected the name of a split", SPLIT_FIX)

    def _convert(self, column: Any, name: str, kind: str) -> tuple[Any, Any]:
        """Return the values of a text column, null where one is missing or bad, and a mask of the bad ones."""
        texts = pc.call_function("utf8_trim_whitespace", [column.cast(_TEXT)])
        form = self._form(name, kind)
        spelled = pc.SetLookupOptions(pa.array([*MISSING, *form.missing], _TEXT))
        missing = pc.call_function("or", [pc.call_function("is_in", [texts], options=spelled), texts.is_null()])
        if form.missing:
            codes = pc.SetLookupOptions(pa.array(form.missing, _TEXT))
            self.codes[name] += pc.call_function("is_in", [texts], options=codes).true_count
        for spelling in pc.call_function("unique", [texts.filter(missing).drop_null()]).to_pylist():
            if spelling in ("?", "-", "missing", "Missing", "None", "none"):
                count = pc.call_function("equal", [texts, pa.scalar(spelling, _TEXT)]).true_count
                self.missing[name, spelling] += count
        if kind == "boolean":
            lower = pc.call_function("utf8_lower", [texts])
            index = pc.call_function("index_in", [lower], options=pc.SetLookupOptions(pa.array(list(_BOOLEANS), _TEXT)))
            values = pa.array(list(_BOOLEANS.values())).take(index)
        else:
            values = form.parse(texts)
        return values, pc.call_function("and_not", [values.is_null(), missing])

    def _form(self, name: str, kind: str) -> Form:
        return self.forms.get(name) or (ISO if kind == "date" else NumberForm())

    def _file_row(self, index: int) -> int:
        """Return the row in the file, from 1, of a row in the batches, from 0."""
        row = index + 1
        for damaged in sorted(self.damaged):
            if damaged > row:
                break
            row += 1
        return row

    def file_rows(self, start: int, positions: np.ndarray) -> np.ndarray:
        """Return rows in the file, from 1, for positions in a batch that starts at the row `start` of all batches."""
        if not self.damaged:
            return start + positions + 1
        return np.asarray([self._file_row(start + i) for i in positions.tolist()], dtype=np.int64)

    def finish(self, *, skip_bad: bool) -> list[str]:
        """Return notes on the rows that were left out; raise if there are some and `skip_bad` is not set."""
        if self.bad.total and not skip_bad:
            raise self.bad.error()
        if self.bad.rows and self.bad.rows == self.rows:
            raise BadInput(f"every row has a bad cell, so that none is left: {self.bad.error()}")
        notes = [self.bad.note(self.rows)] if self.bad.total else []
        for name, form in self.forms.items():
            if isinstance(form, NumberForm) and form.words:
                notes.append(f"column '{name}'{READING}numbers with {form.words}")
            elif isinstance(form, DateForm) and not replace(form, missing=()).plain:
                notes.append(f"column '{name}'{READING}dates such as {form.example}")
            if self.codes[name]:
                cells = (
                    f"{form.missing[0]!r}{' and other texts' * (len(form.missing) > 1)} in {self.codes[name]:,} cells"
                )
                notes.append(f"{cells} of column '{name}'{READING}missing; --column category={name} reads categories")
        for (name, spelling), count in self.missing.items():
            notes.append(f"'{spelling}' in {count:,} cells of column '{name}'{READING}missing")
        return notes


def is_missing(column: Any) -> Any:
    """Return a mask of values that are null, NaN, empty or only whitespace."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_text(column):
        empty = pc.call_function("equal", [pc.call_function("binary_length", [column]), 0])
        return pc.call_function("or", [pc.call_function("utf8_is_space", [column]), empty]).fill_null(True)
    return pc.call_function("is_null", [column], options=pc.NullOptions(nan_is_null=True))


def _infinite(column: Any) -> Any:
    """Return a mask of values that a 32-bit float cannot hold, or None if there are none."""
    extremes = pc.call_function("min_max", [column]).as_py()
    low, high = extremes["min"] or 0.0, extremes["max"] or 0.0
    if low >= -_MAX_FLOAT and high <= _MAX_FLOAT:
        return None
    size = pc.call_function("abs", [column])
    return pc.call_function("greater", [size, pa.scalar(_MAX_FLOAT)])


def _is_text(column: Any) -> bool:
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 32 else f"{text[:28]}...{text[-1]}"

"""Check the cells of a table batch by batch: leave rows with bad cells out, and describe all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.table import NUMERIC
from holdfast.data.readers.arrow import TEXT, compute, decoded, is_in, is_list_of_texts, is_text, trimmed
from holdfast.data.readers.codes import SPLIT_FIX, split_index
from holdfast.data.readers.columns import JOINED, Roles
from holdfast.data.readers.forms import READING, Plan, default_form
from holdfast.data.readers.numbers import UNSURE, DateForm, NumberForm, convert, infinite
from holdfast.data.readers.sources import BadCell, TableSource

SKIP_BAD = ", or leave such rows out with --skip-bad"
SKIPPED = "--skip-bad: "  # start of the note on rows that are left out
SHOWN = 20  # bad cells that an error lists
SEPARATOR = "|"  # of several labels in one text
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no", "")  # in lower case


@dataclass
class BadCells:
    """Bad cells of a table: the first ones, their number, and the number of rows that have one."""

    where: str
    hint: str = SKIP_BAD  # how to go on without a fix
    first: list[BadCell] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (column, problem) -> cells
    rows: int = 0
    convertible: list[str] = field(default_factory=list)  # columns that could be read as categories

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, cells: Sequence[BadCell]) -> None:
        """Add some cells that are not counted yet, in any order."""
        # damaged rows are reported while a batch is read, before the cells of earlier rows are checked: sort all by row
        self.first = sorted([*self.first, *cells], key=lambda cell: cell.row)[:SHOWN]

    def error(self) -> BadInput:
        """Return one sentence that lists the first bad cells."""
        if self.total == 1:
            (cell,) = self.first
            return BadInput(f"{self.where}: {cell}: {cell.fix}{self.hint}")
        # one phrase per column and problem: the same fault often occurs in a complete column
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
    """Checks batches of one table; `need` lists the roles that must be present.

    `damaged` lists rows of the file that could not be split into values, so that they are in no batch.
    """

    def __init__(self, source: TableSource, plan: Plan, need: Collection[str], *, hint: str = SKIP_BAD) -> None:
        self.roles, self.forms, self.trained, self.need = plan.roles, plan.forms, plan.trained, need
        self.bad, self.folder = BadCells(source.where, hint), source.folder or Path()
        self.booleans = {field.name for field in source.schema if pa.types.is_boolean(field.type)}
        self.damaged: list[int] = []
        self.seen = 0  # rows in batches
        self.missing: Counter[tuple[str, str]] = Counter()  # (column, spelling) -> cells read as missing
        self.codes: Counter[str] = Counter()  # column -> cells with a code of a missing value

    @property
    def rows(self) -> int:
        """Number of rows of the file so far."""
        return self.seen + len(self.damaged)

    def add_damaged(self, cells: Sequence[BadCell]) -> None:
        """Count a row of the file that is in no batch."""
        self.damaged.append(cells[0].row)
        self.bad.rows += 1
        self.bad.counts.update((cell.column, cell.problem) for cell in cells)
        self.bad.add(cells)

    def clean(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Return the rows without bad cells, with numbers and dates converted, and their positions in the batch."""
        batch = with_label_texts(batch, self.roles, where=self.bad.where, before=self.seen)
        # `columns` get converted values, while `batch` keeps the cells as they are written, for messages
        bad_rows = np.zeros(len(batch), dtype=bool)
        cells: list[BadCell] = []
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}

        def report(mask: Any, name: str, problem: str, fix: str, *, show: bool = True) -> None:
            at = np.flatnonzero([] if mask is None else mask.fill_null(False))
            if not len(at):
                return
            self.bad.counts[name, problem] += len(at)
            bad_rows[at] = True
            # all bad cells are counted, but only the ones that an error can show become Python objects
            for i in at[:SHOWN].tolist():
                value = _shown(batch.column(name)[i].as_py()) if show else ""
                value = f"the split {value}" if name == self.roles.split else value
                cells.append(BadCell(int(self.file_rows(self.seen + i)), name, value, problem, fix))

        self._check_names(columns, report)
        for name, kind in self.roles.features.items():
            if kind in NUMERIC and is_text(columns[name].type):
                columns[name] = self._convert(columns[name], name, kind, report)
            if kind == "number" and pa.types.is_floating(columns[name].type):
                report(infinite(columns[name]), name, "expected a finite number", "fix the value or remove the row")
        self.bad.add(cells)
        self.bad.rows += int(bad_rows.sum())
        # only now, because reports number the rows of this batch from `seen`
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
            # every path is looked up on the disk once, however often it occurs
            files = columns[roles.image].cast(TEXT).fill_null("")
            absent = [path for path in files.unique().to_pylist() if not (self.folder / path).is_file()]
            report(
                is_in(files, absent),
                roles.image,
                f"expected an image file in {self.folder}",
                "fix the path or remove the row",
            )
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
            report(is_in(values, wrong), roles.split, "expected the name of a split", SPLIT_FIX)

    def _convert(self, column: Any, name: str, kind: str, report: Any) -> Any:
        """Return the values of a column of texts, and report those that are not in the form of the column."""
        form = self.forms.get(name) or default_form(kind)
        kind = "boolean" if kind == "number" and name in self.booleans else kind
        values, bad, missing = convert(column, kind, form)
        for spelling, count in missing.items():
            if spelling in form.missing:
                self.codes[name] += count
            if spelling in UNSURE:
                self.missing[name, spelling] += count
        if bad is None or not bad.true_count:
            return values
        if isinstance(form, DateForm):
            expected = f"a date such as {form.example}"
        else:
            expected = "true or false" if kind == "boolean" else f"a number{form.words and f' with {form.words}'}"
        fix = f"fix the value, remove the row, or choose another kind with --column category={name}"
        if name in self.trained:
            expected += " as in the training data"
            fix = "write the value in this form or remove the row"
        else:  # with a model the kind of the column is fixed; otherwise reading it as categories is a fix
            self.bad.convertible.append(name)
        report(bad, name, f"expected {expected}", fix)
        return values

    def file_rows(self, index: Any) -> Any:
        """Return the rows in the file, from 1, of rows in the batches, from 0."""
        # damaged rows are in no batch, so each one in front of a row moves its number up by one
        damaged = np.sort(np.asarray(self.damaged, dtype=np.int64))
        before = damaged - np.arange(1, len(damaged) + 1)  # rows in the batches before each damaged row
        return index + 1 + np.searchsorted(before, index, side="right")

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
    column = decoded(column)
    if is_text(column.type):
        # utf8_is_space is false for an empty text
        empty = compute.equal(compute.binary_length(column), 0)
        return compute.or_(compute.utf8_is_space(column), empty).fill_null(True)
    return compute.is_null(column, nan_is_null=True)


def with_label_texts(batch: pa.RecordBatch, roles: Roles, *, where: str, before: int = 0) -> pa.RecordBatch:
    """Return the batch with one text per set of labels; `before` is the number of earlier rows, for messages."""
    if roles.labels:
        joined = _joined_labels(batch, roles.labels, where, before)
        columns = {name: batch.column(name) for name in batch.schema.names if name not in roles.labels}
        return pa.record_batch({**columns, JOINED: joined})
    if roles.label is None or not is_list_of_texts(batch.schema.field(roles.label).type):
        return batch
    column = batch.column(roles.label).cast(pa.list_(pa.string()))  # parquet files have dictionaries
    _check_label_names(column, f"{where}: column '{roles.label}'")
    texts = compute.binary_join(column, SEPARATOR).cast(TEXT)
    texts = compute.if_else(compute.equal(texts, ""), None, texts)
    return batch.set_column(batch.schema.names.index(roles.label), roles.label, texts)


def _check_label_names(column: pa.Array, where: str) -> None:
    names = compute.list_flatten(column).unique().to_pylist()
    if wrong := [name for name in names if name is not None and SEPARATOR in name]:
        raise BadInput(f"{where} has the label '{wrong[0]}', which contains {SEPARATOR}: rename it")


def _joined_labels(batch: pa.RecordBatch, names: tuple[str, ...], where: str, before: int) -> pa.Array:
    """(n,) texts of the labels whose column is 1, null where there is none."""
    chosen = np.stack([_is_set(batch.column(name), name, where, before) for name in names], axis=1)  # (n, c)
    texts = [SEPARATOR.join(name for name, value in zip(names, row, strict=True) if value) or None for row in chosen]
    return pa.array(texts, type=TEXT)


def _is_set(column: pa.Array, name: str, where: str, before: int) -> np.ndarray:
    """(n,) whether a cell is 1, true or yes; an empty cell is not."""
    values = compute.utf8_lower(trimmed(decoded(column))).fill_null("")
    if len(wrong := np.flatnonzero(compute.invert(is_in(values, [*YES, *NO])))):
        cell = f"row {before + wrong[0] + 1}, column '{name}' is {values[wrong[0]].as_py()!r}"
        raise BadInput(f"{where}: {cell}, but columns of labels hold 0 or 1: fix it, or remove it from labels=")
    return np.asarray(is_in(values, YES))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 32 else f"{text[:28]}...{text[-1]}"

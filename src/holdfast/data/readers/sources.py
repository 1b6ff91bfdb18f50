"""A table whose rows are read in batches, whatever it is stored in: its columns and how their texts are written."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.readers.arrow import TEXT, is_text
from holdfast.data.readers.features import kind_of
from holdfast.data.readers.forms import Form, Plan, detect_forms

Types = Mapping[str, pa.DataType]
OnInvalid = Callable[[Sequence["BadCell"]], None]  # what is wrong with one row


class BadCell(NamedTuple):
    """One cell that cannot be used, or a row without values, which has no column."""

    row: int  # in the file, from 1
    column: str
    value: str  # empty if it is the same for all cells with this problem
    problem: str
    fix: str

    def __str__(self) -> str:
        column, value = f", column {self.column!r}" if self.column else "", f"has {self.value}, " if self.value else ""
        return f"row {self.row}{column} {value}{self.problem}"


class TableSource(ABC):
    """A table whose rows are read in batches of Arrow."""

    where: str  # in messages
    name: str  # of the data set
    folder: Path | None = None  # of paths of images
    typed = True  # whether numbers and dates have types of their own, other than in csv
    decimal = "."  # decimal mark of numbers such as 1,234 that have one mark

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how the table is read if that is not evident."""
        return ()

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns with their inferred types."""
        with self.explained():
            return self._schema()

    @abstractmethod
    def _schema(self) -> pa.Schema: ...

    @abstractmethod
    def batches(self, types: Types, on_invalid: OnInvalid | None = None) -> Iterator[pa.RecordBatch]:
        """Stream batches with these columns in order; json is read in the passed types.

        `on_invalid` is called for rows that cannot be read, which are then left out; without it they are errors.
        """

    @abstractmethod
    def explain(self, error: BaseException, types: Types | None = None) -> BadInput:
        """Convert an exception of Arrow to one sentence with row, column and fix."""

    def kinds(self) -> dict[str, str]:
        """Return the kind of each column that its type suggests."""
        return {field.name: kind_of(field.type) for field in self.schema}

    def text_forms(self) -> tuple[dict[str, Form], dict[str, str]]:
        """Return the forms of columns of texts in the first rows, and notes on columns that mix several."""
        counts = Counter(self.schema.names)
        names = [field.name for field in self.schema if is_text(field.type) and counts[field.name] == 1]
        first = self.head(dict.fromkeys(names, TEXT)) if names else None
        return ({}, {}) if first is None else detect_forms(first, names, decimal=self.decimal)

    def head(self, types: Types) -> pa.RecordBatch | None:
        """Return the first rows of these columns."""
        return next(self.batches(types, leave_out), None)

    def sample(self) -> pa.RecordBatch | None:
        """Return the first rows, or None if they cannot be read."""
        with suppress(BadInput, pa.ArrowException):
            return self.head({field.name: field.type for field in self.schema})

    def types(self, names: Collection[str], plan: Plan, *, exact: Collection[str] = ()) -> dict[str, pa.DataType]:
        """Return the types to read these columns in; only those of `exact` columns hold every value as it is."""
        return {name: self.schema.field(name).type for name in names}

    @contextmanager
    def explained(self, types: Types | None = None) -> Iterator[None]:
        """Convert Arrow's exceptions to `BadInput`."""
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeError, OverflowError, RecursionError) as error:
            raise self.explain(error, types) from error


def leave_out(cells: Sequence[BadCell]) -> None:
    """Accept rows that cannot be read, since they are reported when the rows are streamed."""

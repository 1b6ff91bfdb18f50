"""Collect the input columns of a table: numbers, categories, dates and at most one text.

A table of numbers without missing values becomes vectors; any other one keeps the kind of each column.

Shapes: n rows, p number columns, q category columns.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.table import NUMERIC, Column
from holdfast.data.raw import Raw, Table, Texts, Vectors
from holdfast.data.readers.arrow import TEXT, is_number, is_text
from holdfast.data.readers.codes import CodeColumn
from holdfast.data.readers.columns import listed

NAME = "name"  # kind of a column of strings until all are read: a category, a text, or an identifier
MAX_CATEGORIES = 1_000  # distinct values of a column up to which it is a category by default
MANY = 100_000  # distinct values that no category column may have
FEW = 20  # distinct values of a column that is a category, in however few rows
WORDS = 3  # mean number of words from which distinct strings are texts, not identifiers
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # of images
_DAY = 86_400_000_000  # microseconds
_OVERRIDE = "--column KIND=NAME with number, category, boolean, date or text changes a kind"


def kind_of(type: pa.DataType) -> str:
    """Return the kind of a column with this Arrow type, `name` if its values decide, or an empty string if none."""
    type = type.value_type if pa.types.is_dictionary(type) else type
    if pa.types.is_boolean(type):
        return "boolean"
    if is_number(type):
        return "number"
    if pa.types.is_date(type) or pa.types.is_timestamp(type):
        return "date"
    return NAME if is_text(type) or type in (pa.string_view(), pa.null()) else ""


class Inputs(NamedTuple):
    """Raw examples, the names of their columns and notes for the user."""

    raw: Raw
    columns: tuple[str, ...] | None
    notes: list[str]


class FeatureCollector:
    """Input columns of the rows read so far; `kinds` maps their names to kinds, `chosen` lists those of the user."""

    def __init__(self, where: str, kinds: Mapping[str, str], *, chosen: Collection[str] = ()) -> None:
        self.where, self.kinds, self.chosen = where, dict(kinds), set(chosen)
        self.numbers: list[np.ndarray] = []
        self.coded = {name: CodeColumn() for name, kind in self.kinds.items() if kind not in NUMERIC}
        self.numeric = [name for name, kind in self.kinds.items() if kind in NUMERIC]
        self.unused: dict[str, str] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        values = [self._numbers(batch.column(name), name) for name in self.numeric]
        self.numbers.append(np.stack(values, axis=1) if values else np.zeros((len(batch), 0), np.float32))
        for name, codes in self.coded.items():
            if name in self.unused:
                continue
            codes.add(batch.column(name), numbers=True)
            if len(codes.index) > MANY:
                if name in self.chosen:
                    fix = f"group its values, or remove --column category={name}"
                    raise BadInput(f"{self.where}: column '{name}' has more than {MANY:,} categories: {fix}")
                self.unused[name] = f"more than {MANY:,} distinct values"
                codes.batches, codes.index = [], {}

    def _numbers(self, column: Any, name: str) -> np.ndarray:
        """(b,) values as numbers, NaN where one is missing; dates are days."""
        if self.kinds[name] == "date":
            column = column.cast(pa.timestamp("us")).cast(pa.int64())
        elif column.type == pa.bool_():
            column = column.cast(pa.int8())
        numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return (numbers / _DAY if self.kinds[name] == "date" else numbers).astype(np.float32)

    def result(self, others: Raw | None, other_names: Sequence[str] = ()) -> Inputs:
        """Return all rows as vectors or as a table, with the texts or images of the columns `other_names`."""
        numbers = np.concatenate(self.numbers) if self.numbers else np.zeros((0, len(self.numeric)), np.float32)
        self.numbers = []
        companion = others if others is not None else self._text_column()
        text = [name for name, kind in self.kinds.items() if kind == "text"]
        for name in self.coded:
            if name not in self.unused and name not in text:
                self._decide(name)
        coded = [name for name in self.coded if name not in self.unused and name not in text]
        plain = not coded and companion is None and "date" not in self.kinds.values() and not np.isnan(numbers).any()
        if plain and self.numeric:
            notes = [*self._vector_notes(), *self._constants(numbers), *self._unused()]
            return Inputs(Vectors(numbers), tuple(self.numeric), notes)
        varying = [i for i, name in enumerate(self.numeric) if self._varies(name, numbers[:, i])]
        schema = [
            Column(name, "category", tuple(self.coded[name].index)) if name in self.coded else Column(name, kind)
            for name, kind in self.kinds.items()
            if name not in self.unused and name not in text
        ]
        raw, columns = companion, None
        if schema:
            codes = [self.coded[name].codes().astype(np.int32) for name in coded]
            stacked = np.stack(codes, axis=1) if codes else np.zeros((len(numbers), 0), np.int32)
            numbers = numbers if len(varying) == len(self.numeric) else numbers[:, varying]
            raw, text = Table(tuple(schema), numbers, stacked, companion), [*other_names, *text]
            columns = (*(column.name for column in schema), *text)
        if raw is None:
            reasons = unused_columns(self.unused)
            fix = "name one with --column text=NAME, category=NAME or number=NAME"
            raise BadInput(f"{self.where} has no text column and no other input, not used: {reasons}: {fix}")
        return Inputs(raw, columns, [*self._notes(schema, text, companion), *self._unused()])

    def _unused(self) -> list[str]:
        return [f"not used: {unused_columns(self.unused)}"] if self.unused else []

    def _decide(self, name: str) -> None:
        """Leave a column of strings out if it has a single value or looks like an identifier."""
        column = self.coded[name]
        distinct, filled = len(column.index), column.filled
        if name in self.chosen:
            return
        if distinct < 2:
            self.unused[name] = "a single value" if distinct else "no values"
        elif distinct == filled or (distinct > FEW and (distinct > MAX_CATEGORIES or 2 * distinct > filled)):
            fix = f"--column text={name} or category={name} uses it"
            if all(value.lower().endswith(SUFFIXES) for value in column.index):
                fix = f"--column image={name} reads the images"
            self.unused[name] = f"{distinct:,} distinct values in {filled:,} rows, like an identifier; {fix}"

    def _varies(self, name: str, values: np.ndarray) -> bool:
        filled = values[~np.isnan(values)]
        # one value and blanks still distinguish rows
        single = len(filled) in (0, len(values)) and bool((filled == filled[:1]).all())
        if name not in self.chosen and len(values) > 1 and single:
            self.unused[name] = "a single value" if len(filled) else "no values"
        return name not in self.unused

    def _constants(self, numbers: np.ndarray) -> list[str]:
        """Return a note on columns of vectors with a single value, which stay part of the input."""
        if len(numbers) < 2:
            return []
        same = [
            name for i, name in enumerate(self.numeric)
            if numbers[0, i] == numbers[-1, i] and np.ptp(numbers[:, i]) == 0
        ]  # fmt: skip
        fix = "--column ignore=NAME leaves it out"
        return [f"no information: {listed(same)} (a single value); {fix}"] if same else []

    def _text_column(self) -> Raw | None:
        """Return the column of texts: the one of the user, or the strings with the most words if they are texts."""
        named = [name for name, kind in self.kinds.items() if kind == "text"]
        if not named:
            lengths = {name: _mean_words(list(c.index)) for name, c in self.coded.items() if self._may_be_text(name)}
            best = max(lengths, key=lambda name: lengths[name], default=None)
            if best is None or lengths[best] < WORDS:
                return None
            self.kinds[best] = "text"
            named = [best]
        column = self.coded[named[0]]
        values = pa.array([*column.index, ""], type=TEXT)
        codes = column.codes()
        return Texts(pa.chunked_array([values.take(pa.array(np.where(codes < 0, len(column.index), codes)))]))

    def _may_be_text(self, name: str) -> bool:
        column = self.coded[name]
        many = len(column.index) > FEW and 2 * len(column.index) > column.filled
        return name not in self.unused and name not in self.chosen and many

    def _notes(self, schema: Sequence[Column], others: Sequence[str], companion: Raw | None) -> list[str]:
        """Return a note that lists the columns per kind; `others` are those of the texts or images."""
        if not self.kinds:
            return []
        kinds: dict[str, list[str]] = {}
        for column in schema:
            kinds.setdefault(column.kind, []).append(column.name)
        if others and companion is not None:
            kinds[companion.kind] = list(others)
        shown = "; ".join(f"{kind}: {', '.join(names[:12])}{_more(names)}" for kind, names in kinds.items())
        return [f"the input is {len(schema) + len(others)} columns ({shown}); {_OVERRIDE}"]

    def _vector_notes(self) -> list[str]:
        if self.chosen:
            return []
        inputs = f"the {len(self.numeric)} numeric columns {listed(self.numeric)}"
        return [f"no text column was found, so the input is {inputs}; name a text column with --column text=NAME"]


def unused_columns(reasons: Mapping[str, str]) -> str:
    """Format columns with the reason why they are not used, at most twelve of them."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason.replace(f"={name} ", "=NAME "), []).append(name)
    shown = [f"{listed(names)} ({reason})" for reason, names in groups.items()]
    return "; ".join(shown[:12]) + _more(shown)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 12} more" if len(names) > 12 else ""


def _mean_words(values: Sequence[str]) -> float:
    return sum(len(value.split()) for value in values[:1000]) / max(1, len(values[:1000]))

"""Read a table file (csv, tsv, jsonl, parquet) as a data set: one example per row, columns assigned by name."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.table import KINDS
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers import formats
from holdfast.data.readers.cells import CellChecker
from holdfast.data.readers.codes import CodeColumn, coded_dataset
from holdfast.data.readers.collect import TableCollector
from holdfast.data.readers.columns import ColumnFinder, Roles, assign, check_carried
from holdfast.data.readers.dates import ISO
from holdfast.data.readers.dialect import detect_dialect
from holdfast.data.readers.features import NAME, kind_of
from holdfast.data.readers.forms import (
    Form,
    ModelColumns,
    detect_forms,
    kinds_of,
    mixture_notes,
    stored_forms,
    trained_forms,
)  # fmt: skip
from holdfast.data.readers.label_columns import is_list_of_texts, with_label_texts
from holdfast.data.readers.mixed import Mixtures, resolve_mixtures
from holdfast.data.readers.numbers import NumberForm

METADATA = ("domain", "split", "id")  # roles of tables for tags, questions and texts without labels
_JSON_ROWS = Path("rows.jsonl")  # JSON rows in memory have the types of such a file


def read_table(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain"),
    skip_bad: bool = False,
) -> Dataset:  # fmt: skip
    """Read a table; `columns` maps roles to column names, `need` lists the roles that must be present.

    Bad cells, such as a missing label or a text among numbers, are listed in one error, or with `skip_bad` their rows
    are left out with a note.
    """
    (dataset,) = table_chunks(path, columns=columns, need=need, skip_bad=skip_bad)
    return dataset


def table_chunks(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain"),
    rows: int | None = None, skip_bad: bool = False, carry: Sequence[str] = (),
) -> Iterator[Dataset]:  # fmt: skip
    """Stream a table as data sets of at most `rows` rows, so that the file may be larger than the memory.

    `carry` names columns that the data sets store unchanged. A bad cell stops the stream, and is reported with all
    others at the end of the file.
    """
    path, done, block, lenient = Path(path), 0, formats.BLOCK, False
    _check_file(path)
    reader = _Reader(path, columns, need, skip_bad, carry)
    while True:
        try:
            for chunk, end in reader.chunks(rows, block=block, lenient=lenient, skip=done):
                yield chunk
                done = end
            return
        except formats.LongRow:
            if block == formats.LONG_BLOCK:
                raise
            block = formats.LONG_BLOCK
        except formats.BadValue:
            if lenient:
                raise
            lenient = True


@dataclass(frozen=True)
class _Reader:
    """A table file and how it is to be read."""

    path: Path
    columns: Mapping[str, str] | None
    need: Collection[str]
    skip_bad: bool
    carry: Sequence[str]

    def chunks(self, rows: int | None, *, block: int, lenient: bool, skip: int) -> Iterator[tuple[Dataset, int]]:
        """Yield data sets of at most `rows` rows behind the first `skip` rows, and the number of rows read so far.

        With `lenient`, numbers and dates in csv files are read as texts, so that bad ones can be reported together.
        """
        path = self.path
        schema = formats.read_schema(path, block)
        trained = trained_forms(self.columns, schema, typed=path.suffix.lower() not in (".csv", ".tsv"))
        detected, mixtures = _text_forms(path, schema, block)
        forms = detected | trained
        kinds = {field.name: kind_of(field.type) for field in schema} | kinds_of(forms)
        first = partial(_first_rows, path, schema, block)
        roles = assign(str(path), schema.names, kinds=kinds, columns=self.columns, need=self.need, sample=first)
        mixed = Mixtures({}, {})
        if rows is None and not isinstance(self.columns, ModelColumns):
            mixed = self._mixtures(schema, roles, kinds, detected, block=block, lenient=lenient)
            kinds |= dict.fromkeys(mixed.names, NAME)
            roles = assign(str(path), schema.names, kinds=kinds, columns=self.columns, need=self.need)
            forms = {name: form for name, form in (forms | mixed.forms).items() if name not in mixed.names}
        forms = {name: forms[name] for name, kind in roles.features.items() if kind == kinds[name] and name in forms}
        types = _column_types(path, schema, roles, forms=forms, trained=trained, lenient=lenient)
        check_carried(str(path), schema.names, self.carry)
        copied = [name for name in self.carry if name not in types]
        types |= {name: formats.name_type(path, schema.field(name).type, exact=True) for name in copied}
        for name in types:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) and (name != roles.label or not is_list_of_texts(kind)):
                raise BadInput(f"{path}: column '{name}' holds {kind}: convert it to texts or numbers")
        checker = CellChecker(str(path), roles, self.need, forms=forms, trained=trained, folder=path.parent)
        chunk, pending = _Chunk(self, roles, forms), None
        for batch in formats.iter_batches(path, types, block, on_invalid=checker.add_damaged, lenient=lenient):
            start = checker.seen
            try:
                labelled = with_label_texts(batch, roles, where=str(path), before=start)
                cleaned, positions = checker.clean(labelled)
                if checker.bad.total and not self.skip_bad:
                    pending, chunk = None, _Chunk(self, roles, forms)  # read on to find all bad cells
                    continue
                at = int(np.searchsorted(positions, skip - start))
                while at < len(cleaned):
                    end = len(cleaned) if rows is None else min(len(cleaned), at + rows - chunk.rows)
                    chunk.add(cleaned.slice(at, end - at), batch, start, positions[at:end], checker)
                    at = end
                    if chunk.rows == rows:
                        if pending is not None:
                            yield pending
                        pending = (chunk.dataset(), start + int(positions[at - 1]) + 1)
                        chunk = _Chunk(self, roles, forms)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise formats.explain(path, error) from error
        unclear = [note for name, note in mixtures.items() if roles.features.get(name) == NAME]
        notes = [*unclear, *mixed.names.values(), *checker.finish(skip_bad=self.skip_bad)]
        if not checker.rows:
            raise BadInput(f"{path} has columns but no rows: write one row per example")
        if chunk.rows:
            if pending is not None:
                yield pending
            pending = chunk.dataset(), checker.seen
        if pending is not None:
            dataset, end = pending
            yield dataset.with_notes(*notes), end

    def _mixtures(
        self, schema: pa.Schema, roles: Roles, kinds: Mapping[str, str], detected: Mapping[str, Form], *,
        block: int, lenient: bool,
    ) -> Mixtures:  # fmt: skip
        """Decide how to read texts in columns of numbers and dates whose kind the user has not chosen."""
        if self.path.suffix.lower() not in (".csv", ".tsv", ".parquet"):
            return Mixtures({}, {})
        finder = ColumnFinder(str(self.path), schema.names, self.columns)
        chosen = {name for kind in KINDS for name in finder.requested(kind)}
        forms = dict(detected)
        if lenient:
            defaults: dict[str, Form] = {"number": NumberForm(), "date": ISO}
            forms = {name: defaults[kind] for name, kind in kinds.items() if kind in defaults} | forms
        forms = {n: form for n, form in forms.items() if roles.features.get(n) == kinds[n] and n not in chosen}
        types = dict.fromkeys(forms, pa.large_string())
        batches = formats.iter_batches(self.path, types, block, on_invalid=formats.leave_out) if forms else ()
        return resolve_mixtures(batches, forms)


class _Chunk:
    """Rows of one data set that a reader collects."""

    def __init__(self, reader: _Reader, roles: Roles, forms: Mapping[str, Form]) -> None:
        self.reader, self.collector = (
            reader,
            TableCollector(str(reader.path), roles, reader.need, folder=reader.path.parent),
        )
        self.forms = stored_forms(forms)
        self.carried: list[pa.RecordBatch] = []
        self.numbers: list[np.ndarray] = []  # rows in the file, if some are left out

    @property
    def rows(self) -> int:
        return self.collector.rows

    def add(
        self, cleaned: pa.RecordBatch, batch: pa.RecordBatch, start: int, positions: np.ndarray, checker: CellChecker
    ) -> None:
        """Append checked rows, which are those at `positions` of the batch as it was read."""
        self.collector.add(cleaned)
        if self.reader.carry:
            self.carried.append(batch.select(list(self.reader.carry)).take(pa.array(positions)))
        if self.reader.skip_bad:
            self.numbers.append(checker.file_rows(start, positions))

    def dataset(self) -> Dataset:
        """Return the rows; if rows may be left out, with their numbers in the file."""
        path = self.reader.path
        dataset = self.collector.dataset(path.stem).with_notes(*formats.reading_notes(path))
        dataset = replace(dataset, forms=self.forms) if self.forms else dataset
        if self.numbers:
            dataset = replace(dataset, file_rows=np.concatenate(self.numbers))
        return replace(dataset, carried=pa.Table.from_batches(self.carried)) if self.carried else dataset


def _text_forms(path: Path, schema: pa.Schema, block: int) -> tuple[dict[str, Form], dict[str, str]]:
    """Return how numbers and dates are written in columns of texts, and notes on columns that mix several forms.

    Parquet files have types for plain numbers.
    """
    counts = Counter(schema.names)
    names = [f.name for f in schema if f.type in (pa.string(), pa.large_string()) and counts[f.name] == 1]
    suffix = path.suffix.lower()
    if not names:
        return {}, {}
    if suffix in (".csv", ".tsv", ".parquet"):
        types = dict.fromkeys(names, pa.large_string())
        first = next(formats.iter_batches(path, types, block, on_invalid=formats.leave_out), None)
        decimal = "," if suffix != ".parquet" and detect_dialect(path).separator == ";" else "."
        try:
            forms = {} if first is None else detect_forms(first, names, decimal=decimal)
            others = [name for name in names if name not in forms]
            mixtures = {} if first is None else mixture_notes(first, others)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise formats.explain(path, error) from error
        return {name: form for name, form in forms.items() if suffix != ".parquet" or not form.plain}, mixtures
    rows = formats.first_rows(path)
    kinds = {name: [type(row[name]) in (int, float) for row in rows if row.get(name) is not None] for name in names}
    return {name: NumberForm() for name, numbers in kinds.items() if 2 * sum(numbers) > len(numbers)}, {}


def _first_rows(path: Path, schema: pa.Schema, block: int) -> pa.RecordBatch | None:
    """Return the first rows of a file in its own types, or None if they cannot be read."""
    types = {field.name: field.type for field in schema}
    with suppress(BadInput, pa.ArrowException):
        return next(formats.iter_batches(path, types, block, on_invalid=formats.leave_out), None)
    return None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"{path} {'is not a file' if path.exists() else 'does not exist'}: check the name of the table")
    if path.suffix.lower() not in formats.SUFFIXES:
        raise BadInput(f"{path} has the unknown suffix '{path.suffix}': use one of {', '.join(formats.SUFFIXES)}")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: write a header and one row per example")


def _column_types(
    path: Path, schema: pa.Schema, roles: Roles, *, forms: Collection[str] = (), trained: Collection[str] = (),
    lenient: bool = False,
) -> dict[str, pa.DataType]:  # fmt: skip
    """Return the columns to read and their types; texts are read as texts even if they look like numbers."""
    names = roles.texts if roles.image is None else (roles.image,)
    types = {name: formats.text_type(path, schema.field(name).type) for name in names}
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    for name, kind in roles.features.items():
        as_text = name in trained or (is_csv and (lenient or name in forms))
        types[name] = pa.large_string() if as_text else _feature_type(path, schema.field(name).type, kind)
    for name in roles.labels or (roles.label,):
        if name is not None:
            kind = schema.field(name).type
            types[name] = kind if is_list_of_texts(kind) else formats.name_type(path, kind)
    for name in (roles.domain, roles.split, roles.time):
        if name is not None:
            types.setdefault(name, formats.name_type(path, schema.field(name).type))  # the time may be an input
    if roles.id is not None:
        types[roles.id] = formats.name_type(path, schema.field(roles.id).type, exact=True)
    return types


def _feature_type(path: Path, inferred: pa.DataType, kind: str) -> pa.DataType:
    """Return the type to read an input column of this kind in."""
    if kind == "number":
        return pa.bool_() if inferred == pa.bool_() else pa.float64()
    if kind == "boolean":
        return pa.bool_()
    if kind == "date":
        return inferred if pa.types.is_temporal(inferred) else pa.large_string()
    return formats.name_type(path, inferred)


def read_json_rows(
    rows: Sequence[Mapping[str, Any]], *, where: str, columns: Mapping[str, str] | None = None
) -> Dataset:
    """Read inputs and IDs from JSON objects in memory; labels, domains and other columns are ignored."""
    schema = formats.json_schema(rows)
    kinds = {field.name: kind_of(field.type) for field in schema}
    roles = assign(where, schema.names, kinds=kinds, columns=columns, need=())
    roles = replace(roles, label=None, labels=(), domain=None, split=None, time=None, named=("features",))
    named = [name for name, kind in roles.features.items() if kind == "category"]
    rows = [{**row, **{name: _as_name(row.get(name)) for name in named}} for row in rows]
    types = _column_types(_JSON_ROWS, schema, roles) | dict.fromkeys(named, pa.large_string())
    for number, row in enumerate(rows, 1):
        if fault := formats.row_fault(number, row, types):
            raise BadInput(f"{where}: {fault}")
    collector, checker = TableCollector(where, roles), CellChecker(where, roles, (), hint="")
    arrays = {name: [row.get(name) for row in rows] for name in types}
    try:
        batch = pa.record_batch({name: pa.array(arrays[name], kind) for name, kind in types.items()})
        collector.add(checker.clean(batch)[0])
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise BadInput(f"{where}: a value cannot be read ({str(error).splitlines()[0][:100]}): fix it") from error
    checker.finish(skip_bad=False)
    return collector.dataset(Path(where).stem)


def _as_name(value: Any) -> Any:
    """Return a category as a text; other values, such as lists, are reported later."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def column_finder(path: Path, columns: Mapping[str, str] | None) -> ColumnFinder:
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: write one row per example")
    return ColumnFinder(str(path), formats.read_schema(path).names, columns)


def unlabelled_dataset(path: Path, raw: Raw, metadata: Mapping[str, Sequence[Any]], **fields: Any) -> Dataset:
    """Build a data set without labels; `metadata` holds domain, split and id per example where present."""
    coded = {role: CodeColumn() for role in ("domain", "split") if role in metadata}
    for role, column in coded.items():
        texts = [None if value is None else str(value) for value in metadata[role]]
        missing = column.add(pa.array(texts, type=pa.string()), numbers=role == "split") < 0
        if role == "domain" and missing.any():
            raise BadInput(f"{path}: row {missing.argmax() + 1} has no domain: fill it in or remove the row")
    ids = [str(value) for value in metadata["id"]] if "id" in metadata else None
    return coded_dataset(path.stem, raw, coded, where=str(path), ids=ids, **fields)

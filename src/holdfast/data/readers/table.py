"""Read a table file (csv, tsv, jsonl, parquet) as a data set: one example per row, columns assigned by name."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers import formats
from holdfast.data.readers.codes import CodeColumn, coded_dataset
from holdfast.data.readers.collect import TableCollector
from holdfast.data.readers.columns import ColumnFinder, Roles, assign, mostly_numbers
from holdfast.data.readers.features import kind_of

METADATA = ("domain", "split", "id")  # roles of tables for tags, questions and texts without labels
_JSON_ROWS = Path("rows.jsonl")  # JSON rows in memory have the types of such a file


def read_table(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain")
) -> Dataset:
    """Read a table; `columns` maps roles to column names, `need` lists the roles that must be present."""
    (dataset,) = table_chunks(path, columns=columns, need=need)
    return dataset


def table_chunks(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain"),
    rows: int | None = None,
) -> Iterator[Dataset]:  # fmt: skip
    """Stream a table as data sets of at most `rows` rows, so that the file may be larger than the memory."""
    path, done = Path(path), 0
    _check_file(path)
    try:
        for chunk in _chunks(path, columns, need, rows, block=formats.BLOCK):
            done += len(chunk)
            yield chunk
    except formats.LongRow:
        yield from _chunks(path, columns, need, rows, block=formats.LONG_BLOCK, skip=done)


def _chunks(
    path: Path, columns: Mapping[str, str] | None, need: Collection[str], rows: int | None, *, block: int, skip: int = 0
) -> Iterator[Dataset]:
    schema = formats.read_schema(path, block)
    numbers = mostly_numbers(path, schema, block)  # streaming reports the cell that is not a number
    kinds = {field.name: "number" if field.name in numbers else kind_of(field.type) for field in schema}
    roles = assign(str(path), schema.names, kinds=kinds, columns=columns, need=need)
    types = _column_types(path, schema, roles)
    for name in types:
        kind = schema.field(name).type
        if pa.types.is_nested(kind):
            raise BadInput(f"{path}: column '{name}' holds {kind}: convert it to texts or numbers")
    collector = TableCollector(str(path), roles, need, before=skip)
    for batch in formats.iter_batches(path, types, block):
        at = min(skip, len(batch))
        skip -= at
        while at < len(batch):
            piece = batch.slice(at, None if rows is None else rows - collector.rows)
            at += len(piece)
            try:
                collector.add(piece)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise formats.explain(path, error) from error
            if collector.rows == rows:
                yield collector.dataset(path.stem).with_notes(*formats.reading_notes(path))
                collector = TableCollector(str(path), roles, need, before=collector.before + collector.rows)
    if not collector.rows and not collector.before:
        raise BadInput(f"{path} has columns but no rows: write one row per example")
    if collector.rows:
        yield collector.dataset(path.stem).with_notes(*formats.reading_notes(path))


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise BadInput(f"{path} {'is not a file' if path.exists() else 'does not exist'}: check the name of the table")
    if path.suffix.lower() not in formats.SUFFIXES:
        raise BadInput(f"{path} has the unknown suffix '{path.suffix}': use one of {', '.join(formats.SUFFIXES)}")
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: write a header and one row per example")


def _column_types(path: Path, schema: pa.Schema, roles: Roles) -> dict[str, pa.DataType]:
    """Return the columns to read and their types; texts are read as texts even if they look like numbers."""
    types = {name: formats.text_type(path, schema.field(name).type) for name in roles.texts}
    for name, kind in roles.features.items():
        types[name] = _feature_type(path, schema.field(name).type, kind)
    for name in (roles.label, roles.domain, roles.split, roles.time):
        if name is not None:
            types[name] = formats.name_type(path, schema.field(name).type)
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
    roles = replace(roles, label=None, domain=None, split=None, time=None, named=("features",))
    named = [name for name, kind in roles.features.items() if kind == "category"]
    rows = [{**row, **{name: _as_name(row.get(name)) for name in named}} for row in rows]
    types = _column_types(_JSON_ROWS, schema, roles) | dict.fromkeys(named, pa.large_string())
    for number, row in enumerate(rows, 1):
        if fault := formats.row_fault(number, row, types):
            raise BadInput(f"{where}: {fault}")
    collector = TableCollector(where, roles, ())
    arrays = {name: [row.get(name) for row in rows] for name in types}
    try:
        collector.add(pa.record_batch({name: pa.array(arrays[name], kind) for name, kind in types.items()}))
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise BadInput(f"{where}: a value cannot be read ({str(error).splitlines()[0][:100]}): fix it") from error
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

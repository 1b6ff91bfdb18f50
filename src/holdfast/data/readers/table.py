"""A table file (csv, tsv, jsonl, parquet) as a data set: one row an example, columns found by name.

n examples
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ColumnFinder, Roles, assign, mostly_numbers
from holdfast.data.readers.gathered import Gathered
from holdfast.data.readers.names import Names, domain_codes, split_codes


def read_table(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("label", "domain")
) -> Dataset:
    """Stream a table from disk; `columns` names columns by role, `need` says which roles must be there."""
    (whole,) = table_pieces(path, columns=columns, need=need)
    return whole


def table_pieces(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    need: Collection[str] = ("label", "domain"),
    rows: int | None = None,
) -> Iterator[Dataset]:
    """The same in pieces of so many rows, each a data set of its own, so that a file may be larger than the memory."""
    path, done = Path(path), 0
    _check_file(path)
    try:
        for piece in _pieces(path, columns, need, rows, block=formats.BLOCK):
            done += len(piece)
            yield piece
    except formats.LongRow:
        yield from _pieces(path, columns, need, rows, block=formats.LONG_BLOCK, skip=done)


def _pieces(
    path: Path,
    columns: Mapping[str, str] | None,
    need: Collection[str],
    rows: int | None,
    *,
    block: int,
    skip: int = 0,
) -> Iterator[Dataset]:
    schema = formats.read_schema(path, block)
    numeric = {f.name for f in schema if pa.types.is_boolean(f.type) or is_number(f.type)}
    numeric |= mostly_numbers(path, schema, block)  # and so the stream names the cell that is none
    roles = assign(str(path), schema.names, numeric=numeric, columns=columns, need=need)
    types = _types(path, schema, roles)
    for name in types:
        if pa.types.is_nested(schema.field(name).type):
            kind = schema.field(name).type
            raise BadInput(f"{path}: column '{name}' holds {kind}: flatten it to texts or numbers")
    told = {"named_time": bool((columns or {}).get("time")), "named_features": "features" in (columns or {})}
    table = Gathered(path, roles, need, before=skip)
    for batch in formats.iter_batches(path, types, block):
        at = min(skip, len(batch))
        skip -= at
        while at < len(batch):
            piece = batch.slice(at, None if rows is None else rows - table.rows)
            at += len(piece)
            try:
                table.add(piece)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise formats.explain(path, error) from error
            if table.rows == rows:
                yield table.dataset(**told)
                table = Gathered(path, roles, need, before=table.before + table.rows)
    if not table.rows and not table.before:
        raise BadInput(f"{path} has columns but no rows: give it one row an example")
    if table.rows:
        yield table.dataset(**told)


def _check_file(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"{path} does not exist: check the name")
    if not path.is_file():
        raise BadInput(f"{path} is not a file: a table is one file, {', '.join(formats.SUFFIXES)}")
    if path.suffix.lower() not in formats.SUFFIXES:
        raise BadInput(
            f"{path} has the suffix '{path.suffix}', which is not known: use one of {', '.join(formats.SUFFIXES)}"
        )
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: give it a header and one row an example")


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers; true and false are none."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _types(path: Path, schema: pa.Schema, roles: Roles) -> dict[str, pa.DataType]:
    """The columns to read and their types: texts as texts even where they look like numbers."""
    wanted = {name: formats.text_type(path, schema.field(name).type) for name in roles.texts}
    for name in roles.features:
        wanted[name] = pa.bool_() if schema.field(name).type == pa.bool_() else pa.float64()
    for name in (roles.label, roles.domain, roles.split, roles.time):
        if name is not None:
            wanted[name] = formats.name_type(path, schema.field(name).type)
    if roles.id is not None:
        wanted[roles.id] = formats.name_type(path, schema.field(roles.id).type, exact=True)
    return wanted


ABOUT = ("domain", "split", "id")


def finder(path: Path, columns: Mapping[str, str] | None) -> ColumnFinder:
    """The columns of a table, to be found by role."""
    if path.stat().st_size == 0:
        raise BadInput(f"{path} is empty: give it one row an example")
    return ColumnFinder(str(path), formats.read_schema(path).names, columns)


def iter_rows(path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """The named columns of every row, lists as lists."""
    match path.suffix.lower():
        case ".parquet":
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=list(names)):
                    yield from batch.to_pylist()
        case ".csv" | ".tsv":
            for batch in formats.iter_batches(path, dict.fromkeys(names, pa.large_string()), formats.LONG_BLOCK):
                yield from batch.to_pylist()
        case _:
            yield from _objects(path, names)


def _objects(path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    row = 0
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if not line.strip():
                continue
            row += 1
            try:
                found = json.loads(line)
            except ValueError as error:
                raise BadInput(f"{path}: row {row} is not JSON: {error}") from error
            if not isinstance(found, dict):
                raise BadInput(f"{path}: row {row} is not a JSON object: write one {{...}} a line")
            check_characters(line, found, f"{path}: row {row}")
            yield {name: found.get(name) for name in names}


def check_characters(written: str, found: Any, where: str) -> None:
    """JSON can spell one half of a pair of surrogates, which no encoding can hold."""
    if "\\ud" not in written.lower():
        return
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{where} has half of a character, as \\ud83d alone: write the whole of it") from error


def gathered(
    path: Path,
    raw: Raw,
    about: Mapping[str, Sequence[Any]],
    *,
    classes: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """A data set without labels; `about` has domain, split and id of each example where they are known."""
    domain, domains = np.zeros(len(raw), dtype=np.int64), ("all",)
    if "domain" in about:
        names = _names(about["domain"], numbers=False)
        domain, domains = domain_codes(names, None)
        if (domain < 0).any():
            raise BadInput(f"{path}: row {int((domain < 0).argmax()) + 1} has no domain: fill it in or take it out")
    split = None
    if "split" in about:
        split = split_codes(_names(about["split"], numbers=True), where=str(path), column="split")
    return Dataset(
        name=path.stem,
        raw=raw,
        y=np.full(len(raw), -1),
        classes=classes,
        domain=domain,
        domains=domains,
        split=split,
        ids=[str(each) for each in about["id"]] if "id" in about else None,
        notes=tuple(notes),
    )


def _names(values: Sequence[Any], *, numbers: bool) -> Names:
    found = Names()
    found.add(pa.array([None if value is None else str(value) for value in values], type=pa.string()), numbers=numbers)
    return found


_LIKE = Path("rows.jsonl")  # values have the types that they would have in such a file


def read_json_rows(
    rows: Sequence[Mapping[str, Any]], *, where: str, columns: Mapping[str, str] | None = None
) -> Dataset:
    """The input of every row, and its id where it has one; labels, domains and whatever else is there is left aside."""
    schema = formats.json_schema(rows)
    numeric = {f.name for f in schema if f.type in (pa.bool_(), pa.int64(), pa.float64())}
    roles = assign(where, schema.names, numeric=numeric, columns=columns, need=())
    roles = replace(roles, label=None, domain=None, split=None, time=None)
    types = _types_objects(schema, roles)
    for number, row in enumerate(rows, 1):
        if fault := formats.row_fault(number, row, types):
            raise BadInput(f"{where}: {fault}")
    table = Gathered(Path(where), roles, (), before=0)
    try:
        table.add(pa.record_batch({name: pa.array([r.get(name) for r in rows], kind) for name, kind in types.items()}))
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise BadInput(f"{where}: a value cannot be read ({str(error).splitlines()[0][:100]}): mend it") from error
    return table.dataset(named_time=False, named_features=True)


def _types_objects(schema: pa.Schema, roles: Roles) -> dict[str, pa.DataType]:
    wanted = {name: formats.text_type(_LIKE, schema.field(name).type) for name in roles.texts}
    for name in roles.features:
        wanted[name] = pa.bool_() if schema.field(name).type == pa.bool_() else pa.float64()
    if roles.id is not None:
        wanted[roles.id] = formats.name_type(_LIKE, schema.field(roles.id).type, exact=True)
    return wanted

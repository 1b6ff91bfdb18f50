"""A table file (csv, tsv, jsonl, parquet) as a data set: one row an example, columns found by name.

n examples
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data import formats
from holdfast.data.columns import Roles, assign
from holdfast.data.domain import Dataset
from holdfast.data.gathered import Gathered
from holdfast.data.spoiled import mostly_numbers


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
    schema = formats.peek(path, block)
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
    for batch in formats.stream(path, types, block):
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

"""Write a table in chunks to csv, jsonl or parquet; the file appears only when it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from holdfast.core.errors import BadInput
from holdfast.core.files import write_atomic

SUFFIXES = (".csv", ".jsonl", ".parquet")
FORMULA = ("=", "+", "-", "@")


def check_suffix(out: Path) -> None:
    """Raise if the suffix of an output file is not supported."""
    if out.suffix not in SUFFIXES:
        raise BadInput(f"cannot write '{out}': use a file name that ends in {', '.join(SUFFIXES)}")


def check_not_input(option: str, out: Path, data: object) -> None:
    """Raise if the output file is the input data."""
    if isinstance(data, str | Path) and Path(data).expanduser().resolve() == out.expanduser().resolve():
        raise BadInput(f"{option} {out} would overwrite the data: name another file")


def write_tables(out: Path, tables: Iterator[pa.Table], *, escape_formulas: bool = False) -> Path:
    """Write tables with the same columns one after another, each one before the next is requested.

    With `escape_formulas`, texts that a spreadsheet would run as a formula are prefixed with ' in csv files.
    """
    check_suffix(out)
    if escape_formulas and out.suffix == ".csv":
        tables = map(_escape_table, map(_flatten, tables))
    writers = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
    return write_atomic(out, lambda draft: writers[out.suffix](draft, tables))


def _write_csv(draft: Path, tables: Iterator[pa.Table]) -> None:
    flat = map(_flatten, tables)
    first = next(flat)
    with pyarrow.csv.CSVWriter(draft, first.schema) as writer:
        writer.write_table(first)
        for table in flat:
            writer.write_table(table)


def _write_parquet(draft: Path, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
    with pyarrow.parquet.ParquetWriter(draft, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _write_jsonl(draft: Path, tables: Iterator[pa.Table]) -> None:
    with draft.open("w", encoding="utf-8") as file:
        for table in tables:
            lines = table.to_pandas().to_json(orient="records", lines=True, force_ascii=False)
            file.write(lines if lines.endswith("\n") else lines + "\n")


def _escape_table(table: pa.Table) -> pa.Table:
    columns = [
        pa.chunked_array([[_escape(text) for text in column.to_pylist()]], type=column.type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
        for column in table.columns
    ]  # fmt: skip
    return pa.table(columns, names=[_escape(name) for name in table.column_names])


def _escape(text: str | None) -> str | None:
    """Prefix a text with ' if it starts like a formula and is not a number."""
    if text is None or not text.lstrip().startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _flatten(table: pa.Table) -> pa.Table:
    """Convert lists to texts separated by spaces, since csv files have no lists."""
    columns = {name: table.column(name) for name in table.column_names}
    for name, column in columns.items():
        if pa.types.is_list(column.type):
            columns[name] = pa.chunked_array([[" ".join(map(str, values)) for values in column.to_pylist()]])
    return pa.table(columns)

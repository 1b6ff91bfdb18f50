"""Write a table in chunks to csv, jsonl or parquet; the file appears only when it is complete."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from holdfast.core.errors import BadInput
from holdfast.core.files import write_atomic

SUFFIXES = (".csv", ".jsonl", ".parquet")
FORMULA = ("=", "+", "-", "@")


def check_suffix(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise BadInput(f"cannot write '{out}': use a file name that ends in {', '.join(SUFFIXES)}")


def check_not_input(option: str, out: Path, data: object) -> None:
    if isinstance(data, str | Path) and Path(data).expanduser().resolve() == out.expanduser().resolve():
        raise BadInput(f"{option} {out} would overwrite the data: name another file")


def write_tables(out: Path, tables: Iterator[pa.Table], *, escape_formulas: bool = False) -> Path:
    """Write tables with the same columns one after another, each one before the next is requested.

    With `escape_formulas`, texts that a spreadsheet would run as a formula are prefixed with ' in csv files.
    """
    check_suffix(out)
    if out.suffix == ".csv":
        tables = map(_escape_table if escape_formulas else _flatten, tables)
    if out.suffix == ".jsonl":
        return write_atomic(out, lambda draft: _write_jsonl(draft, tables))
    return write_atomic(out, lambda draft: _write_schema(draft, out.suffix, tables))


def _write_schema(draft: Path, suffix: str, tables: Iterator[pa.Table]) -> None:
    first = next(tables)
    open_writer = pyarrow.csv.CSVWriter if suffix == ".csv" else pyarrow.parquet.ParquetWriter
    with open_writer(draft, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _write_jsonl(draft: Path, tables: Iterator[pa.Table]) -> None:
    with draft.open("w", encoding="utf-8") as file:
        for table in tables:
            lines = table.to_pandas().to_json(orient="records", lines=True, force_ascii=False)
            file.write(lines if lines.endswith("\n") else lines + "\n")


def _escape_table(table: pa.Table) -> pa.Table:
    columns = [
        pa.chunked_array([[_escape(text) for text in column.to_pylist()]], type=column.type)
        if column.type in (pa.string(), pa.large_string()) else column
        for column in _flatten(table).columns
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
    columns = [
        pa.chunked_array([[" ".join(map(str, values)) for values in column.to_pylist()]])
        if pa.types.is_list(column.type) else column
        for column in table.columns
    ]  # fmt: skip
    return pa.table(columns, names=table.column_names)

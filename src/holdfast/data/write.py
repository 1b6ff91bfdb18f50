"""A table written piece by piece to csv, jsonl or parquet, and there whole or not at all."""

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
    """One sentence where the ending of a file to write is not known."""
    if out.suffix not in SUFFIXES:
        raise BadInput(f"cannot write '{out}': name a file that ends in {', '.join(SUFFIXES)}")


def check_not_input(option: str, out: Path, data: object) -> None:
    """One sentence where a file to write is the data itself, told before any work is done."""
    if isinstance(data, str | Path) and Path(data).expanduser().resolve() == out.expanduser().resolve():
        raise BadInput(f"{option} {out} would write over the data: name another file")


def write_tables(out: Path, pieces: Iterator[pa.Table], *, escape_formulas: bool = False) -> Path:
    """Write tables with the same columns one after another; each is asked for when the one before is on the disk.

    With `harmless`, a text that a spreadsheet would run as a formula gets a ' before it in a csv file.
    """
    check_suffix(out)
    if escape_formulas and out.suffix == ".csv":
        pieces = map(_harmless, map(_flat, pieces))
    writers = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
    return write_atomic(out, lambda draft: writers[out.suffix](draft, pieces))


def _write_csv(draft: Path, pieces: Iterator[pa.Table]) -> None:
    flat = map(_flat, pieces)
    first = next(flat)
    with pyarrow.csv.CSVWriter(draft, first.schema) as writer:
        writer.write_table(first)
        for piece in flat:
            writer.write_table(piece)


def _write_parquet(draft: Path, pieces: Iterator[pa.Table]) -> None:
    first = next(pieces)
    with pyarrow.parquet.ParquetWriter(draft, first.schema) as writer:
        writer.write_table(first)
        for piece in pieces:
            writer.write_table(piece)


def _write_jsonl(draft: Path, pieces: Iterator[pa.Table]) -> None:
    with draft.open("w", encoding="utf-8") as file:
        for piece in pieces:
            lines = piece.to_pandas().to_json(orient="records", lines=True, force_ascii=False)
            file.write(lines if lines.endswith("\n") else lines + "\n")


def _harmless(table: pa.Table) -> pa.Table:
    names = [_plain(name) for name in table.column_names]
    columns = [
        pa.chunked_array([[_plain(each) for each in column.to_pylist()]], type=column.type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else column
        for column in table.columns
    ]  # fmt: skip
    return pa.table(columns, names=names)


def _plain(text: str | None) -> str | None:
    """A text as it is, unless it begins as a formula does and is no number."""
    if text is None or not text.lstrip().startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def _flat(table: pa.Table) -> pa.Table:
    """Lists as texts with spaces between, since a csv file has no lists."""
    columns = {name: table.column(name) for name in table.column_names}
    for name, column in columns.items():
        if pa.types.is_list(column.type):
            columns[name] = pa.chunked_array([[" ".join(map(str, each)) for each in column.to_pylist()]])
    return pa.table(columns)

"""Table files by suffix: peek at the columns, stream batches of the wanted ones, or say what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from holdfast.core.errors import BadInput

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
BLOCK = 1 << 20  # bytes of csv or json at a time: a row may not be longer
LONG_BLOCK = 1 << 27  # for files with longer rows
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_TEXT = pa.large_string()
_BATCH = 1 << 14  # rows of parquet at a time
_PEEK = 200  # lines of json
_KINDS = {
    _TEXT: "a text",
    pa.float64(): "a number",
    pa.int64(): "a whole number",
    pa.bool_(): "true or false",
}

Types = Mapping[str, pa.DataType]


class LongRow(BadInput):
    """A row does not fit into a block: worth another try with a larger one."""


def read_schema(path: Path, block: int = BLOCK) -> pa.Schema:
    """The columns of the file with the types they seem to have."""
    with _told(path):
        if path.suffix.lower() == ".parquet":
            return parquet.read_schema(path)
        with path.open("rb") as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise _not_utf8(path, "it starts with the mark of UTF-16", code="UTF-16")
        if path.suffix.lower() in _SEPARATORS:
            _check_separator(path)
            with _csv(path, {}, block) as reader:
                schema = reader.schema
            assert schema.names is not None  # names that are not UTF-8 fail here
            return schema
        return _peek_json(path)


def text_type(path: Path, peeked: pa.DataType) -> pa.DataType:
    """The type to read a column of texts in: json says numbers as numbers, which are turned into text afterwards."""
    tagged = path.suffix.lower() not in (".csv", ".tsv", ".parquet")
    return peeked if tagged and (pa.types.is_integer(peeked) or pa.types.is_floating(peeked)) else _TEXT


def name_type(path: Path, peeked: pa.DataType, *, exact: bool = False) -> pa.DataType:
    """The type to read a column of names in; a column of json may mix 1 and 1.0 unless it is `exact`."""
    if path.suffix.lower() in (".csv", ".tsv"):
        return _TEXT
    loose = path.suffix.lower() != ".parquet" and not exact
    return pa.float64() if loose and peeked == pa.int64() else peeked


def iter_batches(path: Path, types: Types, block: int = BLOCK) -> Iterator[pa.RecordBatch]:
    """Batches of these columns, in file order; csv and json are read in the given types."""
    with _told(path, types):
        if path.suffix.lower() == ".parquet":
            # without pre-buffering the compressed pages of a large row group are not held all at once
            with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
                yield from file.iter_batches(batch_size=_BATCH, columns=list(types), use_threads=False)
        elif path.suffix.lower() in (".csv", ".tsv"):
            with _csv(path, types, block) as reader:
                yield from reader
        else:
            options = arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
            )
            reading = arrow_json.ReadOptions(use_threads=False, block_size=block)
            with arrow_json.open_json(path, read_options=reading, parse_options=options) as reader:
                yield from reader


def _csv(path: Path, types: Types, block: int) -> Any:
    return csv.open_csv(
        path,
        # one thread, so that arrow can tell the row of an error
        read_options=csv.ReadOptions(use_threads=False, block_size=block),
        parse_options=csv.ParseOptions(delimiter=_SEPARATORS[path.suffix.lower()], newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=dict(types), include_columns=list(types)),
    )


def _check_separator(path: Path) -> None:
    """One sentence where the header is parted by something else; numbers may have a comma there, so it is not read."""
    with path.open("rb") as file:
        header = re.sub(rb'"[^"]*"', b"", file.readline(BLOCK)).decode("utf-8", "replace")
    own = _SEPARATORS[path.suffix.lower()]
    other = next((each for each in ";\t,|" if each in header), None)
    if own in header or other is None:
        return
    named = {"\t": "a tab", ",": "a comma"}
    mend = f"write it anew with {named[own]} between columns, and a point in numbers, not a comma"
    for suffix, mark in _SEPARATORS.items():
        if mark == other:
            mend = f"call it {path.stem}{suffix}"
    raise BadInput(f"{path} seems to be separated by {named.get(other, repr(other))} and not by {named[own]}: {mend}")


def first_rows(path: Path) -> list[dict[str, Any]]:
    """The first objects of a file of JSON."""
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for line in islice((line for line in file if line.strip()), _PEEK):
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # the stream names the row
    return [row for row in rows if isinstance(row, dict)]


def _peek_json(path: Path) -> pa.Schema:
    schema = json_schema(first_rows(path))
    if not schema.names:
        raise BadInput(f"{path}: {_json_fault(path, {}) or 'there are no rows: write one JSON object a line'}")
    return schema


def json_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """The columns that objects of JSON have together, with the types they seem to have."""
    seen: dict[str, set[type]] = {}
    for row in rows:
        for key, value in row.items():
            seen.setdefault(key, set()).add(type(value))
    return pa.schema([(key, _json_type(kinds)) for key, kinds in seen.items()])


def _json_type(kinds: set[type]) -> pa.DataType:
    kinds = kinds - {type(None)}
    for only, found in (({bool}, pa.bool_()), ({int}, pa.int64()), ({int, float}, pa.float64())):
        if kinds and kinds <= only:
            return found
    return _TEXT


@contextmanager
def _told(path: Path, types: Types | None = None) -> Iterator[None]:
    """Whatever the file makes arrow raise becomes one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, RecursionError) as error:
        raise explain(path, error, types) from error


def explain(path: Path, error: BaseException, types: Types | None = None) -> BadInput:
    """One sentence from what arrow said of this file."""
    said = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError) or "invalid utf8" in said.lower().replace("-", ""):
        return _not_utf8(path, _row(said) or "so its texts cannot be read")
    if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", said):
        return BadInput(
            f"{path}: row {int(found[1]) - 1} has {found[3]} values but the header names {found[2]} columns: "
            "put values that hold the separator or a quote in double quotes, and see that the row is whole"
        )
    if found := re.search(r"CSV column #(\d+): .*invalid value '(.*)'", said):
        names = read_schema(path).names
        at = ", ".join(filter(None, (_row(said), f"column '{names[int(found[1])]}'")))
        return BadInput(
            f"{path}: {at} has '{found[2]}' where a number belongs: mend it or take the row out, or say which columns "
            "are features with --column features=NAME,NAME"
        )
    if "straddl" in said:
        return LongRow(f"{path}: a row is longer than {LONG_BLOCK >> 20} MB: most likely a quote is never closed")
    if path.suffix.lower() in (".jsonl", ".ndjson") and (fault := _json_fault(path, types or {})):
        return BadInput(f"{path}: {fault}")
    if isinstance(error, PermissionError):
        return BadInput(f"{path} may not be read: change its permissions")
    if said.endswith("Empty CSV file or block: cannot infer number of columns"):
        return BadInput(f"{path} is broken or has no header: give it a header and one row an example")
    why = said.split(". ")[0].rstrip(".")[:200]  # arrow says more than one sentence
    return BadInput(f"{path} is broken or not a {path.suffix[1:]} file ({why}): write it anew")


def _row(said: str) -> str:
    """The data row arrow speaks of, counted from 1 below the header."""
    found = re.search(r"Row #(\d+)", said)
    return f"row {int(found[1]) - 1}" if found else ""


def _not_utf8(path: Path, at: str, code: str = "LATIN1") -> BadInput:
    return BadInput(
        f"{path} is not UTF-8 ({at}): convert it, for example with "
        f"iconv -f {code} -t UTF-8 {path.name} > utf8{path.suffix}"
    )


def _json_fault(path: Path, types: Types) -> str | None:
    """The first row that is not an object with values of the expected types."""
    row = 0
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for line in file:
            if not line.strip():
                continue
            row += 1
            try:
                value = json.loads(line.strip())
            except json.JSONDecodeError as error:
                return f"row {row} is not JSON: {error.msg.removesuffix(' at')} at character {error.colno}"
            except (ValueError, RecursionError) as error:
                return f"row {row} is not JSON: {error}"
            if not isinstance(value, dict):
                return f"row {row} is not a JSON object: write one {{...}} a line"
            if fault := row_fault(row, value, types):
                return fault
    return None


def row_fault(number: int, row: Mapping[str, Any], types: Types) -> str | None:
    """The first value of an object of JSON that is not of its column's type."""
    for name, kind in types.items():
        if not _fits(row.get(name), kind):
            shown, kinds = repr(row[name])[:60], _KINDS.get(kind, str(kind))
            return (
                f"row {number}, column '{name}' has {shown} where {kinds} belongs as in other rows: mend it or take "
                "the row out"
            )
    return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if kind == _TEXT:
        return isinstance(value, str)
    if kind == pa.bool_() or isinstance(value, bool):
        return kind == pa.bool_() and isinstance(value, bool)
    return isinstance(value, int) or (kind == pa.float64() and isinstance(value, float))

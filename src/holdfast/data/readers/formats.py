"""Table files (csv, tsv, jsonl, parquet): read the schema, stream batches of columns, and explain what is invalid."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from holdfast.core.errors import BadInput
from holdfast.core.files import open_limit
from holdfast.data.readers.dialect import SEPARATORS, detect_dialect, not_utf8
from holdfast.data.readers.parquet import parquet_batches

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
BLOCK = 1 << 20  # bytes of csv or json per block, which is also the maximum length of a row
LONG_BLOCK = 1 << 27  # for files with longer rows
MAX_COLUMNS = 100_000
_TEXT = pa.large_string()
_JSON_BATCH = 1 << 14  # rows of json per batch, if they are read one by one
_PEEK = 200  # lines of json that determine the types
_JSON_TYPES: dict[pa.DataType, tuple[str, set[type]]] = {
    pa.bool_(): ("true or false", {bool}),
    pa.int64(): ("an integer", {int}),
    pa.float64(): ("a number", {int, float}),
    _TEXT: ("a text", {str}),
    pa.list_(pa.string()): ("a list of texts", {tuple}),
}

Types = Mapping[str, pa.DataType]
OnInvalid = Callable[[int, Sequence["Fault"]], None]  # row from 1, and what is wrong with it


class Fault(NamedTuple):
    """One problem of a row; `column` and `value` are empty if it concerns the complete row."""

    problem: str
    fix: str
    column: str = ""
    value: str = ""


class LongRow(BadInput):
    """A row is longer than a block; the file can be read with a larger block."""


class BadValue(BadInput):
    """A value does not have the type of its column; `iter_batches` can read the file leniently."""


def read_schema(path: Path, block: int = BLOCK) -> pa.Schema:
    """Return the columns of a file with their inferred types."""
    with _explained(path):
        schema = _schema(path, block)
    if len(schema) > MAX_COLUMNS:
        raise _too_many_columns(path)
    return schema


def _schema(path: Path, block: int) -> pa.Schema:
    if path.suffix.lower() == ".parquet":
        return parquet.read_schema(path)
    if path.suffix.lower() in SEPARATORS:
        with _open_csv(path, {}, block, on_invalid=leave_out) as reader:
            schema = reader.schema
        assert schema.names is not None  # raises for names that are not UTF-8
        return schema
    with path.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise not_utf8(path, "it starts with the byte order mark of UTF-16", code="UTF-16")
    schema = json_schema(first_rows(path))
    if not schema.names:
        raise BadInput(f"{path}: {_json_fault(path, {}) or 'there are no rows: write one JSON object per line'}")
    return schema


def _too_many_columns(path: Path) -> BadInput:
    return BadInput(
        f"{path} has more than {MAX_COLUMNS:,} columns: remove columns, or store the features in a .npz file"
    )


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8: convert it") from error


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers; booleans are not numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def text_type(path: Path, inferred: pa.DataType) -> pa.DataType:
    """Return the type to read a column of texts in; numbers in json are converted to texts afterwards."""
    typed = path.suffix.lower() not in (".csv", ".tsv", ".parquet")
    return inferred if typed and (pa.types.is_integer(inferred) or pa.types.is_floating(inferred)) else _TEXT


def name_type(path: Path, inferred: pa.DataType, *, exact: bool = False) -> pa.DataType:
    """Return the type to read a column of names in; unless `exact`, a json column may mix 1 and 1.0."""
    if path.suffix.lower() in (".csv", ".tsv"):
        return _TEXT
    loose = path.suffix.lower() != ".parquet" and not exact
    return pa.float64() if loose and inferred == pa.int64() else inferred


def iter_batches(
    path: Path, types: Types, block: int = BLOCK, *, on_invalid: OnInvalid | None = None, lenient: bool = False
) -> Iterator[pa.RecordBatch]:
    """Stream batches of these columns in file order; csv and json are read in the passed types.

    `on_invalid` is called for rows that cannot be split into values, which are then left out; without it they are
    errors. With `lenient`, it is also called for json rows with a value of another type.
    """
    with _explained(path, types):
        if path.suffix.lower() == ".parquet":
            yield from parquet_batches(path, list(types))
        elif path.suffix.lower() in (".csv", ".tsv"):
            with _open_csv(path, types, block, on_invalid=on_invalid) as reader:
                yield from reader
        elif lenient and on_invalid is not None:
            yield from _valid_json(path, types, on_invalid)
        else:
            schema = pa.schema(list(types.items()))
            options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
            reading = arrow_json.ReadOptions(use_threads=False, block_size=block)
            with arrow_json.open_json(path, read_options=reading, parse_options=options) as reader:
                yield from reader


def iter_rows(path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Stream rows as dicts of these columns; lists stay lists."""
    if path.suffix.lower() in (".parquet", *SEPARATORS):
        for batch in iter_batches(path, dict.fromkeys(names, _TEXT), LONG_BLOCK):
            yield from batch.to_pylist()
        return
    with path.open(encoding="utf-8-sig") as file:
        for row, line in enumerate((line for line in file if line.strip()), start=1):
            try:
                value = json.loads(line)
            except ValueError as error:
                raise BadInput(f"{path}: row {row} is not JSON: {error}") from error
            if not isinstance(value, dict):
                raise BadInput(f"{path}: row {row} is not a JSON object: write one {{...}} per line")
            check_surrogates(line, value, f"{path}: row {row}")
            yield {name: value.get(name) for name in names}


def check_surrogates(text: str, value: Any, where: str) -> None:
    """Raise if JSON contains an unpaired surrogate, which no encoding can represent."""
    if _has_surrogate(text, value):
        raise BadInput(f"{where} has an unpaired surrogate such as \\ud83d: write the complete character")


def _has_surrogate(text: str, value: Any) -> bool:
    if "\\ud" not in text.lower():
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def first_rows(path: Path) -> list[dict[str, Any]]:
    """Return the first objects of a json file; reading stops at an invalid line."""
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for row, line in enumerate(islice((line for line in file if line.strip()), _PEEK), start=1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                break  # reported with its row number when the file is streamed
            check_surrogates(line, rows[-1], f"{path}: row {row}")
    return [row for row in rows if isinstance(row, dict)]


def _json_type(value: Any) -> type:
    """Return the type of a JSON value; that of a list of texts is tuple."""
    is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return tuple if is_texts else type(value)


def json_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Return the union of the columns of JSON objects with their inferred types."""
    seen: dict[str, set[type]] = {}
    for row in rows:
        for key, value in row.items():
            seen.setdefault(key, set()).update([] if value is None else [_json_type(value)])

    def arrow_type(types: set[type]) -> pa.DataType:
        return next((kind for kind, (_, accepted) in _JSON_TYPES.items() if types and types <= accepted), _TEXT)

    return pa.schema([(key, arrow_type(types)) for key, types in seen.items()])


@contextmanager
def _open_csv(path: Path, types: Types, block: int, *, on_invalid: OnInvalid | None) -> Iterator[Any]:
    dialect = detect_dialect(path)
    block = block if _check_header(path, dialect.separator) < block else LONG_BLOCK

    def handle(row: Any) -> str:
        if on_invalid is not None:
            fix = "complete the row, or put values with a separator in double quotes"
            problem = f"has {row.actual_columns} values but the header names {row.expected_columns} columns"
            on_invalid(row.number - 1, [Fault(problem, fix)])
        return "skip"

    with (
        dialect.open(path) as file,
        csv.open_csv(
            file,
            # one thread, so that Arrow reports the row of an error
            read_options=csv.ReadOptions(use_threads=False, block_size=block, encoding=dialect.encoding),
            parse_options=csv.ParseOptions(
                delimiter=dialect.separator,
                newlines_in_values=True,
                invalid_row_handler=None if on_invalid is None else handle,
            ),
            convert_options=csv.ConvertOptions(column_types=dict(types), include_columns=list(types)),
        ) as reader,
    ):
        yield reader


def _check_header(path: Path, separator: str) -> int:
    """Return the length of the header in bytes; raise if it has too many columns."""
    with path.open("rb") as file:
        header = file.readline(LONG_BLOCK)
    if re.sub(rb'"[^"]*"', b"", header).count(separator.encode()) >= MAX_COLUMNS:
        raise _too_many_columns(path)
    return len(header)


def leave_out(row: int, faults: Sequence[Fault]) -> None:
    """Accept rows that cannot be read, since they are reported when the rows are streamed."""


def reading_notes(path: Path) -> tuple[str, ...]:
    """Return notes on how a file is read if that is not evident from its suffix."""
    return detect_dialect(path).notes if path.suffix.lower() in SEPARATORS else ()


@contextmanager
def _explained(path: Path, types: Types | None = None) -> Iterator[None]:
    """Convert Arrow's exceptions to `BadInput`."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, RecursionError) as error:
        raise explain(path, error, types) from error


def explain(path: Path, error: BaseException, types: Types | None = None) -> BadInput:
    """Convert an exception of Arrow for this file to one sentence with row, column and fix."""
    if limited := open_limit(error):
        return limited
    message = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError) or "invalid utf8" in message.lower().replace("-", ""):
        return not_utf8(path, _row(message) or "so its texts cannot be read")
    if match := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message):
        values = f"row {int(match[1]) - 1} has {match[3]} values but the header names {match[2]} columns"
        return BadInput(f"{path}: {values}: complete the row, or put values with a separator in double quotes")
    if match := re.search(r"CSV column #(\d+): .*invalid value '(.*)'", message):
        cell = ", ".join(filter(None, (_row(message), f"column '{read_schema(path).names[int(match[1])]}'")))
        fix = "fix the value, remove the row, or name the feature columns with --column features=NAME,NAME"
        return BadValue(f"{path}: {cell} has '{match[2]}', expected a number: {fix}")
    if "straddl" in message:
        return LongRow(f"{path}: a row is longer than {LONG_BLOCK >> 20} MB: check for a quote that is never closed")
    if path.suffix.lower() in (".jsonl", ".ndjson") and (fault := _json_fault(path, types or {})):
        return BadValue(f"{path}: {fault}")
    if isinstance(error, PermissionError):
        return BadInput(f"{path} cannot be read: change its permissions")
    if message.endswith("Empty CSV file or block: cannot infer number of columns"):
        return BadInput(f"{path} is damaged or has no header: write a header and one row per example")
    reason = message.split(". ")[0].rstrip(".")[:200]  # only Arrow's first sentence
    return BadInput(f"{path} is damaged or not a {path.suffix[1:]} file ({reason}): write it again")


def _row(message: str) -> str:
    """Return the data row of Arrow's message, counted from 1 below the header."""
    match = re.search(r"Row #(\d+)", message)
    return f"row {int(match[1]) - 1}" if match else ""


def _json_fault(path: Path, types: Types) -> str | None:
    """Describe the first row that is not an object with values of the expected types."""
    for row, value in _json_lines(path):
        if isinstance(value, Fault):
            return f"row {row} {value.problem}: {value.fix}"
        if fault := row_fault(row, value, types):
            return fault
    return None


def _valid_json(path: Path, types: Types, on_invalid: OnInvalid) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are objects with values of the expected types."""
    schema, rows = pa.schema(list(types.items())), list[Mapping[str, Any]]()
    for number, value in _json_lines(path):
        faults = [value] if isinstance(value, Fault) else _row_faults(value, types)
        if faults:
            on_invalid(number, faults)
        elif not isinstance(value, Fault):
            rows.append(value)
        if len(rows) == _JSON_BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | Fault]]:
    """Yield the number of each row, from 1, and its object or the reason why it has none."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for row, line in enumerate((line for line in file if line.strip()), start=1):
            try:
                value = json.loads(line.strip())
            except json.JSONDecodeError as error:
                reason = f"{error.msg.removesuffix(' at')} at character {error.colno}"
                yield row, Fault(f"is not JSON: {reason}", "write one {...} per line")
                continue
            except (ValueError, RecursionError) as error:
                yield row, Fault(f"is not JSON: {error}", "write one {...} per line")
                continue
            if not isinstance(value, dict):
                value = Fault("is not a JSON object", "write one {...} per line")
            elif _has_surrogate(line, value):
                value = Fault("has an unpaired surrogate such as \\ud83d", "write the complete character")
            yield row, value


def row_fault(number: int, row: Mapping[str, Any], types: Types) -> str | None:
    """Describe the first value of a JSON object that does not have its column's type."""
    for problem, fix, name, shown in _row_faults(row, types):
        return f"row {number}, column '{name}' has {shown}, {problem}: {fix}"
    return None


def _row_faults(row: Mapping[str, Any], types: Types) -> list[Fault]:
    """Describe the values of a JSON object that do not have the type of their column."""
    faults = []
    for name, kind in types.items():
        expected, accepted = _JSON_TYPES[kind]
        if row.get(name) is not None and _json_type(row[name]) not in accepted:
            fix = "fix the value or remove the row"
            faults.append(Fault(f"expected {expected}", fix, name, repr(row[name])[:60]))
    return faults

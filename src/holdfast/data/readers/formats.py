"""Table files (csv, tsv, jsonl, parquet): read the schema, stream batches of columns, and explain what is invalid."""

import json
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from holdfast.core.errors import BadInput
from holdfast.core.files import open_limit
from holdfast.data.readers.arrow import TEXT, is_number, is_text
from holdfast.data.readers.dialect import SEPARATORS, Dialect, detect_dialect, not_utf8
from holdfast.data.readers.forms import Form, Plan, stored_forms
from holdfast.data.readers.parquet import parquet_batches
from holdfast.data.readers.sources import BadCell, OnInvalid, TableSource, Types, leave_out

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
BLOCK = 1 << 24  # bytes of csv per block, which is also the maximum length of a row
HEAD = 1 << 20  # bytes of csv that determine the types of columns
MAX_COLUMNS = 100_000
_UNPAIRED = "has an unpaired surrogate such as \\ud83d"
_JSON_BATCH = 1 << 12  # rows of json per batch
_PEEK = 200  # lines of json that determine the types
_JSON_TYPES: dict[pa.DataType, tuple[str, set[type]]] = {
    pa.bool_(): ("true or false", {bool}),
    pa.int64(): ("an integer", {int}),
    pa.float64(): ("a number", {int, float}),
    TEXT: ("a text", {str}),
    pa.list_(pa.string()): ("a list of texts", {tuple}),
}


class TableFile(TableSource):
    """A file with one row per example."""

    def __init__(self, path: Path) -> None:
        self.path, self.where, self.name, self.folder = path, str(path), path.stem, path.parent

    def batches(self, types: Types, on_invalid: OnInvalid | None = None) -> Iterator[pa.RecordBatch]:
        with self.explained(types):
            yield from self._batches(types, on_invalid)

    @abstractmethod
    def _batches(self, types: Types, on_invalid: OnInvalid | None) -> Iterator[pa.RecordBatch]: ...

    def explain(self, error: BaseException, types: Types | None = None) -> BadInput:
        if limited := open_limit(error):
            return limited
        message, path = " ".join(str(error).split()), self.path
        row = re.search(r"Row #(\d+)", message)
        place = f"row {int(row[1]) - 1}" if row else ""  # counted from 1 below the header
        if isinstance(error, UnicodeDecodeError) or "invalid utf8" in message.lower().replace("-", ""):
            return not_utf8(path, place or "so its texts cannot be read")
        if match := re.search(r"Row #\d+: Expected (\d+) columns, got (\d+)", message):
            cell = _wrong_width(int(place[4:]), int(match[2]), int(match[1]))
            return BadInput(f"{path}: {cell}: {cell.fix}")
        if "straddl" in message:
            return BadInput(f"{path}: a row is longer than {BLOCK >> 20} MB: check for a quote that is never closed")
        if isinstance(error, PermissionError):
            return BadInput(f"{path} cannot be read: change its permissions")
        if message.endswith("Empty CSV file or block: cannot infer number of columns"):
            return BadInput(f"{path} is damaged or has no header: write a header and one row per example")
        reason = message.split(". ")[0].rstrip(".")[:200]  # only Arrow's first sentence
        return BadInput(f"{path} is damaged or not a {path.suffix[1:]} file ({reason}): write it again")


class CsvFile(TableFile):
    """Texts between separators, which stay texts; the types that Arrow infers from the first ones decide the kinds."""

    typed = False

    @cached_property
    def dialect(self) -> Dialect:
        return detect_dialect(self.path)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.dialect.notes

    @property
    def decimal(self) -> str:
        return "," if self.dialect.separator == ";" else "."

    def types(self, names: Collection[str], plan: Plan, *, exact: Collection[str] = ()) -> dict[str, pa.DataType]:
        return dict.fromkeys(names, TEXT)  # texts keep their spelling: 007 is not 7

    def _schema(self) -> pa.Schema:
        _check_width(self.path, _header_width(self.path, self.dialect.separator))
        schema = self._beginning({})[0]
        assert schema.names is not None  # raises for names that are not UTF-8
        return schema

    def head(self, types: Types) -> pa.RecordBatch | None:
        with self.explained(types):
            return self._beginning(types)[1]

    def _beginning(self, types: Types) -> tuple[pa.Schema, pa.RecordBatch | None]:
        """Return the schema and the rows of the first block, which is larger if its rows are long."""
        for block in (HEAD, BLOCK):
            try:
                with self._open(types, leave_out, block) as reader:
                    return reader.schema, next(iter(reader), None) if types else None
            except pa.ArrowException:
                if block == BLOCK:
                    raise
        raise AssertionError

    def _batches(self, types: Types, on_invalid: OnInvalid | None) -> Iterator[pa.RecordBatch]:
        with self._open(types, on_invalid, BLOCK) as reader:
            yield from reader

    @contextmanager
    def _open(self, types: Types, on_invalid: OnInvalid | None, block: int) -> Iterator[Any]:
        def handle(row: Any) -> str:
            if on_invalid is not None:
                on_invalid([_wrong_width(row.number - 1, row.actual_columns, row.expected_columns)])
            return "skip"

        with (
            self.dialect.open(self.path) as file,
            csv.open_csv(
                file,
                # one thread, so that Arrow reports the row of an error
                read_options=csv.ReadOptions(use_threads=False, block_size=block, encoding=self.dialect.encoding),
                parse_options=csv.ParseOptions(
                    delimiter=self.dialect.separator,
                    newlines_in_values=True,
                    invalid_row_handler=None if on_invalid is None else handle,
                ),
                convert_options=csv.ConvertOptions(column_types=dict(types), include_columns=list(types)),
            ) as reader,
        ):
            yield reader


class ParquetFile(TableFile):
    """Columns in their own types."""

    def text_forms(self) -> tuple[dict[str, Form], dict[str, str]]:
        forms, notes = super().text_forms()
        return stored_forms(forms), notes

    def _schema(self) -> pa.Schema:
        schema = parquet.read_schema(self.path)
        _check_width(self.path, len(schema))
        return schema

    def _batches(self, types: Types, on_invalid: OnInvalid | None) -> Iterator[pa.RecordBatch]:
        return parquet_batches(self.path, list(types))


class JsonFile(TableFile):
    """One JSON object per line."""

    def kinds(self) -> dict[str, str]:
        texts = [field.name for field in self.schema if is_text(field.type)]
        numbers = {
            name: [type(row[name]) in (int, float) for row in self.first_rows if row.get(name) is not None]
            for name in texts
        }
        return super().kinds() | {name: "number" for name, each in numbers.items() if 2 * sum(each) > len(each)}

    def text_forms(self) -> tuple[dict[str, Form], dict[str, str]]:
        return {}, {}

    def types(self, names: Collection[str], plan: Plan, *, exact: Collection[str] = ()) -> dict[str, pa.DataType]:
        types = super().types(names, plan)
        for name, inferred in types.items():
            kind = plan.roles.features.get(name, "")
            if kind == "boolean":
                types[name] = pa.bool_()
            elif name in plan.trained or kind == "date" or (name in plan.roles.texts and not is_number(inferred)):
                types[name] = TEXT
            elif kind == "number" and inferred != pa.bool_():
                types[name] = pa.float64()
            elif inferred == pa.int64() and name not in exact and name not in plan.roles.texts:
                types[name] = pa.float64()  # a column may mix 1 and 1.0
        return types

    @cached_property
    def first_rows(self) -> Sequence[Mapping[str, Any]]:
        """The objects among the first rows; other rows are reported when the file is streamed."""
        return [value for _, value in islice(self.rows(), _PEEK) if not isinstance(value, BadCell)]

    def _schema(self) -> pa.Schema:
        with self.path.open("rb") as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise not_utf8(self.path, "it starts with the byte order mark of UTF-16", code="UTF-16")
        schema = json_schema(self.first_rows)
        if not schema.names:
            deque(self.objects({}), maxlen=0)  # raises for the first row without an object
            raise BadInput(f"{self.path}: there are no rows: write one JSON object per line")
        _check_width(self.path, len(schema))
        return schema

    def _batches(self, types: Types, on_invalid: OnInvalid | None) -> Iterator[pa.RecordBatch]:
        objects = self.objects(types, on_invalid)
        while batch := list(islice(objects, _JSON_BATCH)):
            yield pa.record_batch({name: _array([row.get(name) for row in batch], types[name]) for name in types})

    def objects(self, types: Types, on_invalid: OnInvalid | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the rows that are objects with values of these types; others are errors without `on_invalid`."""
        expected = {name: _JSON_TYPES[kind] for name, kind in types.items()}
        for number, value in self.rows():
            faults = _row_faults(number, value, expected)
            if not faults:
                yield value
            elif on_invalid is None:
                raise BadInput(f"{self.where}: {faults[0]}: {faults[0].fix}")
            else:
                on_invalid(faults)

    def rows(self) -> Iterator[tuple[int, Any]]:
        """Yield the number of each row, from 1, and its object or the reason why it has none."""
        with self.path.open(encoding="utf-8-sig") as file:
            yield from enumerate(map(_json_object, filter(str.strip, file)), start=1)


class JsonRows(JsonFile):
    """JSON objects in memory."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], where: str) -> None:
        super().__init__(Path(where))
        self.first_rows, self.schema = rows, json_schema(rows)

    def rows(self) -> Iterator[tuple[int, Any]]:
        yield from enumerate(self.first_rows, start=1)

    def explain(self, error: BaseException, types: Types | None = None) -> BadInput:
        return BadInput(f"{self.where}: a value cannot be read ({str(error).splitlines()[0][:100]}): fix it")


def open_table(path: Path) -> TableFile:
    """Return the table in a file with one of the known suffixes; each version of a file is examined once."""
    if not path.is_file():
        raise BadInput(f"{path} {'is not a file' if path.exists() else 'does not exist'}: check the name of the table")
    stat = path.stat()
    if not stat.st_size:
        raise BadInput(f"{path} is empty: write one row per example, in csv files below a header")
    return _opened(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=16)
def _opened(path: Path, size: int, modified: int) -> TableFile:
    suffix = path.suffix.lower()
    return (CsvFile if suffix in SEPARATORS else ParquetFile if suffix == ".parquet" else JsonFile)(path)


def iter_rows(path: Path, names: Collection[str]) -> Iterator[dict[str, Any]]:
    """Stream rows as dicts of these columns; lists stay lists."""
    table = open_table(path)
    if isinstance(table, JsonFile):
        with table.explained():
            for row in table.objects({}):
                yield {name: row.get(name) for name in names}
    else:
        for batch in table.batches(dict.fromkeys(names, TEXT)):
            yield from batch.to_pylist()


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8: convert it") from error


def json_schema(rows: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Return the union of the columns of JSON objects with their inferred types."""
    seen: dict[str, set[type]] = {}
    for row in rows:
        for key, value in row.items():
            seen.setdefault(key, set()).update([] if value is None else [_json_type(value)])

    def arrow_type(types: set[type]) -> pa.DataType:
        return next((kind for kind, (_, accepted) in _JSON_TYPES.items() if types and types <= accepted), TEXT)

    return pa.schema([(key, arrow_type(types)) for key, types in seen.items()])


def _row_faults(row: int, value: Any, expected: Mapping[str, tuple[str, set[type]]]) -> list[BadCell]:
    """Return the values of a JSON object that do not have the type of their column, or why the row has no object."""
    if isinstance(value, BadCell):
        return [value._replace(row=row)]
    faults = []
    for name, (words, accepted) in expected.items():
        cell = value.get(name)
        if cell is not None and _json_type(cell) not in accepted:
            faults.append(BadCell(row, name, repr(cell)[:60], f"expected {words}", "fix the value or remove the row"))
    return faults


def check_surrogates(text: str, value: Any, where: str) -> None:
    """Raise if JSON contains an unpaired surrogate, which no encoding can represent."""
    if _has_surrogate(text, value):
        raise BadInput(f"{where} {_UNPAIRED}: write the complete character")


def _has_surrogate(text: str, value: Any) -> bool:
    if "\\ud" not in text.lower():
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _json_type(value: Any) -> type:
    """Return the type of a JSON value; that of a list of texts is tuple."""
    is_texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return tuple if is_texts else type(value)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    # of integers, Arrow converts only those that a float holds exactly
    return pa.array(np.array(values, np.float64) if kind == pa.float64() else values, kind, from_pandas=True)


def _json_object(line: str) -> Mapping[str, Any] | BadCell:
    """Return the object in a line, or the reason why it has none, for the row 0."""
    problem, fix, value = "", "write one {...} per line", {}
    try:
        value = json.loads(line.strip())
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg.removesuffix(' at')} at character {error.colno}"
    except (ValueError, RecursionError) as error:
        problem = f"is not JSON: {error}"
    if not problem and not isinstance(value, dict):
        problem = "is not a JSON object"
    if not problem and _has_surrogate(line, value):
        problem, fix = _UNPAIRED, "write the complete character"
    return BadCell(0, "", "", problem, fix) if problem else value


def _wrong_width(row: int, actual: int, expected: int) -> BadCell:
    """Return the error for a row of a csv file with too few or too many values."""
    problem = f"has {actual} values but the header names {expected} columns"
    return BadCell(row, "", "", problem, "complete the row, or put values with a separator in double quotes")


def _header_width(path: Path, separator: str) -> int:
    """Return the number of columns that the header names."""
    with path.open("rb") as file:
        header = file.readline(BLOCK)
    return re.sub(rb'"[^"]*"', b"", header).count(separator.encode()) + 1


def _check_width(path: Path, columns: int) -> None:
    if columns > MAX_COLUMNS:
        fix = "remove columns, or store the features in a .npz file"
        raise BadInput(f"{path} has more than {MAX_COLUMNS:,} columns: {fix}")

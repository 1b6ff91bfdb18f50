"""User-supplied tables: valid ones, and the same tables with a few faults of real files."""

import csv
import datetime
import io
import json
import random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet

from tests.generators.strategies import CODES, TEXT

Columns = dict[str, list[Any]]

HUGE = 131_073  # one more than the field limit of Python's csv module
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
FAULTS = (
    "cell", "cell", "odd column", "huge", "mixed", "one class", "one domain", "empty domain", "blank", "lost column",
    "renamed", "twice", "ragged", "quotes", "bytes", "code", "cut", "arrow", "numbers", "split", "time", "id", "few",
)  # fmt: skip
MIXED: tuple[Any, ...] = (1, 1.0, -0.0, 2.5, 10**30, float("nan"), float("inf"), True, None, "", "1", [1], {"a": 1}, [])
QUOTES = ('"open', 'a"b', '"a"b"', '""', "'", '"a""')
ARROW = (
    lambda n: pa.array(range(n), pa.decimal128(5, 1)),
    lambda n: pa.array([datetime.date(2024, 1, 1)] * n),
    lambda n: pa.array([datetime.timedelta(1)] * n),
    lambda n: pa.array([b"\xff\x00", b"a"] * n, pa.binary())[:n],
    lambda n: pa.array(["a", None] * n).dictionary_encode()[:n],
    lambda n: pa.array([[1], None] * n)[:n],
    lambda n: pa.array([{"a": 1}] * n),
    lambda n: pa.nulls(n),
    lambda n: pa.array([float("nan"), float("inf"), 1.0] * n)[:n],
    lambda n: pa.array([True, False, None] * n)[:n],
    lambda n: pa.array([2**63 + 5] * n, pa.uint64()),
    lambda n: pa.array([""] * n),
    lambda n: pa.array([1.5] * n, pa.float16()),
)


def good_rows(*domains: str, labels: tuple[str, str] = ("good", "bad")) -> Columns:
    """Return six rows per domain with two classes: a table that every command accepts."""
    rows = [(f"{word} thing {d}{i}", word, d) for d in domains for i in range(3) for word in labels]
    return {name: [row[at] for row in rows] for at, name in enumerate(("text", "label", "domain"))}


def numbers(*domains: str, size: int = 16) -> Columns:
    """Return two numeric features, of which the first predicts the label."""
    rng = random.Random(",".join(domains))
    rows = [(rng.gauss(i % 2, 1), rng.gauss(0, 1), ("bad", "good")[i % 2], d) for d in domains for i in range(size)]
    return dict(zip(("x1", "x2", "label", "domain"), map(list, zip(*rows, strict=True)), strict=True))


@st.composite
def faulty_table(draw, good: Columns) -> tuple[str, bytes]:
    """Draw a suffix and the bytes of a valid table with one to four faults."""
    columns = {name: list(values) for name, values in good.items()}
    suffix = draw(st.sampled_from(SUFFIXES))
    faults = draw(st.lists(st.sampled_from(FAULTS), min_size=1, max_size=4))
    for fault in faults:
        _spoil(draw, columns, fault)
    size = max(map(len, columns.values()), default=0)
    for values in columns.values():
        values += [None] * (size - len(values))
    if suffix == ".parquet":
        content = _parquet(draw, columns, size, faults)
    else:
        text = (
            _objects(draw, columns, size, faults) if suffix == ".jsonl" else _lines(draw, columns, size, faults, suffix)
        )
        content = text.encode(draw(CODES), "replace") if "code" in faults else text.encode("utf-8", "surrogatepass")
    if "bytes" in faults:
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.sampled_from([b"\xff", b"\xc3", b"\x00", b"\xed\xa0\x80"])) + content[at:]
    return suffix, content[: draw(st.integers(0, len(content)))] if "cut" in faults else content


def _spoil(draw, columns: Columns, fault: str) -> None:
    """Put one fault into a table; faults of the file format are added when it is written."""
    name = draw(st.sampled_from(sorted(columns))) if columns else "text"
    values = columns.setdefault(name, ["a"] * 18)
    row = draw(st.integers(0, len(values) - 1)) if values else 0
    match fault:
        case "cell" | "huge" | "mixed" if values:
            odd = {"cell": TEXT, "huge": st.sampled_from(["a" * HUGE, "مر " * HUGE]), "mixed": st.sampled_from(MIXED)}
            values[row] = draw(odd[fault])
        case "odd column":
            few = draw(st.lists(TEXT, min_size=2, max_size=3))
            columns[name] = [few[i % len(few)] for i in range(len(values))]
        case "one class":
            columns["label"] = ["one"] * len(values)
        case "one domain":
            columns["domain"] = ["one"] * len(values)
        case "empty domain" | "blank":
            nothing = draw(st.sampled_from(["", " ", None]))
            columns["domain" if fault == "empty domain" else name] = [nothing] * len(values)
        case "lost column":
            del columns[name]
        case "renamed":
            columns[draw(TEXT)] = columns.pop(name)
        case "numbers":
            columns.pop("text", None)
            numbers = st.one_of(st.floats(-3, 3, width=16), st.floats(-3, 3, width=16), st.sampled_from(MIXED))
            columns |= {at: [draw(numbers) for _ in values] for at in ("x1", "x2")}
        case "split":
            columns["split"] = [draw(st.sampled_from(["train", "test", "valid", "all", "other", ""])) for _ in values]
        case "time" | "id":
            columns[fault] = [draw(TEXT) for _ in values]
        case "few":
            for each in columns.values():
                del each[draw(st.integers(0, 3)) :]


def _rows(draw, columns: Columns, size: int, faults: list[str]) -> list[list[Any]]:
    rows = [[values[i] for values in columns.values()] for i in range(size)]
    if "ragged" in faults and rows:
        row = rows[draw(st.integers(0, size - 1))]
        row[:] = row[:-1] if draw(st.booleans()) else [*row, "more"]
    return rows


def _objects(draw, columns: Columns, size: int, faults: list[str]) -> str:
    escape = draw(st.booleans())
    rows = _rows(draw, columns, size, faults)
    lines = [json.dumps(dict(zip(columns, row, strict=False)), ensure_ascii=escape) + "\n" for row in rows]
    lines += lines[:1] if "twice" in faults else []
    return "".join(lines) + ('{"text": "' if "quotes" in faults else "")


def _lines(draw, columns: Columns, size: int, faults: list[str], suffix: str) -> str:
    """Return the text of a csv or tsv file; with the fault `quotes`, with invalid quotes."""
    rows = [list(columns), *_rows(draw, columns, size, faults)]
    if "twice" in faults:
        rows = [[*row, *row[:1]] for row in rows]
    sign = "\t" if suffix == ".tsv" else ","
    if "quotes" in faults:
        texts = [["" if each is None else str(each) for each in row] for row in rows]
        texts[draw(st.integers(0, size))][:1] = [draw(st.sampled_from(QUOTES))]
        return "\n".join(sign.join(row) for row in texts)
    buffer, end = io.StringIO(), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    csv.writer(buffer, delimiter=sign, lineterminator=end).writerows(rows)
    return buffer.getvalue()


def _parquet(draw, columns: Columns, size: int, faults: list[str]) -> bytes:
    arrays = []
    for values in columns.values():
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, UnicodeError, OverflowError):  # no single parquet type
            arrays.append(pa.array([None if each is None else ascii(each) for each in values]))
    names = [name.encode("utf-8", "replace").decode() for name in columns]
    if "arrow" in faults and arrays:
        arrays[draw(st.integers(0, len(arrays) - 1))] = draw(st.sampled_from(ARROW))(size)
    if "twice" in faults:
        names, arrays = [*names, *names[:1]], [*arrays, *arrays[:1]]
    sink = io.BytesIO()
    parquet.write_table(pa.table(arrays, names), sink)
    return sink.getvalue()

"""User-supplied tables: valid ones, and the same tables with a few faults of real files."""

import csv
import datetime
import io
import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

Columns = dict[str, list[Any]]

HUGE = 131_073  # one more than the field limit of Python's csv module
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
FAULTS = (
    "cell", "cell", "odd column", "huge", "mixed", "one class", "one domain", "empty domain", "blank", "lost column",
    "renamed", "twice", "ragged", "quotes", "bytes", "code", "cut", "arrow", "numbers", "split", "time", "id", "few",
)  # fmt: skip
MIXED: tuple[Any, ...] = (1, 1.0, -0.0, 2.5, 10**30, float("nan"), float("inf"), True, None, "", "1", [1], {"a": 1}, [])
ODD = (
    "", " ", "\ufeff", "\x00", "\x1a", "\r", "\n", "\r\n", '"', '""', "'", ",", "\t", ";", "\\", "NULL", "nan", "NaN",
    "inf", "-inf", "1e999", "-0", "0x10", "1_000", "true", "None", "=1+1", "@x", "🙂", "👩\u200d👩", "مرحبا", "שלום",
    "\u202eabc", "e\u0301", "日本", "İ", "\u2028", "\U0010ffff", "a" * 5000, "2024-02-30", "1" * 400, "../../x", "%s",
    "{}", "<b>", "\ud800", "\x1b[31mred", "con", "a/b", "[bold]x[/bold]", "[/]",
)  # fmt: skip
PLAIN = ("good", "bad", "a", "b", "train", "1", "2")
CODES = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-32", "cp1252", "shift_jis")
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


def faulty_table(good: Columns, rng: random.Random, suffixes: Sequence[str] = SUFFIXES) -> tuple[str, bytes]:
    """Return a suffix and the bytes of a valid table with one to four faults."""
    columns = {name: list(values) for name, values in good.items()}
    suffix = rng.choice(suffixes)
    faults = rng.choices(FAULTS, k=rng.randint(1, 4))
    for fault in faults:
        _spoil(rng, columns, fault)
    size = max(map(len, columns.values()), default=0)
    for values in columns.values():
        values += [None] * (size - len(values))
    if suffix == ".parquet":
        content = _parquet(rng, columns, size, faults)
    else:
        write = _objects if suffix == ".jsonl" else _lines
        lines = write(rng, columns, size, faults, suffix)
        in_code = "code" in faults
        content = lines.encode(rng.choice(CODES), "replace") if in_code else lines.encode("utf-8", "surrogatepass")
    if "bytes" in faults:
        at = rng.randint(0, len(content))
        content = content[:at] + rng.choice([b"\xff", b"\xc3", b"\x00", b"\xed\xa0\x80"]) + content[at:]
    return suffix, content[: rng.randint(0, len(content))] if "cut" in faults else content


def odd_text(rng: random.Random) -> str:
    """Return an unusual, a random or a plain text."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.choice(ODD)
    return rng.choice(PLAIN) if kind == 1 else "".join(chr(rng.randrange(0xD800)) for _ in range(rng.randrange(20)))


def _spoil(rng: random.Random, columns: Columns, fault: str) -> None:
    """Put one fault into a table; faults of the file format are added when it is written."""
    name = rng.choice(sorted(columns)) if columns else "text"
    values = columns.setdefault(name, ["a"] * 18)
    row = rng.randrange(len(values)) if values else 0
    match fault:
        case "cell" | "huge" | "mixed" if values:
            odd = {"cell": odd_text(rng), "huge": rng.choice(["a" * HUGE, "مر " * HUGE]), "mixed": rng.choice(MIXED)}
            values[row] = odd[fault]
        case "odd column":
            few = [odd_text(rng) for _ in range(rng.randint(2, 3))]
            columns[name] = [few[i % len(few)] for i in range(len(values))]
        case "one class":
            columns["label"] = ["one"] * len(values)
        case "one domain":
            columns["domain"] = ["one"] * len(values)
        case "empty domain" | "blank":
            nothing = rng.choice(["", " ", None])
            columns["domain" if fault == "empty domain" else name] = [nothing] * len(values)
        case "lost column":
            del columns[name]
        case "renamed":
            columns[odd_text(rng)] = columns.pop(name)
        case "numbers":
            columns.pop("text", None)
            for each in ("x1", "x2"):
                columns[each] = [rng.choice([rng.uniform(-3, 3), rng.uniform(-3, 3), *MIXED[:1]]) for _ in values]
                columns[each][:1] = [rng.choice(MIXED)]
        case "split":
            columns["split"] = [rng.choice(["train", "test", "valid", "all", "other", ""]) for _ in values]
        case "time" | "id":
            columns[fault] = [odd_text(rng) for _ in values]
        case "few":
            for each in columns.values():
                del each[rng.randint(0, 3) :]


def _rows(rng: random.Random, columns: Columns, size: int, faults: list[str]) -> list[list[Any]]:
    rows = [[values[i] for values in columns.values()] for i in range(size)]
    if "ragged" in faults and rows:
        row = rows[rng.randrange(size)]
        row[:] = row[:-1] if rng.random() < 0.5 else [*row, "more"]
    return rows


def _objects(rng: random.Random, columns: Columns, size: int, faults: list[str], _: str) -> str:
    escape = rng.random() < 0.5
    rows = _rows(rng, columns, size, faults)
    lines = [json.dumps(dict(zip(columns, row, strict=False)), ensure_ascii=escape) + "\n" for row in rows]
    lines += lines[:1] if "twice" in faults else []
    return "".join(lines) + ('{"text": "' if "quotes" in faults else "")


def _lines(rng: random.Random, columns: Columns, size: int, faults: list[str], suffix: str) -> str:
    """Return the text of a csv or tsv file; with the fault `quotes`, with invalid quotes."""
    rows = [list(columns), *_rows(rng, columns, size, faults)]
    if "twice" in faults:
        rows = [[*row, *row[:1]] for row in rows]
    sign = "\t" if suffix == ".tsv" else ","
    if "quotes" in faults:
        texts = [["" if each is None else str(each) for each in row] for row in rows]
        texts[rng.randint(0, size)][:1] = [rng.choice(QUOTES)]
        return "\n".join(sign.join(row) for row in texts)
    buffer, end = io.StringIO(), rng.choice(["\n", "\r\n", "\r"])
    csv.writer(buffer, delimiter=sign, lineterminator=end).writerows(rows)
    return buffer.getvalue()


def _parquet(rng: random.Random, columns: Columns, size: int, faults: list[str]) -> bytes:
    arrays = []
    for values in columns.values():
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, UnicodeError, OverflowError):  # no single parquet type
            arrays.append(pa.array([None if each is None else ascii(each) for each in values]))
    names = [name.encode("utf-8", "replace").decode() for name in columns]
    if "arrow" in faults and arrays:
        arrays[rng.randrange(len(arrays))] = rng.choice(ARROW)(size)
    if "twice" in faults:
        names, arrays = [*names, *names[:1]], [*arrays, *arrays[:1]]
    sink = io.BytesIO()
    parquet.write_table(pa.table(arrays, names), sink)
    return sink.getvalue()

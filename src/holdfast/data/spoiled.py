"""Columns of numbers that a few odd cells make look like texts: they are to be told, and not left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.data import formats

_SAMPLE = 1000  # rows that say what a column mostly holds
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def mostly_numbers(path: Path, schema: pa.Schema, block: int) -> set[str]:
    """The columns that seem to be texts and hold more numbers than anything else; a typed file has none."""
    names = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    counts = Counter(schema.names)
    names = [name for name in names if counts[name] == 1]
    if not names or path.suffix.lower() == ".parquet":
        return set()
    if path.suffix.lower() in (".csv", ".tsv"):
        batches = formats.stream(path, dict.fromkeys(names, pa.large_string()), block)
        first = next(batches, None)
        return set() if first is None else {name for name in names if _mostly(first.column(name)[:_SAMPLE])}
    rows = formats.first_rows(path)
    return {name for name in names if _more([row[name] for row in rows if row.get(name) is not None])}


def _mostly(column: Any) -> bool:
    """Of an arrow array of texts."""
    there = column.filter(pc.call_function("greater", [pc.call_function("binary_length", [column]), 0]))
    options = pc.MatchSubstringOptions(_NUMBER)
    right = pc.call_function("match_substring_regex", [there], options=options)
    return 2 * right.true_count > len(there)


def _more(values: list[Any]) -> bool:
    """Of values of JSON."""
    return 2 * sum(isinstance(each, int | float) and not isinstance(each, bool) for each in values) > len(values)

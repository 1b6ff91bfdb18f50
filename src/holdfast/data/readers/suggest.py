"""Suggest columns that could be the domain of a table without a domain column."""

import re
from typing import Any

import pyarrow as pa

from holdfast.data.readers.arrow import compute, decoded, is_text

YEARS = (1800, 2100)
MAX_DOMAINS = 1000  # distinct values of a domain column
MIN_ROWS = 5  # mean rows per domain
LIKELY = (3, 50)  # numbers of domains that are most common
SHOWN = 3
_NAMES = re.compile(
    r"(^|[_\W])(year|decade|quarter|month|country|state|region|city|site|hospital|school|source|group)([_\W]?(id|name|code))?$"
)


def domain_columns(sample: pa.RecordBatch, *, leave_out: set[str]) -> list[str]:
    """Return up to three columns with few values that repeat: years and usual names first, then other categories."""
    ranked = []
    for at, name in enumerate(sample.schema.names):
        if name in leave_out or sample.schema.names.count(name) > 1:
            continue
        rank = _rank(name, sample.column(at))
        if rank is not None:
            ranked.append((rank, at, name))
    return [name for _, _, name in sorted(ranked)[:SHOWN]]


def _rank(name: str, column: Any) -> int | None:
    """Return how likely a column is the domain, 0 is the most likely; None if it cannot be one."""
    column = decoded(column)
    integer = pa.types.is_integer(column.type)
    if not integer and not is_text(column.type):
        return None
    distinct, filled = compute.count_distinct(column).as_py(), len(column) - column.null_count
    if not 2 <= distinct <= MAX_DOMAINS or filled < MIN_ROWS * distinct:
        return None
    usual = _NAMES.search(name.strip().lower()) is not None
    if integer:
        limits = compute.min_max(column).as_py()
        year = limits["min"] >= YEARS[0] and limits["max"] <= YEARS[1] and distinct > 2
        return 0 if year else 1 if usual else None
    likely = LIKELY[0] <= distinct <= LIKELY[1]
    return 0 if usual and likely else 1 if usual else 2 if likely else 3

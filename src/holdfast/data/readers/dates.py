"""Dates as people write them: 2024-01-31, 31.01.2024, 31/01/2024, 01/31/2024 and similar forms."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.data.readers.arrow import TEXT, compute, matches, substituted, trimmed

_TIME = r"(?:[ T](\d{2}:\d{2}(?::\d{2})?)(?:\.\d+)?Z?)?"
_YEAR_LAST = r"(\d{1,2})M(\d{1,2})M(\d{4})"
_ORDERS = {  # pattern with M for the mark, the date in Arrow's order, and the day
    "year": (r"(\d{4})M(\d{1,2})M(\d{1,2})", r"\1-\2-\3 \4", r"\3"),
    "day": (_YEAR_LAST, r"\3-\2-\1 \4", r"\1"),
    "month": (_YEAR_LAST, r"\3-\1-\2 \4", r"\2"),
}
_FORMATS = ("%Y-%m-%d ", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class DateForm:
    """How the dates of a column are written; `example` is the last day of January 2024 in this form."""

    example: str
    first: str  # year, day or month
    mark: str
    missing: tuple[str, ...] = ()  # texts that stand for a missing value

    @property
    def plain(self) -> bool:
        """Whether Arrow reads such dates itself."""
        return self == ISO

    def parse(self, column: Any) -> Any:
        """Convert an Arrow array of texts to timestamps; null where a cell is not a date in this form."""
        pattern, order, day = _ORDERS[self.first]
        pattern = "^" + pattern.replace("M", re.escape(self.mark)) + _TIME + "$"
        texts = trimmed(column)
        texts = compute.if_else(matches(texts, pattern), texts, None)
        ordered, days = (substituted(texts, pattern, part) for part in (order, day))
        readings = [compute.strptime(ordered, format=form, unit="us", error_is_null=True) for form in _FORMATS]
        dates = compute.coalesce(*readings)
        exists = compute.equal(compute.day(dates), days.cast(pa.int64()))  # not 30 February
        return compute.if_else(exists, dates, None)


ISO = DateForm("2024-01-31", "year", "-")
FORMS = (  # of forms that read equally many values, the first is chosen
    ISO, DateForm("2024/01/31", "year", "/"), DateForm("31.01.2024", "day", "."),
    DateForm("31/01/2024", "day", "/"), DateForm("01/31/2024", "month", "/"), DateForm("31-01-2024", "day", "-"),
)  # fmt: skip


def detect_date_form(values: Sequence[str]) -> DateForm | None:
    """Return the form in which most of these values are dates, or None if at most half of them are."""
    filled = [value for value in values if value.strip()]
    if not filled or not any(re.match(r"\s*\d{1,4}[-./]\d{1,2}[-./]", value) for value in filled[:20]):
        return None
    texts = pa.array(filled, TEXT)
    counts = {form: len(filled) - form.parse(texts).null_count for form in FORMS}
    best = max(FORMS, key=lambda form: counts[form])
    return best if 2 * counts[best] > len(filled) else None

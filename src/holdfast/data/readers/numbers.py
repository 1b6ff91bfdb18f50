"""Convert cells of text to numbers, dates and booleans, in the form in which the column is written.

A cell is a missing value, a value in the form of its column, or bad. Numbers may have decimal commas, thousands
separators, percent signs and currencies; dates are written as 2024-01-31, 31.01.2024, 31/01/2024, 01/31/2024 or in
similar forms. The form of a column is the one in which most of its first cells are written.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from holdfast.data.readers.arrow import TEXT, compute, is_in, matches, substituted, trimmed

CURRENCIES = ("$", "€", "£", "¥", "₹", "USD", "EUR", "GBP", "JPY", "CHF", "CNY", "INR", "SEK", "NOK", "DKK", "PLN")
PERCENT = "%"
_UNIT = "|".join(re.escape(unit) for unit in (PERCENT, *CURRENCIES))
_SPACES = "[\\s\u00a0\u2007\u2009\u202f]"
_CELL = re.compile(rf"([-+−]?){_SPACES}*({_UNIT})?{_SPACES}*([-+−]?[\d.,'’\u00a0\u2009\u202f ]*\d[.,]?|[.,]\d+)"
                   rf"((?:[eE][-+]?\d+)?){_SPACES}*({_UNIT})?")  # fmt: skip
_GROUPED = r"\d{{1,3}}(?:{mark}\d{{3}})+"
_INNER = {"'": "['’]", " ": _SPACES}  # thousands separators with several characters
_SEPARATED = [(decimal, thousands) for thousands in _INNER for decimal in ".,"]
# spellings of a missing value in columns of numbers and dates: those of Arrow and pandas, and others that are common
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
    "NaN", "n/a", "nan", "null", "None", "none", "?", "-", "missing", "Missing",
)  # fmt: skip
UNSURE = ("?", "-", "missing", "Missing", "None", "none")  # spellings that could also be values
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_MAX_FLOAT = float(np.finfo(np.float32).max)

_TIME = r"(?:[ T](\d{2}:\d{2}(?::\d{2})?)(?:\.\d+)?Z?)?"
_YEAR_LAST = r"(\d{1,2})M(\d{1,2})M(\d{4})"
_ORDERS = {  # pattern with M for the mark, the date in Arrow's order, and the day
    "year": (r"(\d{4})M(\d{1,2})M(\d{1,2})", r"\1-\2-\3 \4", r"\3"),
    "day": (_YEAR_LAST, r"\3-\2-\1 \4", r"\1"),
    "month": (_YEAR_LAST, r"\3-\1-\2 \4", r"\2"),
}
_FORMATS = ("%Y-%m-%d ", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class NumberForm:
    """How the numbers of a column are written."""

    decimal: str = "."
    thousands: str = ""  # "", ",", ".", "'" or " "
    unit: str = ""  # a percent sign or a currency
    missing: tuple[str, ...] = ()  # texts that stand for a missing value

    @property
    def plain(self) -> bool:
        """Whether Arrow reads such numbers itself."""
        return self == NumberForm()

    @property
    def words(self) -> str:
        """Describe the form for a note or an error."""
        words = []
        if self.decimal == ",":
            words.append("a decimal comma")
        if self.thousands:
            name = {",": "commas", ".": "points", "'": "apostrophes", " ": "spaces"}[self.thousands]
            words.append(f"{name} between thousands")
        if self.unit == PERCENT:
            words.append("a percent sign (12% is 0.12)")
        elif self.unit:
            words.append(f"the currency {self.unit}")
        return " and ".join(words)

    def parse(self, column: Any) -> Any:
        """Convert an Arrow array of texts to float64; null where a cell is not written in this form."""
        texts = substituted(column.cast(TEXT), f"^{_SPACES}+|{_SPACES}+$", "")
        texts = substituted(texts, "−", "-")
        if self.unit:
            unit = re.escape(self.unit)
            without_unit = substituted(texts, f"{_SPACES}*{unit}{_SPACES}*", "")
            texts = compute.if_else(matches(texts, unit), without_unit, None)
        decimal, mark = re.escape(self.decimal), _INNER.get(self.thousands, re.escape(self.thousands))
        whole = r"\d+"
        if self.thousands:
            whole = rf"(?:\d+|{_GROUPED.format(mark=mark)})"
        pattern = rf"^[-+]?(?:{whole}(?:{decimal}\d*)?|{decimal}\d+)(?:[eE][-+]?\d+)?$"
        texts = compute.if_else(matches(texts, pattern), texts, None)
        if self.thousands:
            texts = substituted(texts, mark, "")
        if self.decimal != ".":
            texts = substituted(texts, decimal, ".")
        values = substituted(texts, r"^\+", "").cast(pa.float64())
        return compute.divide(values, 100.0) if self.unit == PERCENT else values


class Converted(NamedTuple):
    """Values of a column of texts, null where a cell is missing or bad."""

    values: Any
    bad: Any | None  # mask, None if no cell is bad
    missing: Counter[str]  # spelling of missing values -> cells


def convert(column: Any, kind: str, form: "NumberForm | DateForm") -> Converted:
    """Convert a column of texts to numbers, dates or booleans."""
    # Arrow reads plain numbers and dates itself, many times faster than the expressions of a form
    plain = form.plain and kind != "boolean"
    if plain and (values := _cast(column, kind)) is not None:
        return Converted(values, None, Counter())
    texts = trimmed(column)
    missing = compute.or_(is_in(texts, [*MISSING, *form.missing]), texts.is_null())
    spellings = texts.filter(missing).value_counts().to_pylist()
    values = _cast(compute.if_else(missing, None, texts), kind) if plain else None
    if kind == "boolean":
        index = compute.index_in(compute.utf8_lower(texts), value_set=pa.array(_BOOLEANS, TEXT))
        values = pa.array(_BOOLEANS.values()).take(index)
    elif values is None:
        values = form.parse(texts)
    # parsing gives null for what it does not understand: null and not missing is bad
    bad = compute.and_not(values.is_null(), missing)
    return Converted(values, bad, Counter({each["values"]: each["counts"] for each in spellings}))


def _cast(texts: Any, kind: str) -> Any | None:
    """Return plain numbers or dates, which may have a time zone; None if a text is neither."""
    for type in (pa.float64(),) if kind == "number" else (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        with suppress(pa.ArrowException):
            values = texts.cast(type)
            return values if kind == "number" else values.cast(pa.timestamp("us"))
    return None


def infinite(column: Any) -> Any | None:
    """Return a mask of the numbers that a 32-bit float cannot hold, or None if there are none."""
    # 1e300 is finite in 64 bits, but not in the 32 bits in which networks compute; usual columns need no mask
    extremes = compute.min_max(column).as_py()
    low, high = extremes["min"] or 0.0, extremes["max"] or 0.0
    return None if low >= -_MAX_FLOAT and high <= _MAX_FLOAT else compute.greater(compute.abs(column), _MAX_FLOAT)


def infinite_cell(values: np.ndarray) -> tuple[int, int] | None:
    """Return row and column, from 1, of the first number (n, d) that is NaN or infinite; None if all are finite."""
    finite = np.isfinite(values)
    if finite.all():
        return None
    row, column = np.argwhere(~finite)[0].tolist()
    return row + 1, column + 1


def looks_like_number(value: str) -> bool:
    """Whether a value is a number in some form."""
    return _CELL.fullmatch(value.strip()) is not None


def detect_form(values: Sequence[str], *, decimal: str = ".") -> NumberForm | None:
    """Return the form in which most of these values are numbers, or None if at most half of them are.

    Numbers such as 1,234 have a thousands separator unless `decimal` is a comma, as in files separated by semicolons.
    """
    filled = [value for value in values if value.strip()]
    cells = [match for value in filled if (match := _CELL.fullmatch(value.strip()))]
    if 2 * len(cells) <= len(filled) or any(match[2] and match[5] for match in cells):
        return None
    ((unit, _),) = Counter(match[2] or match[5] or "" for match in cells).most_common(1)
    marks = [(".", ""), (",", ""), (".", ",")] if decimal == "," else [(".", ""), (".", ","), (",", "")]
    if any(re.search(r"\.\d{3}[.,]", value) for value in filled):  # elsewhere, the point of 1.234 is a decimal mark
        marks.append((",", "."))
    forms = [NumberForm(*pair, unit) for pair in [*marks, *_SEPARATED]]
    return _most_common(forms, filled)


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


_Form = TypeVar("_Form", NumberForm, DateForm)
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
    return _most_common(FORMS, filled)


def _most_common(forms: Sequence[_Form], values: Sequence[str]) -> _Form | None:
    """Return the first form in which most of these values are written, or None if at most half of them are."""
    texts, best, most = pa.array(values, TEXT), None, len(values) // 2
    for form in forms:
        count = len(values) - form.parse(texts).null_count
        if count > most:
            best, most = form, count
        if most == len(values):
            break
    return best

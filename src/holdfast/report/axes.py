"""Axes of the charts: ranges, ticks, and positions as a share of the plot area."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PADDING = 0.05  # of the data range, on both sides
MOST_CATEGORIES = 12  # labels of an x axis
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Axis:
    """One axis of a figure, from its layout and the data on it.

    Positions are between 0 and 1, from left to right or from top to bottom.
    """

    def __init__(
        self, layout: Mapping[str, Any], values: Sequence[Any], *, vertical: bool, cells: bool = False,
        zero: bool = False,
    ) -> None:  # fmt: skip
        """Read the settings of `layout`; `cells` are half a unit around each value, `zero` is part of the range."""
        self.layout, self.vertical = layout, vertical
        is_text = any(isinstance(value, str) for value in values)
        self.is_log = layout.get("type") == "log"
        self.categories: list[str] = []
        if layout.get("type") == "category" or (is_text and not self.is_log):
            order = layout.get("categoryarray") if layout.get("categoryorder") == "array" else None
            self.categories = list(dict.fromkeys(str(value) for value in [*(order or ()), *values]))
        low, high = self._range([v for v in values if not isinstance(v, str)], cells=cells, zero=zero)
        backwards = layout.get("autorange") == "reversed"
        self.first, self.last = (high, low) if backwards else (low, high)

    def _range(self, numbers: Sequence[float], *, cells: bool, zero: bool) -> tuple[float, float]:
        if (limits := self.layout.get("range")) is not None:
            return float(limits[0]), float(limits[1])
        if self.categories:
            return -0.5, len(self.categories) - 0.5
        known = [self.unit(v) for v in numbers if v is not None and math.isfinite(v) and (v > 0 or not self.is_log)]
        if not known:
            return 0.0, 1.0
        low, high = min(known), max(known)
        if cells:
            return low - 0.5, high + 0.5
        zero = zero or self.layout.get("rangemode") == "tozero"
        bottom, top = (min(low, 0.0), max(high, 0.0)) if zero and not self.is_log else (low, high)
        padding = PADDING * (top - bottom) or abs(top) * PADDING or 0.5
        return bottom - (padding if bottom == low != 0 else 0), top + (padding if top == high != 0 else 0)

    def unit(self, value: Any) -> float:
        """Return a value in the units of the range: the index of a category, the logarithm on a logarithmic axis."""
        if self.categories and isinstance(value, str):
            return float(self.categories.index(value)) if value in self.categories else math.nan
        return math.log10(value) if self.is_log else float(value)

    def at(self, value: Any, offset: float = 0.0) -> float:
        """Return the position of a value, moved by an offset in units of the range."""
        share = (self.unit(value) + offset - self.first) / ((self.last - self.first) or 1.0)
        return 1 - share if self.vertical else share

    def inside(self, value: Any) -> bool:
        """Return whether a value lies in the range, which rounding may exceed."""
        return -1e-6 <= self.at(value) <= 1 + 1e-6

    @property
    def title(self) -> str:
        """Text of the title, empty without one."""
        return str((self.layout.get("title") or {}).get("text") or "")

    def ticks(self) -> list[tuple[float, str]]:
        """Return (position, label) per tick."""
        if self.layout.get("visible") is False:
            return []
        if (values := self.layout.get("tickvals")) is not None:
            texts = self.layout.get("ticktext") or values
            return [(self.at(v), label(str(t))) for v, t in zip(values, texts, strict=True) if self.inside(v)]
        if self.categories:
            step = 1 if self.vertical else math.ceil(len(self.categories) / MOST_CATEGORIES)
            return [(self.at(name), label(name)) for name in self.categories[::step]]
        low, high = sorted((self.first, self.last))
        if self.is_log:
            return [(self.at(v), number(v)) for v in _logarithmic(low, high)]
        return [(self.at(v), number(v)) for v in _linear(low, high, self.layout.get("dtick"), self.layout.get("tick0"))]


def _linear(low: float, high: float, step: float | None, start: float | None) -> Iterable[float]:
    """Return multiples of a round step, by default at most seven."""
    if not step:
        rough = (high - low) / 6 or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(s for s in STEPS if power * s >= rough * (1 - 1e-9))
    start = start or 0.0
    first = math.ceil((low - start) / step - 1e-9)
    count = math.floor((high - start) / step + 1e-9) - first
    return [start + step * (first + i) for i in range(min(count, 50) + 1)]


def _logarithmic(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten in the range, or the powers alone if these are many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    values = [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]
    return values if len(values) <= 8 else [value for value in values if math.log10(value).is_integer()]


def number(value: float) -> str:
    """Format the number of a tick without trailing zeros."""
    text = f"{value:.6g}"
    return f"{value:,.0f}" if "e" in text and abs(value) >= 1 else text.replace("-", "\N{MINUS SIGN}")


def label(text: str) -> str:
    """Return the HTML of a label of a figure, which may be escaped already and entirely bold or italic."""
    match = re.fullmatch(r"<(b|i)>(.*)</\1>", text, re.DOTALL)
    tag, inner = (match[1], match[2]) if match else ("", text)
    inner = plain(inner)
    return f"<{tag}>{inner}</{tag}>" if tag else inner


def plain(text: str) -> str:
    """Escape a text once, whether or not it is escaped already."""
    return html.escape(html.unescape(text))

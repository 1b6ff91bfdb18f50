"""Axes of the charts: ranges, ticks, and positions as a share of the plot area."""

import html
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from markupsafe import Markup

PADDING = 0.05  # of the data range, on both sides
MOST_CATEGORIES = 12  # labels of an x axis
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(eq=False)
class Axis:
    """One axis of a figure. Positions are between 0 and 1, from left to right or from top to bottom."""

    title: str = ""
    _: KW_ONLY
    limits: Sequence[float] | None = None
    names: Sequence[str] | None = None  # the first categories; values that are text are categories without them, too
    ticks: Sequence[tuple[Any, str]] | None = None
    zero: bool = False  # whether zero is part of the range
    reverse: bool = False  # from the highest to the lowest value
    grid: bool = True
    categories: list[str] = field(default_factory=list)
    first: float = 0.0
    last: float = 1.0
    vertical: bool = False

    def fit(self, values: Sequence[Any], *, vertical: bool, cells: bool = False, zero: bool = False) -> "Axis":
        """Set categories and range by the values; `cells` are half a unit around each, `zero` is part of the range."""
        self.vertical = vertical
        is_text = any(isinstance(value, str) for value in values)
        if self.names is not None or is_text:
            self.categories = list(dict.fromkeys([*(self.names or ()), *map(str, values)]))
        numbers = [v for v in values if v is not None and not isinstance(v, str)]
        low, high = self._range(numbers, cells=cells, zero=zero or self.zero)
        self.first, self.last = (high, low) if self.reverse else (low, high)
        return self

    def _range(self, numbers: Sequence[float], *, cells: bool, zero: bool) -> tuple[float, float]:
        if self.limits is not None:
            return float(self.limits[0]), float(self.limits[1])
        if self.categories:
            return -0.5, len(self.categories) - 0.5
        known = [float(v) for v in numbers if math.isfinite(v)]
        if not known:
            return 0.0, 1.0
        low, high = min(known), max(known)
        if cells:
            return low - 0.5, high + 0.5
        bottom, top = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        padding = PADDING * (top - bottom) or abs(top) * PADDING or 0.5
        return bottom - (padding if bottom == low != 0 else 0), top + (padding if top == high != 0 else 0)

    def unit(self, value: Any) -> float:
        """Return a value in the units of the range: the index of a category."""
        if self.categories and isinstance(value, str):
            return float(self.categories.index(value)) if value in self.categories else math.nan
        return float(value)

    def at(self, value: Any, offset: float = 0.0) -> float:
        """Return the position of a value, moved by an offset in units of the range."""
        share = (self.unit(value) + offset - self.first) / ((self.last - self.first) or 1.0)
        return 1 - share if self.vertical else share

    def placed(self) -> list[tuple[float, str]]:
        """Return (position, label) per tick."""
        if self.ticks is not None:
            ticks = [(self.at(value), label(text)) for value, text in self.ticks]
            return [(at, text) for at, text in ticks if -1e-6 <= at <= 1 + 1e-6]  # rounding may exceed the range
        if self.categories:
            step = 1 if self.vertical else math.ceil(len(self.categories) / MOST_CATEGORIES)
            return [(self.at(name), label(name)) for name in self.categories[::step]]
        low, high = sorted((self.first, self.last))
        return [(self.at(value), number(value)) for value in _round_values(low, high)]


def _round_values(low: float, high: float) -> list[float]:
    """Return the multiples of a round step in a range, at most seven."""
    rough = (high - low) / 6 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(s for s in STEPS if power * s >= rough * (1 - 1e-9))
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Format the number of a tick without trailing zeros."""
    text = f"{value:.6g}"
    return f"{value:,.0f}" if "e" in text and abs(value) >= 1 else text.replace("-", "\N{MINUS SIGN}")


def label(text: str) -> str:
    """Return the HTML of a text, which is escaped unless it is HTML already."""
    return text if isinstance(text, Markup) else html.escape(text)

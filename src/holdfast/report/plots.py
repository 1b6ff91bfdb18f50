"""Figures of the report as inline SVG that fits any width, without a script, and the style of their marks."""

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from holdfast.report.axes import Axis, label, number
from holdfast.report.marks import Area, Bars, Cells, Errors, Mark, Points, Rule, Stroke, n
from holdfast.stats.formatting import is_percent, scaled
from holdfast.stats.statistics import Cell

# the palette of Okabe and Ito without black and yellow; each cycle of colours has its own symbol and dash
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
SIGNS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "x": "✕"}
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
DARK = "#14181d"
MOST_DESCRIBED = 40  # marks in a text alternative


class Chart(Markup):
    """HTML of a figure, the plot that was drawn, and its text alternative."""

    plot: "Plot"
    description: str


class Plot:
    """Marks on two axes, and reference lines over them."""

    def __init__(
        self, *marks: Mark, x: Axis | None = None, y: Axis | None = None, rules: Iterable[Rule] = (),
        gap: float = 0.2,
    ) -> None:  # fmt: skip
        """Set the marks from the back to the front; `gap` is between groups."""
        self.marks, self.rules = list(marks), list(rules)
        self.x, self.y, self.gap = x or Axis(), y or Axis(), gap

    def html(self, name: str, *, height: int, legend: bool = True) -> Chart:
        """Draw the figure; `name` is its HTML id."""
        cells, bars = any(m.cells for m in self.marks), any(isinstance(m, Bars) for m in self.marks)
        x = self.x.fit([v for m in self.marks for v in m.values("x")], vertical=False, cells=cells or bars)
        y = self.y.fit([v for m in self.marks for v in m.values("y")], vertical=True, cells=cells, zero=bars)
        area = Area(x, y, max(80, height - 70))
        chart = Chart(
            f'<div class="chart" id="{escape(name)}">{self._legend() if legend else ""}'
            f'<div class="y-title">{label(y.title)}</div>'
            f'<div class="plot" style="grid-template-columns:{_label_width(y)} minmax(0,1fr)">'
            f'<div class="y-labels">{_y_labels(y)}</div>{drawing_area(f"height:{area.height}px", self._drawing(area))}'
            f"<span></span><div>{_x_labels(x)}</div></div>{''.join(mark.scale() for mark in self.marks)}</div>"
        )
        texts = [text for mark in self.marks for text in mark.texts()]
        more = f"; and {len(texts) - MOST_DESCRIBED} more" if len(texts) > MOST_DESCRIBED else ""
        chart.plot, chart.description = self, "; ".join(texts[:MOST_DESCRIBED]) + more
        return chart

    def _drawing(self, area: Area) -> Iterable[str]:
        """Yield the elements from the back to the front."""
        yield from _grid(area)
        groups = [mark for mark in self.marks if mark.grouped]
        width = (1 - self.gap) / max(1, len(groups))
        for mark in self.marks:
            owner = f' data-label="{escape(mark.owner)}"' if mark.owner else ""
            place = (groups.index(mark) - (len(groups) - 1) / 2) * (1 - self.gap) / len(groups) if mark.grouped else 0.0
            own = Area(area.x, area.y, area.height, place, width)
            yield f"<g{owner}>{''.join(mark.draw(own))}</g>"
        yield from (rule.draw(area) for rule in self.rules)

    def _legend(self) -> str:
        """Return colour and name per series; empty for a single one."""
        named = [mark for mark in self.marks if mark.name]
        signs = [(mark.colour, "▨" if mark.pattern else "■", label(mark.name)) for mark in named]
        items = [f'<span><b style="color:{colour}">{sign}</b> {name}</span>' for colour, sign, name in signs]
        return f'<div class="names">{" ".join(items)}</div>' if len(items) > 1 else ""


def drawing_area(style: str, elements: Iterable[str]) -> str:
    """Return the HTML of a plot area with these elements, from the back to the front."""
    return (
        f'<div class="area" style="{style}"><svg width="100%" height="100%" aria-hidden="true" focusable="false">'
        f"{''.join(elements)}</svg></div>"
    )


def _grid(area: Area) -> Iterable[str]:
    """Yield the lines of the grid at the ticks of axes without categories."""
    x, y = ([] if axis.categories or not axis.grid else axis.placed() for axis in (area.x, area.y))
    lines = [f"M0 {n(at * area.height)}H1000" for at, _ in y] + [f"M{n(at * 1000)} 0V{area.height}" for at, _ in x]
    if lines:
        yield area.stretched(f'<path class="grid" d="{"".join(lines)}"/>')


def _label_width(y: Axis) -> str:
    """Return the width of the labels of the y axis: as long as they are, but at most a part of the figure."""
    longest = max((len(re.sub(r"&\w+;", "", text)) for _, text in y.placed()), default=0)
    return f"min({round(7.4 * longest) + 14}px,42%)"


def _y_labels(y: Axis) -> str:
    return "".join(f'<span style="top:{n(100 * at)}%" title="{text}">{text}</span>' for at, text in y.placed())


def _x_labels(x: Axis) -> str:
    """Return the labels: cells in a row for categories, which may take several lines, and the title."""
    ticks = x.placed()
    if x.categories and len(ticks) == len(x.categories):
        cells = "".join(f"<span>{text}</span>" for _, text in ticks)
        labels = f'<div class="x-cells">{cells}</div>'
    else:
        spans = "".join(f'<span style="left:{n(100 * at)}%">{text}</span>' for at, text in ticks)
        labels = f'<div class="x-ticks">{spans}</div>' if ticks else ""
    return labels + (f'<div class="x-title">{label(x.title)}</div>' if x.title else "")


def style(index: int) -> tuple[str, str, str]:
    """Return colour, symbol and dash of the method at this index; they are equal in all figures of a report."""
    cycle = index // len(COLOURS)
    return COLOURS[index % len(COLOURS)], SYMBOLS[cycle % len(SYMBOLS)], DASHES[cycle % len(DASHES)]


def legend(labels: Iterable[str], shown: Iterable[str] | None = None) -> list[tuple[str, str, str]]:
    """Return (colour, sign, label) per method; `shown` limits the entries, the order of `labels` sets the style."""
    labels = list(labels)
    wanted = set(labels if shown is None else shown)
    styles = [(style(index), label) for index, label in enumerate(labels) if label in wanted]
    return [(colour, SIGNS[symbol], label) for (colour, symbol, _), label in styles]


def series(
    label: str, index: int, points: Sequence[tuple[Any, float, float, str]], *, size: int = 6, lines: bool = False,
    grouped: bool = False,
) -> Points:  # fmt: skip
    """Return the points of one method in its style, from (x, y, error, text of the tooltip after the label)."""
    colour, symbol, dash = style(index)
    x, y, tips = [point[0] for point in points], [point[1] for point in points], [point[3] for point in points]
    errors = [point[2] for point in points]
    return Points(
        x, y, [f"{label}{tip}" for tip in tips], name=label, owner=label, colour=colour, symbol=symbol, size=size,
        errors=Errors(errors, width=size - 2), line=Stroke(colour, 2, dash) if lines else None, grouped=grouped,
    )  # fmt: skip


def cell_point(x: Any, cell: Cell, metric: str, tip: str) -> tuple[Any, float, float, str]:
    """Return the mean and the standard error of a cell as a point of a series."""
    return x, scaled(cell.mean, metric), scaled(cell.stderr or 0.0, metric), tip


def score_range(cells: Iterable[Cell], metric: str) -> tuple[float, float] | None:
    """Return the range of an axis from the lowest to the highest error bar; None without scores."""
    ends = [scaled(cell.mean + sign * (cell.stderr or 0.0), metric) for cell in cells for sign in (-1, 1)]
    ends = list(filter(math.isfinite, ends))
    if not ends:
        return None
    low, high = min(ends), max(ends)
    padding = 0.08 * (high - low) or 0.05 * abs(high) or 0.5
    limit = 101.0 if is_percent(metric) else math.inf  # a point at 100 is not cut off
    return low - padding, min(high + padding, max(high, limit))


def heatmap(
    z: Sequence[Sequence[float | None]], x: Sequence[str], y: Sequence[str],
    tips: Sequence[Sequence[str]] | str, *,
    text: Sequence[Sequence[str]] | None = None, low: float | None = 0.0, high: float | None = 1.0,
    titles: tuple[str, str] = ("", ""), reverse: bool = True, early: Sequence[tuple[int, int]] = (),
) -> Plot:  # fmt: skip
    """Draw categories by categories with a number per cell (two decimals unless `text` is set), the first row on top.

    `tips` are the tooltips, or their format with the fields `x`, `y`, `z` and `text`.
    """
    text = text or [["" if v is None else f"{v:.2f}" for v in line] for line in z]
    if isinstance(tips, str):
        form = tips.format
        tips = [
            ["" if v is None else form(x=x[j], y=y[i], z=v, text=text[i][j]) for j, v in enumerate(line)]
            for i, line in enumerate(z)
        ]
    axes = Axis(titles[0], names=x, grid=False), Axis(titles[1], names=y, grid=False, reverse=reverse)
    return Plot(Cells(z, x, y, text, tips, low, high, early), x=axes[0], y=axes[1])


def plane(*marks: Mark, variance: Sequence[float] | None) -> Plot:
    """Draw marks of a two-dimensional projection; `variance` holds the explained variance of PCA's components."""
    titles = ["", ""]
    if variance is not None:
        titles = [f"{name} component, {100 * v:.0f} %" for name, v in zip(("first", "second"), variance, strict=False)]
    ticks = [(value, number(value)) for value in (0.0, 0.5, 1.0)]
    x, y = (Axis(title, limits=(-0.04, 1.04), ticks=ticks) for title in titles)
    return Plot(*marks, x=x, y=y)

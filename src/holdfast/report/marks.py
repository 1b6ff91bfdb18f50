"""Marks of a figure as SVG: points, bars, cells, images, contours, and reference lines.

Horizontal positions are percentages, vertical ones pixels. Lines lie in a layer that is stretched to the width of the
figure; markers and texts are not stretched.
"""

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from PIL import Image, ImageColor

from holdfast.report.axes import Axis

Colour = tuple[int, int, int]
Scale = Sequence[tuple[float, str]]  # (share of the range, colour), in order

WIDE = 1000  # units of the width in the stretched layer
MOST_CELLS = 900  # cells of a heat map that are drawn one by one
SHADES: Scale = ((0.0, "#f4f8fb"), (1.0, "#4a9bd1"))  # light enough for dark numbers on every shade
PATHS = {  # symbol -> path of a marker with radius 1
    "square": "M-.9-.9h1.8v1.8h-1.8z", "diamond": "M0-1.25L1.25 0 0 1.25-1.25 0z",
    "triangle-up": "M0-1.15L1.1.85h-2.2z", "x": "M-.9-.9L.9.9M-.9.9L.9-.9", "x-thin": "M-.9-.9L.9.9M-.9.9L.9-.9",
}  # fmt: skip
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4"}
FADED = {"": "", "/": ' fill-opacity=".45"', "x": ' fill-opacity=".2"', ".": ' fill-opacity=".7"'}  # pattern of bars


@dataclass(frozen=True)
class Stroke:
    """Colour, width and dashes of a line."""

    colour: str = "currentColor"
    width: float = 2
    dash: str = "solid"


DOTTED = Stroke("rgba(128,128,128,0.9)", 1, "dot")  # reference lines


@dataclass(frozen=True)
class Area:
    """Plot area of a figure: its axes, its height, and the place of a mark in a group of bars."""

    x: Axis
    y: Axis
    height: int
    offset: float = 0.0  # of the mark from the middle of its group, in units of the axis
    width: float = 0.8  # of a bar

    def px(self, value: Any) -> float:
        return self.y.at(value) * self.height

    def stretched(self, content: str) -> str:
        return (
            f'<svg width="100%" height="100%" viewBox="0 0 {WIDE} {self.height}" preserveAspectRatio="none">'
            f"{content}</svg>"
        )

    def line(self, path: str, stroke: Stroke) -> str:
        dash = f' stroke-dasharray="{DASHES[stroke.dash]}"' if stroke.dash in DASHES else ""
        return self.stretched(
            f'<path class="line" d="{path}" stroke="{stroke.colour}" stroke-width="{stroke.width}"{dash}/>'
        )


@dataclass(frozen=True)
class Errors:
    """Error bars of a series, as long above as below unless `below` is set, and horizontal if `across`."""

    above: Sequence[float]
    below: Sequence[float] | None = None
    across: bool = False
    width: float = 4  # half of the caps
    thickness: float = 1.5

    def ends(self, values: Sequence[Any]) -> list[float]:
        """Return the ends of the bars of known values."""
        below = self.above if self.below is None else self.below
        known = [(v, up, down) for v, up, down in zip(values, self.above, below, strict=True) if is_known(v)]
        return [end for v, up, down in known for end in (v + up, v - down)]

    def draw(self, area: Area, left: str, x: Any, y: Any, i: int, colour: str) -> str:
        """Draw the bar of one value; `left` is its position in percent."""
        above, half = self.above[i], self.width
        below = above if self.below is None else self.below[i]
        if not above and not below:
            return ""
        if self.across:
            ends, middle = [n(WIDE * area.x.at(x + d)) for d in (-below, above)], area.px(y)
            caps = "".join(f"M{end} {n(middle - half)}v{2 * half}" for end in ends)
            return area.line(f"M{ends[0]} {n(middle)}H{ends[1]}{caps}", Stroke(colour, self.thickness))
        top, bottom = area.px(y + above), area.px(y - below)
        caps = "".join(f"M{-half} {n(end)}h{2 * half}" for end in (top, bottom)) if half else ""
        path = f'<path d="M0 {n(top)}V{n(bottom)}{caps}" stroke="{colour}" stroke-width="{self.thickness}"/>'
        return f'<svg class="mark" x="{left}">{path}</svg>'


class Mark:
    """Marks of one kind: their values on both axes, their tooltips, and their drawing."""

    owner = ""  # the method that the legend of the report hides with its marks
    name = ""  # in the legend of the figure
    colour = "currentColor"
    grouped = False  # whether it takes turns with others at each x
    cells = False  # whether values are the middles of cells
    pattern = ""  # of bars

    def values(self, axis: str) -> list[Any]:
        """Return the values on the axis `x` or `y`, with the ends of error bars."""
        raise NotImplementedError

    def draw(self, area: Area) -> Iterator[str]:
        """Yield the elements."""
        raise NotImplementedError

    def texts(self) -> list[str]:
        """Return the tooltips, which are the text alternative; empty for a mark without them."""
        return []

    def scale(self) -> str:
        """Return the HTML of the colours of a scale; empty without one."""
        return ""


@dataclass(frozen=True, eq=False)
class Series(Mark):
    """Values over x with one tooltip each, or one for all."""

    x: Sequence[Any]
    y: Sequence[Any]
    tips: Sequence[str] | str = ()
    name: str = ""
    owner: str = ""
    colour: str = "currentColor"
    errors: Errors | None = None

    def values(self, axis: str) -> list[Any]:
        values = self.x if axis == "x" else self.y
        drawn = self.errors is not None and self.errors.across == (axis == "x")
        ends = self.errors.ends(values) if drawn and self.errors is not None else []
        return [value for value in values if is_known(value)] + ends

    def known(self) -> Iterator[tuple[int, Any, Any]]:
        """Yield (index, x, y) of the values that are drawn."""
        pairs = enumerate(zip(self.x, self.y, strict=True))
        return ((i, a, b) for i, (a, b) in pairs if is_known(a) and is_known(b))

    def tip(self, i: int) -> str:
        return self.tips if isinstance(self.tips, str) else self.tips[i]

    def texts(self) -> list[str]:
        texts = [self.tip(i) for i, _, _ in self.known()] if self.tips else []
        return texts if len(set(texts)) == len(texts) else [f"{len(texts)} points, {texts[0]}"]


@dataclass(frozen=True, eq=False)
class Points(Series):
    """Points with error bars, and a line through them; a size of 0 draws the line alone."""

    symbol: str = "circle"
    size: float | Sequence[float] = 6
    line: Stroke | None = None
    faded: float | None = None  # opacity of each marker
    grouped: bool = False

    def draw(self, area: Area) -> Iterator[str]:
        points = list(self.known())
        if self.line is not None and len(points) > 1:
            ends = [f"{n(area.x.at(a, area.offset) * WIDE)} {n(area.px(b))}" for _, a, b in points]
            yield area.line("M" + "L".join(ends), self.line)
        for i, a, b in points:
            left = f"{n(100 * area.x.at(a, area.offset))}%"
            if self.errors is not None:
                yield self.errors.draw(area, left, a, b, i, self.colour)
            if size := self.size[i] if isinstance(self.size, Sequence) else self.size:
                yield self._marker(left, area.px(b), size / 2, _title(self.tip(i)) if self.tips else "")

    def _marker(self, left: str, y: float, radius: float, title: str) -> str:
        shape = self.symbol.removesuffix("-open")
        paint = f'fill="{self.colour}"'
        if shape != self.symbol or shape.startswith("x"):
            paint = f'fill="none" stroke="{self.colour}" stroke-width="1.5"'
        if self.faded is not None:
            paint += f' opacity="{self.faded}"'
        if shape not in PATHS:
            return f'<circle cx="{left}" cy="{n(y)}" r="{n(radius)}" {paint}>{title}</circle>'
        path = f'<path transform="scale({n(radius)})" vector-effect="non-scaling-stroke" d="{PATHS[shape]}" {paint}/>'
        return f'<svg class="mark" x="{left}" y="{n(y)}"><g>{title}{path}</g></svg>'


@dataclass(frozen=True, eq=False)
class Bars(Series):
    """One bar per x; series of bars stand next to each other."""

    pattern: str = ""
    grouped: bool = True

    def draw(self, area: Area) -> Iterator[str]:
        base = area.px(max(0.0, min(area.y.first, area.y.last)))
        for i, a, b in self.known():
            left, right = (area.x.at(a, area.offset + side * area.width / 2) for side in (-1, 1))
            top, bottom = sorted((area.px(b), base))
            place = f'x="{n(100 * left)}%" width="{n(100 * (right - left))}%" y="{n(top)}" height="{n(bottom - top)}"'
            paint = f'fill="{self.colour}" stroke="{self.colour}"{FADED[self.pattern]}'
            yield f"<rect {place} {paint}>{_title(self.tip(i)) if self.tips else ''}</rect>"
            if self.errors is not None:
                yield self.errors.draw(area, f"{n(100 * (left + right) / 2)}%", a, b, i, "currentColor")


@dataclass(frozen=True, eq=False)
class Cells(Mark):
    """Categories by categories as shaded cells, each with a number; many cells are an image."""

    z: Sequence[Sequence[float | None]]
    x: Sequence[str]
    y: Sequence[str]
    text: Sequence[Sequence[str]]
    tips: Sequence[Sequence[str]]
    low: float | None = 0.0  # None: the lowest value
    high: float | None = 1.0
    early: Sequence[tuple[int, int]] = ()  # (row, column) of cells in a dotted frame with numbers in italics

    cells = True

    def values(self, axis: str) -> list[Any]:
        return list(self.x if axis == "x" else self.y)

    def texts(self) -> list[str]:
        pairs = (pair for lines in zip(self.z, self.tips, strict=True) for pair in zip(*lines, strict=True))
        return [tip for value, tip in pairs if is_known(value)]

    def draw(self, area: Area) -> Iterator[str]:
        colours = shades(SHADES, *limits(self.z, self.low, self.high))
        if sum(map(len, self.z)) > MOST_CELLS:
            yield pixels(self.z, colours, area)
            return
        for i, line in enumerate(self.z):
            for j, value in enumerate(line):
                if value is None or not is_known(value):
                    continue
                left, right = (area.x.at(self.x[j], d) for d in (-0.5, 0.5))
                top, bottom = sorted(area.y.at(self.y[i], d) * area.height for d in (-0.5, 0.5))
                kind = "early cell" if (i, j) in self.early else "cell"
                yield (
                    f'<rect class="{kind}" x="{n(100 * left)}%" width="{n(100 * (right - left))}%" y="{n(top)}" '
                    f'height="{n(bottom - top)}" fill="rgb{colours(value)}">{_title(self.tips[i][j])}</rect>'
                    f'<text class="{kind}" x="{n(50 * (left + right))}%" y="{n((top + bottom) / 2 + 4)}">'
                    f"{escape(self.text[i][j])}</text>"
                )


@dataclass(frozen=True, eq=False)
class Contours(Mark):
    """Lines along which a grid over the unit square has a level."""

    z: Sequence[Sequence[float]]
    levels: Sequence[float]
    line: Stroke

    def values(self, axis: str) -> list[Any]:
        return [0.0, 1.0]

    def draw(self, area: Area) -> Iterator[str]:
        step, path = 1 / (len(self.z) - 1), []
        for level in self.levels:
            for ends in contour_lines(self.z, level):
                points = (f"{n(area.x.at(step * column) * WIDE)} {n(area.px(step * row))}" for column, row in ends)
                path.append(f"M{'L'.join(points)}")
        if path:
            yield area.line("".join(path), self.line)


@dataclass(frozen=True)
class Rule:
    """Reference line at one value of x or of y."""

    x: float | None = None
    y: float = 0.0
    stroke: Stroke = DOTTED

    def draw(self, area: Area) -> str:
        at = n(area.px(self.y) if self.x is None else WIDE * area.x.at(self.x))
        return area.line(f"M0 {at}L{WIDE} {at}" if self.x is None else f"M{at} {area.height}L{at} 0", self.stroke)


def image(source: str, opacity: float = 1.0) -> str:
    """Return an image that fills the plot area."""
    return (
        f'<image class="pixels" width="100%" height="100%" preserveAspectRatio="none" opacity="{opacity}" '
        f'href="{source}"/>'
    )


def n(value: float) -> str:
    """Format a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def pixels(z: Sequence[Sequence[float | None]], colours: Callable[[float], Colour], area: Area) -> str:
    """Return a grid as an image that fills the plot area; its first row may be at the bottom."""
    return image(raster(z[::-1] if area.y.first < area.y.last else z, colours))


def limits(z: Sequence[Sequence[float | None]], low: float | None, high: float | None) -> tuple[float, float]:
    """Return the range of the colours: by default that of the known values."""
    known = [v for line in z for v in line if v is not None and is_known(v)]
    low = min(known, default=0.0) if low is None else low
    return low, max(known, default=1.0) if high is None else high


def is_known(value: Any) -> bool:
    return value is not None and (isinstance(value, str) or math.isfinite(value))


def shades(scale: Scale, low: float, high: float) -> Callable[[float], Colour]:
    """Return a function from a value to its colour."""
    edges, colours = zip(*scale, strict=True)
    channels = list(zip(*map(ImageColor.getrgb, colours), strict=True))

    def colour(value: float) -> Colour:
        share = min(1.0, max(0.0, (value - low) / ((high - low) or 1.0)))
        red, green, blue = (round(float(np.interp(share, edges, channel))) for channel in channels)
        return red, green, blue

    return colour


def raster(z: Sequence[Sequence[float | None]], colours: Callable[[float], Colour]) -> str:
    """Return a heat map as the data URL of an image with one pixel per cell."""
    image = Image.new("RGBA", (len(z[0]), len(z)))
    image.putdata([(*colours(v), 255) if v is not None and is_known(v) else (0, 0, 0, 0) for line in z for v in line])
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def contour_lines(
    z: Sequence[Sequence[float]], level: float
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Yield segments (column, row) to (column, row) along which the interpolated grid has this level.

    Every square of four neighbours contributes a segment between the edges where the level is crossed, and two if all
    four edges are.
    """
    for i in range(len(z) - 1):
        for j in range(len(z[0]) - 1):
            corners = ((j, i), (j + 1, i), (j + 1, i + 1), (j, i + 1))
            crossed = []
            for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
                a, b = z[y0][x0], z[y1][x1]
                if (a >= level) != (b >= level):
                    share = (level - a) / (b - a)
                    crossed.append((x0 + share * (x1 - x0), y0 + share * (y1 - y0)))
            yield from zip(crossed[::2], crossed[1::2], strict=True)

"""Draw plotly figures as inline SVG that fits any width, without a script.

Horizontal positions are percentages, vertical ones pixels. Lines lie in a layer that is stretched to the width of the
chart; markers and texts are not stretched. Supported: scatter, bar, heatmap and contour traces, lines, frames, images.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.report.axes import Axis, label, number, plain
from holdfast.report.grids import Trace, contour_lines, is_known, limits, raster, shades
from holdfast.report.tooltips import cell_values, html_text, title

WIDE = 1000  # units of the width in the stretched layer
MOST_CELLS = 900  # cells of a heat map that are drawn one by one
PATHS = {  # symbol -> path of a marker with radius 1
    "square": "M-.9-.9h1.8v1.8h-1.8z", "diamond": "M0-1.25L1.25 0 0 1.25-1.25 0z",
    "triangle-up": "M0-1.15L1.1.85h-2.2z", "x": "M-.9-.9L.9.9M-.9.9L.9-.9", "x-thin": "M-.9-.9L.9.9M-.9.9L.9-.9",
}  # fmt: skip
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4"}
FADED = {"": "", "/": ' fill-opacity=".45"', "x": ' fill-opacity=".2"', ".": ' fill-opacity=".7"'}  # pattern of bars


def render(document: Mapping[str, Any], name: str, *, height: int, legend: bool, bare: bool) -> str:
    """Return the HTML of a figure; `bare` draws the plot area alone."""
    traces, layout = document["data"], document["layout"]
    cells = any(trace["type"] == "heatmap" for trace in traces)
    bars = any(trace["type"] == "bar" for trace in traces)
    x = Axis(layout.get("xaxis", {}), _values(traces, "x"), vertical=False, cells=cells or bars)
    y = Axis(layout.get("yaxis", {}), _values(traces, "y"), vertical=True, cells=cells, zero=bars)
    area = height if bare else max(80, height - 70)
    plot = Plot(layout, traces, x, y, area)
    ratio = "aspect-ratio:1" if layout.get("yaxis", {}).get("scaleanchor") else f"height:{area}px"
    drawing = (
        f'<div class="area" style="{ratio}"><svg width="100%" height="100%" aria-hidden="true" focusable="false">'
        f"{''.join(plot.drawing())}</svg></div>"
    )
    if bare:
        return f'<div class="chart map" id="{plain(name)}">{drawing}</div>'
    return (
        f'<div class="chart" id="{plain(name)}">{_legend(traces) if legend else ""}'
        f'<div class="y-title">{label(y.title)}</div>'
        f'<div class="plot" style="grid-template-columns:{_label_width(y)} minmax(0,1fr)">'
        f'<div class="y-labels">{_y_labels(y)}</div>{drawing}<span></span><div>{_x_labels(x)}</div></div>'
        f"{_scale(traces)}</div>"
    )


class Plot:
    """Plot area of a figure: its size, axes and traces."""

    def __init__(self, layout: Mapping[str, Any], traces: Sequence[Trace], x: Axis, y: Axis, height: int) -> None:
        self.layout, self.traces, self.x, self.y, self.height = layout, traces, x, y, height
        self.groups = [i for i, trace in enumerate(traces) if trace["type"] == "bar" or trace.get("offsetgroup")]

    def drawing(self) -> Iterator[str]:
        """Yield the elements from the back to the front."""
        for image in self.layout.get("images", ()):
            if re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]*", image["source"]):
                yield _image(image["source"], 1.0)
        yield from self._grid()
        draw: dict[str, Callable[[int, Trace], Iterator[str]]] = {
            "scatter": self._scatter, "bar": self._bars, "heatmap": self._heatmap, "contour": self._contour,
        }  # fmt: skip
        for index, trace in enumerate(self.traces):
            owner = f' data-label="{plain(str(trace["meta"]))}"' if trace.get("meta") else ""
            opacity = f' opacity="{trace["opacity"]}"' if "opacity" in trace and trace["type"] == "scatter" else ""
            yield f"<g{owner}{opacity}>{''.join(draw[trace['type']](index, trace))}</g>"
        yield from self._shapes()

    def _px(self, value: Any) -> float:
        return self.y.at(value) * self.height

    def _grid(self) -> Iterator[str]:
        path = []
        if not self.y.categories and self.layout.get("yaxis", {}).get("showgrid", True):
            path += [f"M0 {_n(at * self.height)}H{WIDE}" for at, _ in self.y.ticks()]
        if not self.x.categories and self.layout.get("xaxis", {}).get("showgrid", True):
            path += [f"M{_n(at * WIDE)} 0V{self.height}" for at, _ in self.x.ticks()]
        if path:
            yield self._stretched(f'<path class="grid" d="{"".join(path)}"/>')

    def _stretched(self, content: str) -> str:
        return (
            f'<svg width="100%" height="100%" viewBox="0 0 {WIDE} {self.height}" preserveAspectRatio="none">'
            f"{content}</svg>"
        )

    def _line(self, path: str, style: Mapping[str, Any], colour: str = "") -> str:
        dash = f' stroke-dasharray="{DASHES[style["dash"]]}"' if style.get("dash", "solid") in DASHES else ""
        colour, width = style.get("color") or colour or "currentColor", style.get("width", 2)
        return self._stretched(f'<path class="line" d="{path}" stroke="{colour}" stroke-width="{width}"{dash}/>')

    def _offset(self, index: int) -> float:
        """Return the offset of a trace from the middle of its group, in units of the axis."""
        if index not in self.groups:
            return 0.0
        gap = self.layout.get("scattergap", self.layout.get("bargap", 0.2))
        return (self.groups.index(index) - (len(self.groups) - 1) / 2) * (1 - gap) / len(self.groups)

    def _scatter(self, index: int, trace: Trace) -> Iterator[str]:
        x, y, marker = list(trace.get("x", ())), list(trace.get("y", ())), trace.get("marker", {})
        offset, mode, line = self._offset(index), trace.get("mode", "lines"), trace.get("line", {})
        shared = marker.get("color") if isinstance(marker.get("color"), str) else None
        colour = shared or line.get("color") or "currentColor"
        points = [(a, b, i) for i, (a, b) in enumerate(zip(x, y, strict=False)) if is_known(b) and is_known(a)]
        if "lines" in mode and len(points) > 1:
            ends = [f"{_n(self.x.at(a, offset) * WIDE)} {_n(self._px(b))}" for a, b, _ in points]
            yield self._line("M" + "L".join(ends), line, colour)
        for a, b, i in points:
            left = f"{_n(100 * self.x.at(a, offset))}%"
            if bar := trace.get("error_y"):
                yield self._vertical_error(left, b, bar, i, colour)
            if bar := trace.get("error_x"):
                yield self._horizontal_error(a, b, bar, i, colour)
            if "markers" in mode:
                own = {name: value[i] if isinstance(value, list) else value for name, value in marker.items()}
                yield _marker(left, self._px(b), own, str(own.get("color", colour)), title(trace, i, {"x": a, "y": b}))

    def _vertical_error(self, left: str, value: float, bar: Mapping[str, Any], i: int, colour: str) -> str:
        above = bar["array"][i] or 0.0
        below = bar["arrayminus"][i] if bar.get("arrayminus") else above
        if not above and not below:
            return ""
        top, bottom, half = self._px(value + above), self._px(value - below), bar.get("width", 4)
        caps = "".join(f"M{-half} {_n(end)}h{2 * half}" for end in (top, bottom)) if half else ""
        path = (
            f'<path d="M0 {_n(top)}V{_n(bottom)}{caps}" stroke="{colour}" stroke-width="{bar.get("thickness", 1.5)}"/>'
        )
        return f'<svg class="mark" x="{left}">{path}</svg>'

    def _horizontal_error(self, a: float, b: Any, bar: Mapping[str, Any], i: int, colour: str) -> str:
        half = bar["array"][i] or 0.0
        if not half:
            return ""
        ends, middle, cap = [_n(WIDE * self.x.at(a + d)) for d in (-half, half)], self._px(b), bar.get("width", 4)
        caps = "".join(f"M{end} {_n(middle - cap)}v{2 * cap}" for end in ends)
        return self._line(f"M{ends[0]} {_n(middle)}H{ends[1]}{caps}", {"width": bar.get("thickness", 1.5)}, colour)

    def _bars(self, index: int, trace: Trace) -> Iterator[str]:
        marker, base = trace.get("marker", {}), self._px(max(0.0, min(self.y.first, self.y.last)))
        width = (1 - self.layout.get("bargap", 0.2)) / max(1, len(self.groups))
        pattern = FADED.get((marker.get("pattern") or {}).get("shape") or "", "")
        colour, offset = marker.get("color") or "currentColor", self._offset(index)
        for i, (a, b) in enumerate(zip(trace["x"], trace["y"], strict=False)):
            if not is_known(b):
                continue
            left, right = (self.x.at(a, offset + side * width / 2) for side in (-1, 1))
            top, bottom = sorted((self._px(b), base))
            yield (
                f'<rect x="{_n(100 * left)}%" width="{_n(100 * (right - left))}%" y="{_n(top)}" '
                f'height="{_n(bottom - top)}" fill="{colour}" stroke="{colour}"{pattern}>'
                f"{title(trace, i, {'x': a, 'y': b})}</rect>"
            )
            if bar := trace.get("error_y"):
                middle = f"{_n(100 * (left + right) / 2)}%"
                yield self._vertical_error(middle, b, bar, i, "currentColor")

    def _heatmap(self, index: int, trace: Trace) -> Iterator[str]:
        z = [list(line) for line in trace["z"]]
        known = [v for line in z for v in line if is_known(v)]
        low, high = limits(trace, known)
        colours = shades(trace["colorscale"], low, high)
        if sum(map(len, z)) > MOST_CELLS or not trace.get("texttemplate"):
            flip = self.y.first < self.y.last  # the first row is at the bottom
            yield _image(raster(z[::-1] if flip else z, colours), trace.get("opacity", 1.0))
            return
        columns, rows = trace["x"], trace["y"]
        for i, line in enumerate(z):
            for j, value in enumerate(line):
                if not is_known(value):
                    continue
                left, right = (self.x.at(columns[j], d) for d in (-0.5, 0.5))
                top, bottom = sorted(self.y.at(rows[i], d) * self.height for d in (-0.5, 0.5))
                text = str(trace["text"][i][j])
                slant = ' font-style="italic"' if text.startswith("<i>") else ""
                tooltip = title(trace, (i, j), cell_values(trace, i, j))
                yield (
                    f'<rect class="cell" x="{_n(100 * left)}%" width="{_n(100 * (right - left))}%" y="{_n(top)}" '
                    f'height="{_n(bottom - top)}" fill="rgb{colours(value)}">{tooltip}</rect>'
                    f'<text class="cell" x="{_n(50 * (left + right))}%" y="{_n((top + bottom) / 2 + 4)}"{slant}>'
                    f"{plain(html_text(text))}</text>"
                )

    def _contour(self, index: int, trace: Trace) -> Iterator[str]:
        levels, path = trace["contours"], []
        level = levels["start"]
        while level <= levels["end"]:
            for (x0, y0), (x1, y1) in contour_lines(trace["z"], level):
                ends = []
                for column, row in ((x0, y0), (x1, y1)):
                    left = self.x.at(trace["x0"] + trace["dx"] * column) * WIDE
                    ends.append(f"{_n(left)} {_n(self._px(trace['y0'] + trace['dy'] * row))}")
                path.append(f"M{ends[0]}L{ends[1]}")
            level += levels["size"]
        if path:
            yield self._line("".join(path), trace["line"])

    def _shapes(self) -> Iterator[str]:
        for shape in self.layout.get("shapes", ()):
            x = [
                WIDE * v if shape.get("xref") == "x domain" else WIDE * self.x.at(v) for v in (shape["x0"], shape["x1"])
            ]
            domain = shape.get("yref") == "y domain"
            y = [self.height * (1 - v) if domain else self._px(v) for v in (shape["y0"], shape["y1"])]
            (left, right), (top, bottom) = map(_n, x), map(_n, y)
            path = f"M{left} {top}L{right} {bottom}"
            if shape.get("type") != "line":
                path = f"M{left} {top}H{right}V{bottom}H{left}Z"
            yield self._line(path, shape.get("line", {}))


def _marker(left: str, y: float, marker: Mapping[str, Any], colour: str, title: str) -> str:
    symbol = str(marker.get("symbol", "circle"))
    shape, radius = symbol.removesuffix("-open"), marker.get("size", 6) / 2
    paint = f'fill="{colour}"'
    if symbol.endswith("-open") or shape.startswith("x"):
        paint = f'fill="none" stroke="{colour}" stroke-width="1.5"'
    if "opacity" in marker:
        paint += f' opacity="{marker["opacity"]}"'
    if shape not in PATHS:
        return f'<circle cx="{left}" cy="{_n(y)}" r="{_n(radius)}" {paint}>{title}</circle>'
    path = f'<path transform="scale({_n(radius)})" vector-effect="non-scaling-stroke" d="{PATHS[shape]}" {paint}/>'
    return f'<svg class="mark" x="{left}" y="{_n(y)}"><g>{title}{path}</g></svg>'


def _values(traces: Sequence[Trace], axis: str) -> list[Any]:
    """Return all values on an axis, with the ends of error bars."""
    values: list[Any] = []
    for trace in traces:
        if trace["type"] in ("heatmap", "contour") and axis not in trace:
            count = len(trace["z"]) if axis == "y" else len(trace["z"][0])
            first, step = trace.get(f"{axis}0", 0), trace.get(f"d{axis}", 1)
            values += [first + step * i for i in range(count)]
            continue
        own = [value for value in trace.get(axis, ()) if is_known(value)]
        values += own
        bar = trace.get(f"error_{axis}")
        if bar and not any(isinstance(value, str) for value in own):
            pairs = [(v, bar["array"][i] or 0.0, i) for i, v in enumerate(trace[axis]) if is_known(v)]
            values += [v + error for v, error, _ in pairs]
            values += [v - (bar["arrayminus"][i] if bar.get("arrayminus") else error) for v, error, i in pairs]
    return values


def _image(source: str, opacity: float) -> str:
    return (
        f'<image class="pixels" width="100%" height="100%" preserveAspectRatio="none" opacity="{opacity}" '
        f'href="{source}"/>'
    )


def _n(value: float) -> str:
    """Format a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _label_width(y: Axis) -> str:
    """Return the width of the labels of the y axis: as long as they are, but at most a part of the chart."""
    longest = max((len(re.sub(r"<[^>]+>|&\w+;", "", text)) for _, text in y.ticks()), default=0)
    return f"min({round(7.4 * longest) + 14}px,42%)"


def _y_labels(y: Axis) -> str:
    texts = [(at, text, re.sub(r"<[^>]+>", "", text)) for at, text in y.ticks()]
    return "".join(f'<span style="top:{_n(100 * at)}%" title="{full}">{text}</span>' for at, text, full in texts)


def _x_labels(x: Axis) -> str:
    """Return the labels: cells in a row for categories, which may take several lines, and the title."""
    ticks = x.ticks()
    if x.categories and len(ticks) == len(x.categories):
        cells = "".join(f"<span>{text}</span>" for _, text in ticks)
        labels = f'<div class="x-cells">{cells}</div>'
    else:
        spans = "".join(f'<span style="left:{_n(100 * at)}%">{text}</span>' for at, text in ticks)
        labels = f'<div class="x-ticks">{spans}</div>' if ticks else ""
    return labels + (f'<div class="x-title">{label(x.title)}</div>' if x.title else "")


def _legend(traces: Sequence[Trace]) -> str:
    """Return colour and name per trace; empty for a single one."""
    named = [trace for trace in traces if trace.get("name") and trace["type"] in ("scatter", "bar")]
    if len(named) < 2:
        return ""
    items = []
    for trace in named:
        marker = trace.get("marker", {})
        colour = marker.get("color") or trace.get("line", {}).get("color") or "currentColor"
        sign = "▨" if (marker.get("pattern") or {}).get("shape") else "■"
        items.append(f'<span><b style="color:{colour}">{sign}</b> {label(str(trace["name"]))}</span>')
    return f'<div class="names">{" ".join(items)}</div>'


def _scale(traces: Sequence[Trace]) -> str:
    """Return the colours of a heat map without numbers in its cells."""
    for trace in traces:
        if trace["type"] == "heatmap" and trace.get("colorbar") and not trace.get("texttemplate"):
            low, high = limits(trace, [v for line in trace["z"] for v in line if is_known(v)])
            ends = ",".join(colour for _, colour in trace["colorscale"])
            text = label(str(trace["colorbar"]["title"]["text"]))
            bar = f'<span class="shades" style="background:linear-gradient(to right,{ends})"></span>'
            return f'<div class="names"><span>{text}: {number(low)} {bar} {number(high)}</span></div>'
    return ""

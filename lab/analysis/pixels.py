"""Values on a grid as an image with one pixel per value: with axes, or as a map over another image."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from holdfast.report.axes import label, number
from holdfast.report.marks import Area, Mark, Scale, image, limits, pixels, raster, shades
from holdfast.report.plots import Chart, drawing_area


@dataclass(frozen=True, eq=False)
class Pixels(Mark):
    """Values on a grid as an image with one pixel per value; `title` shows the colours of its scale."""

    z: Sequence[Sequence[float | None]]
    colours: Scale
    low: float | None = None
    high: float | None = None
    title: str = ""

    cells = True

    def values(self, axis: str) -> list[Any]:
        return list(range(len(self.z if axis == "y" else self.z[0])))

    def texts(self) -> list[str]:
        return [f"{len(self.z)} by {len(self.z[0])} cells"]

    def draw(self, area: Area) -> Iterator[str]:
        yield pixels(self.z, shades(self.colours, *limits(self.z, self.low, self.high)), area)

    def scale(self) -> str:
        if not self.title:
            return ""
        low, high = map(number, limits(self.z, self.low, self.high))
        colours = ",".join(colour for _, colour in self.colours)
        bar = f'<span class="shades" style="background:linear-gradient(to right,{colours})"></span>'
        return f'<div class="names"><span>{label(self.title)}: {low} {bar} {high}</span></div>'


def map_over(
    background: str, grid: Sequence[Sequence[float]], scale: Scale, name: str, *, low: float, high: float | None = None
) -> Chart:
    """Draw a square image, given by a data URL, under the colours of a grid; `name` is its HTML id."""
    layers = [image(raster(grid, shades(scale, *limits(grid, low, high))), 0.55)]
    if re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]*", background):  # records from elsewhere can hold anything
        layers.insert(0, image(background))
    area = drawing_area("aspect-ratio:1", layers)
    chart = Chart(f'<div class="chart map" id="{escape(name)}">{area}</div>')
    chart.description = f"{len(grid)} by {len(grid[0])} cells"
    return chart

"""Values on a grid: colours, images with one pixel per cell, and contour lines."""

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageColor

Colour = tuple[int, int, int]
Scale = Sequence[tuple[float, str]]  # (share of the range, colour), in order


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

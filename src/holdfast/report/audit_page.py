"""One self-contained page about a data set: what to do, then every table, those of pairs as coloured fields."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from holdfast.core.files import write_text
from holdfast.report.grid import Grid, grid_map
from holdfast.report.template import template


def write_audit(
    path: Path, *, title: str, headline: str, advice: Sequence[str], grids: Sequence[Grid], notes: Sequence[str]
) -> Path:
    """Write audit.html: readable offline, nothing is fetched."""
    drawn = [
        (grid, None if grid.top is None else Markup(grid_map(grid, f"map-{place}"))) for place, grid in enumerate(grids)
    ]
    text = template("audit.html").render(title=title, headline=headline, advice=advice, grids=drawn, notes=notes)
    return write_text(path, text)

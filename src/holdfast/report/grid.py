"""A plain table that a terminal and a page show alike: a label and numbers in each line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from rich.text import Text

from holdfast.report.folding import Folded
from holdfast.report.plots import SHADES, fragment, plain

Cell = tuple[str, float | None]  # what is read, and the value to sort by


@dataclass(frozen=True)
class Grid:
    """A title, a sentence about it, names of columns, and lines: the label first, then as many cells as other names."""

    title: str
    about: str
    names: tuple[str, ...]
    lines: list[tuple[str, list[Cell]]] = field(default_factory=list)
    top: float | None = None  # the value of the darkest colour where the grid is a map, too
    words: bool = False  # cells are no numbers

    def as_lines(self) -> list[dict[str, Any]]:
        """As the templates take them."""
        return [{"label": label, "cells": cells} for label, cells in self.lines]


def rich_grid(grid: Grid) -> Folded:
    """The table for a terminal; what is to be said about it is left to the caller, who knows the width."""
    lines = [[Text(label), *(Text(text) for text, _ in cells)] for label, cells in grid.lines]
    return Folded(grid.names, lines, title=Text(grid.title, style="bold"), title_justify="left", words=grid.words)


def grid_map(grid: Grid, name: str) -> str:
    """The same as coloured fields, for a page."""
    labels = [label for label, _ in grid.lines]
    figure = go.Figure(
        go.Heatmap(
            z=[[value for _, value in cells] for _, cells in grid.lines],
            x=[plain(each) for each in grid.names[1:]],
            y=[plain(label) for label in labels],
            text=[[text for text, _ in cells] for _, cells in grid.lines],
            texttemplate="%{text}",
            textfont={"color": "#14181d"},
            colorscale=SHADES,
            zmin=0,
            zmax=grid.top,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y}, %{x}: %{text}<extra></extra>",
        )
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return fragment(figure, name, height=120 + 40 * len(labels))


def matrix(
    title: str, about: str, names: Sequence[str], cells: dict[tuple[str, str], Cell], *, corner: str, top: float
) -> Grid:
    """Names down and across; a pair without a value, such as the diagonal, stays open."""
    lines = [(one, [cells.get((one, other), ("", None)) for other in names]) for one in names]
    return Grid(title, about, (corner, *names), lines, top)

"""The table of scores for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from holdfast.report.plots import SHADES, fragment, plain
from holdfast.report.table import Row, best, columns, source_columns
from holdfast.report.words import MISSING, OWN, error_note, metric_name, number, show


def rich_table(rows: Sequence[Row], metric: str) -> WrappedTable:
    """Methods by target domains, then average, worst domain, and a lone source's own; the best of a column is bold."""
    targets, owned = columns(rows), source_columns(rows)
    note = f"{error_note(rows)}; best in bold" if len(rows) > 1 else error_note(rows)
    note = f"{note}; {OWN}" if owned else note
    lines = []
    tops = [best({r.label: r.cells[t].mean for r in rows if t in r.cells}, metric) for t in targets]
    top_average = best({r.label: r.average.mean for r in rows if r.average is not None}, metric)
    top_worst = best({r.label: r.worst[1] for r in rows if r.worst is not None}, metric)
    inside = {name: best({r.label: r.own[name].mean for r in rows if name in r.own}, metric) for name in owned}
    for row in rows:
        pairs = zip(targets, tops, strict=True)
        line = [_cell(show(row.cells.get(t), metric), row.label in top) for t, top in pairs]
        line.append(_cell(show(row.average, metric), row.label in top_average))
        worst = MISSING if row.worst is None else f"{number(row.worst[1], metric)} {row.worst[0]}"
        own = [_cell(show(row.own.get(name), metric), row.label in inside[name]) for name in owned]
        lines.append([Text(row.label), *line, _cell(worst, row.label in top_worst), *own])
    names = ["method", *targets, "average", "worst", *owned]
    return WrappedTable(names, lines, title=Text(metric_name(metric)), caption=note)


def _cell(text: str, bold: bool) -> Text:
    return Text(text, style="bold" if bold else "")


UNBOUNDED = 10_000  # characters, for what a table would take if it could


@dataclass(frozen=True)
class WrappedTable:
    """Names of columns, those of labels first, and as many cells in each line; no number is ever cut."""

    names: Sequence[str]
    lines: Sequence[Sequence[Text]]  # Text, not str: a domain called [red] is a name, not markup
    title: Text
    caption: str = ""
    title_justify: JustifyMethod = "center"
    labels: int = 1  # so many columns stand before every piece
    words: bool = False  # cells are no numbers, and begin at the left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for index, some in enumerate(self._pieces(console, options)):
            title = self.title if index == 0 else None
            yield self._table(some, options.max_width, title)
        if self.caption:
            yield Text(self.caption, style="table.caption")

    def _pieces(self, console: Console, options: ConsoleOptions) -> list[list[int]]:
        """As many columns a piece as there is room for, and at least one."""
        wide = options.update(max_width=UNBOUNDED)
        pieces: list[list[int]] = [[]]
        for column in range(self.labels, len(self.names)):
            more = [*pieces[-1], column]
            needed = console.measure(self._table(more, options.max_width), options=wide).maximum
            if pieces[-1] and needed > options.max_width:
                pieces.append([column])
            else:
                pieces[-1] = more
        return pieces

    def _table(self, some: Sequence[int], room: int, title: Text | None = None) -> Table:
        table = Table(
            title=title, title_justify=self.title_justify, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
        )
        for name in self.names[: self.labels]:
            table.add_column(Text(name), overflow="fold", max_width=room // 2 // self.labels)
        for column in some:
            words = [word for line in self.lines for word in line[column].plain.split()]
            table.add_column(
                Text(self.names[column]),
                justify="left" if self.words else "right",
                overflow="fold",
                min_width=max((len(word) for word in words if not word[:1].isalpha()), default=1),
            )
        for line in self.lines:
            table.add_row(*line[: self.labels], *(line[column] for column in some))
        return table


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


def rich_grid(grid: Grid) -> WrappedTable:
    """The table for a terminal; what is to be said about it is left to the caller, who knows the width."""
    lines = [[Text(label), *(Text(text) for text, _ in cells)] for label, cells in grid.lines]
    return WrappedTable(grid.names, lines, title=Text(grid.title, style="bold"), title_justify="left", words=grid.words)


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

"""Tables for the terminal, and grids that the terminal and the HTML report both show."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from holdfast.report.plots import Chart, heatmap
from holdfast.report.sections import EMPTY, Cell
from holdfast.report.words import SOURCE_NOTE, columns_note, error_note, score_columns, score_lines
from holdfast.stats.formatting import metric_name
from holdfast.stats.table import Row, source_columns

UNBOUNDED = 10_000  # characters: more than any table needs


@dataclass(frozen=True)
class WrappedTable:
    """Rich table that is split into several tables if it is wider than the terminal; no number is cut off."""

    names: Sequence[str]  # columns
    lines: Sequence[Sequence[Text]]  # Text and not str: a domain called [red] is a name, not markup
    title: Text
    caption: str = ""
    title_justify: JustifyMethod = "center"
    labels: int = 1  # number of leading columns that every piece repeats
    words: bool = False  # cells are text and aligned to the left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for index, piece in enumerate(self._pieces(console, options)):
            yield self._table(piece, options.max_width, self.title if index == 0 else None)
        if self.caption:
            yield Text(self.caption, style="table.caption")

    def _pieces(self, console: Console, options: ConsoleOptions) -> list[list[int]]:
        """Split the columns so that each piece fits into the terminal or has one column."""
        wide = options.update(max_width=UNBOUNDED)
        pieces: list[list[int]] = [[]]
        for column in range(self.labels, len(self.names)):
            longer = [*pieces[-1], column]
            width = console.measure(self._table(longer, options.max_width), options=wide).maximum
            if pieces[-1] and width > options.max_width:
                pieces.append([column])
            else:
                pieces[-1] = longer
        return pieces

    def _table(self, piece: Sequence[int], width: int, title: Text | None = None) -> Table:
        table = Table(
            title=title, title_justify=self.title_justify, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
        )
        for name in self.names[: self.labels]:
            table.add_column(Text(name), overflow="fold", max_width=width // 2 // self.labels)
        for column in piece:
            words = [word for line in self.lines for word in line[column].plain.split()]
            width = max((len(word) for word in words if not word[:1].isalpha()), default=1)
            justify = "left" if self.words else "right"
            table.add_column(Text(self.names[column]), justify=justify, overflow="fold", min_width=width)
        for line in self.lines:
            table.add_row(*line[: self.labels], *(line[column] for column in piece))
        return table


def rich_table(rows: Sequence[Row], metric: str) -> WrappedTable:
    """Return the table of scores: targets, average, worst domain; the best value of a column is bold."""
    sources = source_columns(rows)
    some = [note] if (note := columns_note(rows)) else []
    notes = [*some, error_note(rows), *(["best in bold"] if len(rows) > 1 else []), *([SOURCE_NOTE] if sources else [])]
    lines = []
    for label, cells in score_lines(rows, metric):
        texts = [cell.text if cell.domain is None else f"{cell.text} {cell.domain}" for cell in cells]
        styled = [Text(text, style="bold" if cell.best else "") for text, cell in zip(texts, cells, strict=True)]
        lines.append([Text(label), *styled])
    return WrappedTable(
        ["method", *score_columns(rows, metric)], lines, title=Text(metric_name(metric)), caption="; ".join(notes)
    )


@dataclass(frozen=True)
class Grid:
    """Table with a title and an explanation; each line has a label and one cell per other column."""

    title: str
    about: str
    names: tuple[str, ...]
    lines: list[tuple[str, list[Cell]]] = field(default_factory=list)
    top: float | None = None  # value of the darkest colour if the grid is also drawn as a heat map
    words: bool = False  # cells are text


def rich_grid(grid: Grid) -> WrappedTable:
    """Return a grid for the terminal, without its explanation."""
    lines = [[Text(label), *(Text(text) for text, _ in cells)] for label, cells in grid.lines]
    return WrappedTable(grid.names, lines, title=Text(grid.title, style="bold"), title_justify="left", words=grid.words)


def grid_map(grid: Grid, name: str) -> Chart:
    """Draw a grid as a heat map."""
    values = [[value for _, value in cells] for _, cells in grid.lines]
    text = [[shown for shown, _ in cells] for _, cells in grid.lines]
    names = [label for label, _ in grid.lines]
    figure = heatmap(values, grid.names[1:], names, "{y}, {x}: {text}", text=text, high=grid.top)
    return figure.html(name, height=120 + 40 * len(grid.lines))


def matrix(title: str, about: str, domains: Sequence[str], cells: dict[tuple[str, str], Cell], *, top: float) -> Grid:
    """Return a grid of domains by domains, without lines if there are no cells; the diagonal is empty."""
    lines = [(one, [cells.get((one, other), EMPTY) for other in domains]) for one in domains if cells]
    return Grid(title, about, ("domain", *domains), lines, top)

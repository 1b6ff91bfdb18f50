"""A table for a terminal whose columns go on below, under the same labels, where one line has no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

UNBOUNDED = 10_000  # characters, for what a table would take if it could


@dataclass(frozen=True)
class Folded:
    """Names of columns, those of labels first, and as many cells in each line; no number is ever cut."""

    names: Sequence[str]
    lines: Sequence[Sequence[Text]]  # Text, not str: a domain called [red] is a name, not markup
    title: Text
    caption: str = ""
    title_justify: JustifyMethod = "center"
    labels: int = 1  # so many columns stand before every piece
    words: bool = False  # cells are no numbers, and begin at the left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, some in enumerate(self._pieces(console, options)):
            title = self.title if number == 0 else None
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

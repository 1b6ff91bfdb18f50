"""The table of scores for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from holdfast.report.folding import Folded
from holdfast.report.table import Row, best, columns, own_columns
from holdfast.report.words import MISSING, OWN, error_note, metric_name, number, show


def rich_table(rows: Sequence[Row], metric: str) -> Folded:
    """Methods by target domains, then average, worst domain, and a lone source's own; the best of a column is bold."""
    targets, owned = columns(rows), own_columns(rows)
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
    return Folded(names, lines, title=Text(metric_name(metric)), caption=note)


def _cell(text: str, bold: bool) -> Text:
    return Text(text, style="bold" if bold else "")

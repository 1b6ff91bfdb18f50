"""Lines of the page's tables: a label, then pairs of the text that is read and the value to sort by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.report import words
from holdfast.report.gap import Gap
from holdfast.report.significance import Against, format_difference, format_p
from holdfast.report.statistics import Cell
from holdfast.report.streams import Transfer
from holdfast.report.table import Row, best, columns, source_columns


def score_lines(table: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    """The rows as the template writes them: text, value to sort by, bold or not."""
    targets, owned = columns(table), source_columns(table)
    tops = {t: best({r.label: r.cells[t].mean for r in table if t in r.cells}, metric) for t in targets}
    top_average = best({r.label: r.average.mean for r in table if r.average is not None}, metric)
    top_worst = best({r.label: r.worst[1] for r in table if r.worst is not None}, metric)
    inside = {t: best({r.label: r.own[t].mean for r in table if t in r.own}, metric) for t in owned}
    most = max((cell.n for row in table for cell in row.cells.values()), default=0)

    def cell(found: Cell | None, bold: bool) -> dict[str, Any]:
        fewer = found is not None and found.n < most
        return {
            "text": words.show(found, metric),
            "value": None if found is None else found.mean,
            "best": bold,
            "seeds": found.n if found is not None and fewer else None,
            "extra": None,
        }

    lines = []
    for row in table:
        cells = [cell(row.cells.get(t), row.label in tops[t]) for t in targets]
        cells.append(cell(row.average, row.label in top_average))
        name, mean = row.worst if row.worst is not None else (None, None)
        worst = {"text": words.number(mean, metric), "value": mean, "best": row.label in top_worst}
        own = [cell(row.own.get(t), row.label in inside[t]) for t in owned]
        lines.append({"label": row.label, "cells": [*cells, worst | {"seeds": None, "extra": name}, *own]})
    return lines


def against_line(entry: Against, metric: str) -> dict[str, Any]:
    """A line of the tests against the baseline: label, then pairs of text and the value to sort by."""
    pairs, seeds = entry.pairs, entry.seeds
    error = words.number(pairs.stderr, metric)
    return {
        "label": entry.label,
        "cells": [
            (entry.rival, None),
            (f"{format_difference(pairs.difference, metric)} ± {error}", pairs.difference),
            (str(pairs.n), pairs.n),
            (format_p(pairs.p), pairs.p),
            (format_p(entry.p), entry.p),
            (f"{format_p(seeds.p)} (n={seeds.n})", seeds.p),
        ],
    }


def transfer_line(entry: Transfer, metric: str) -> dict[str, Any]:
    """A line of the stream's numbers: label, then pairs of text and the value to sort by."""
    cells = (entry.average, entry.backward, entry.forgetting)
    return {"label": entry.label, "cells": [(words.show(c, metric), None if c is None else c.mean) for c in cells]}


def memory_line(entry: dict[str, Any]) -> dict[str, Any]:
    """A line of the memories: label, then pairs of text and the value to sort by."""
    digits = {"slots": 0, "effective sources": 1, "effective targets": 1, "weight": 2, "moved": 2}
    shares = ("used sources", "used targets")
    cells = []
    for key in ("slots", "effective sources", "effective targets", *shares, "weight", "moved"):
        value = entry[key]
        told = words.MISSING if value is None else f"{value:.0%}" if key in shares else f"{value:,.{digits[key]}f}"
        cells.append((told, value))
    return {"label": entry["label"], "cells": cells}


def cost_line(entry: dict[str, Any]) -> dict[str, Any]:
    """A line of the costs table: label, then pairs of text and the value to sort by."""

    def told(key: str, digits: int, unit: float = 1) -> tuple[str, float | None]:
        value = entry[key]
        return (words.MISSING if value is None else f"{value / unit:,.{digits}f}"), value

    keys = (("seconds", 1), ("examples_per_second", 0), ("peak_memory_mb", 0), ("learning_parameters", 0))
    cells = [*(told(k, d) for k, d in keys), told("macs", 3, 1e6), told("runs", 0)]
    return {"label": entry["method"], "cells": cells}


def gap_lines(label: str, reference: str, by_domain: Mapping[str, Gap], metric: str) -> list[dict[str, Any]]:
    """What the shift costs one configuration, a line a domain: left out, inside, the gap, its reference."""
    lines = []
    for domain, found in by_domain.items():
        error = "" if found.stderr is None else f" ± {words.number(found.stderr, metric)}"
        cells: list[tuple[str, float | None]] = [
            (words.show(cell, metric), cell.mean) for cell in (found.left_out, found.inside)
        ]
        cells += [(f"{format_difference(found.gap, metric)}{error}", found.gap), (reference, None)]
        lines.append({"label": f"{label}, {domain}", "cells": cells})
    return lines

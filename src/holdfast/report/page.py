"""One self-contained page about a set of records: what came out, what it cost, what was run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.record import RunRecord
from holdfast.report import analyses, expert_pictures, general, pictures, plots, routing, slot_pictures, words
from holdfast.report.against import Against, against_baseline, told_difference, told_p
from holdfast.report.decision import decide
from holdfast.report.forgetting import panels
from holdfast.report.labels import grouped
from holdfast.report.stats import Cell
from holdfast.report.table import Row, arena, best, columns, costs, r_matrix, rows
from holdfast.report.template import template
from holdfast.report.transfer import Transfer, transfers

FACTS = {
    "data": "Data",
    "fingerprint": "Data fingerprint",
    "task": "Task",
    "encoder": "Encoder",
    "neck": "Neck",
    "head": "Head",
    "tune": "Tuning",
    "plan": "Plan",
    "select": "Selection",
    "metric": "Selection metric",
    "seed": "Seeds",
    "steps": "Steps",
    "batch": "Batch",
    "lr": "Learning rate",
    "optimizer": "Optimizer",
}


def write_page(records: Iterable[RunRecord], path: Path, *, title: str, metric: str, notes: Sequence[str] = ()) -> Path:
    """Write report.html: readable offline, nothing is fetched."""
    groups = grouped(records)
    everything = [r for group in groups.values() for r in group]
    if not everything:
        raise BadInput(f"no run records to write {path} from: run a comparison first or name another folder")
    table = rows(everything, metric)
    several = len({arena(r) for r in everything}) > 1
    streams = {name: group[0] for name, group in groups.items() if len(group[0].stages) > 1}
    span = _span(list(streams.values()), metric)
    text = template("page.html").render(
        title=title,
        metric=words.metric_name(metric),
        headline=(
            "The records come from several data sets or plans, so no single best is named."
            if several
            else words.headline(table, metric)
        ),
        decision=decide(everything, metric),
        error_note=words.error_note(table),
        targets=columns(table),
        lines=_lines(table, metric),
        against=[_against(entry, metric) for entry in against_baseline(everything, metric)],
        scores=Markup(plots.scores_chart(table, metric)),
        curves=Markup(plots.curves(everything)) if _has_curves(everything) else None,
        streams=[
            (name, record.spec.get("seed"), Markup(plots.stream_heatmap(record, metric, span=span)))
            for name, record in streams.items()
        ],
        forgetting=[(p, [(d, Markup(picture)) for d, picture in p.pictures]) for p in panels(groups, metric)],
        transfers=[_transfer(entry, metric) for entry in transfers(everything, metric)],
        distances=_distances(groups),
        projections=[_pictured(groups, name, pictures.feature_panels) for name in ("projection", "projection-tsne")],
        slots=_pictured(groups, "memory-use", pictures.slot_bars),
        segments=_pictured(groups, "segment-mass", pictures.segment_map),
        slot_maps=[_pictured(groups, name, slot_pictures.slot_panels) for name in ("slot-map", "slot-map-tsne")],
        attentions=_pictured(groups, "slot-attention", slot_pictures.attention_map),
        likeness=_pictured(groups, "slot-diversity", slot_pictures.likeness_bars),
        sizes=[(data, Markup(picture)) for data, picture in slot_pictures.size_maps(everything, metric)],
        routings=routing.lines(groups),
        routed=_pictured(groups, "routing", routing.panels),
        patches=expert_pictures.sections(groups),
        recalls=general.lines(groups),
        recalled=_pictured(groups, "general-memory", general.panels),
        memories=[_memory(entry) for entry in analyses.memories(groups)],
        costs=[_cost(entry) for entry in costs(everything)],
        facts=_facts(everything),
        settings=[(name, _settings(group[0])) for name, group in groups.items()],
        notes=list(notes),
    )
    return write_text(path, text)


def _lines(table: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    """The rows as the template writes them: text, value to sort by, bold or not."""
    targets = columns(table)
    tops = {t: best({r.label: r.cells[t].mean for r in table if t in r.cells}, metric) for t in targets}
    top_average = best({r.label: r.average.mean for r in table if r.average is not None}, metric)
    top_worst = best({r.label: r.worst[1] for r in table if r.worst is not None}, metric)
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
        lines.append({"label": row.label, "cells": [*cells, worst | {"seeds": None, "extra": name}]})
    return lines


def _against(entry: Against, metric: str) -> dict[str, Any]:
    """A line of the tests against the baseline: label, then pairs of text and the value to sort by."""
    pairs, seeds = entry.pairs, entry.seeds
    error = words.number(pairs.stderr, metric)
    return {
        "label": entry.label,
        "cells": [
            (entry.rival, None),
            (f"{told_difference(pairs.difference, metric)} ± {error}", pairs.difference),
            (str(pairs.n), pairs.n),
            (told_p(pairs.p), pairs.p),
            (told_p(entry.p), entry.p),
            (f"{told_p(seeds.p)} (n={seeds.n})", seeds.p),
        ],
    }


def _transfer(entry: Transfer, metric: str) -> dict[str, Any]:
    """A line of the stream's numbers: label, then pairs of text and the value to sort by."""
    cells = (entry.average, entry.backward, entry.forgetting)
    return {"label": entry.label, "cells": [(words.show(c, metric), None if c is None else c.mean) for c in cells]}


def _distances(groups: analyses.Groups) -> dict[str, Any] | None:
    """The bars, and what their errors are."""
    found = analyses.distances(groups)
    if not found:
        return None
    seeds = max(bar.seeds for bars in found.values() for bar in bars.values())
    places = {label: place for place, label in enumerate(groups)}
    picture = Markup(pictures.distance_bars(found, places))
    return {"picture": picture, "seeds": seeds, "noise": f"{analyses.noise(groups):.2f}"}


def _pictured(groups: analyses.Groups, name: str, draw: Callable[[analyses.Shown], Any]) -> dict[str, Any]:
    """The runs that are pictured, each with its pictures, and how many are not."""
    shown, left = analyses.pictured(groups, name)
    drawn = []
    for each in shown:
        made = draw(each)
        many = [("", made)] if isinstance(made, str) else made
        drawn.append((each, [(title, Markup(picture)) for title, picture in many]))
    return {"runs": drawn, "left": left}


def _memory(entry: dict[str, Any]) -> dict[str, Any]:
    """A line of the memories: label, then pairs of text and the value to sort by."""
    digits = {"slots": 0, "effective sources": 1, "effective targets": 1, "weight": 2, "moved": 2}
    shares = ("used sources", "used targets")
    cells = []
    for key in ("slots", "effective sources", "effective targets", *shares, "weight", "moved"):
        value = entry[key]
        told = words.MISSING if value is None else f"{value:.0%}" if key in shares else f"{value:,.{digits[key]}f}"
        cells.append((told, value))
    return {"label": entry["label"], "cells": cells}


def _cost(entry: dict[str, Any]) -> dict[str, Any]:
    """A line of the costs table: label, then pairs of text and the value to sort by."""

    def told(key: str, digits: int) -> tuple[str, float | None]:
        value = entry[key]
        return (words.MISSING if value is None else f"{value:,.{digits}f}"), value

    keys = (("seconds", 1), ("examples_per_second", 0), ("peak_memory_mb", 0), ("learning_parameters", 0))
    return {"label": entry["method"], "cells": [*(told(k, d) for k, d in keys), told("runs", 0)]}


def _facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """What was run, each with the values that occur."""
    found = [(name, _values(r.spec.get(key) for r in records)) for key, name in FACTS.items()]
    found.append(("Runs", str(len(records))))
    total = sum(r.cost.get("seconds") or 0.0 for r in records)
    found.append(("Time, all runs", f"{total:,.0f} s" if total < 7200 else f"{total / 3600:,.1f} h"))
    found.append(("Holdfast", _values(" ".join(map(str, r.code.values())) for r in records)))
    for key in dict.fromkeys(k for r in records for k in r.machine):
        found.append((key.replace("_", " ").capitalize(), _values(r.machine.get(key) for r in records)))
    return [(name, value) for name, value in found if value]


def _values(values: Iterable[Any]) -> str:
    """Distinct values in order: `0, 1, 2`; nothing where none is set."""
    given = list(values)
    if all(v is None for v in given):
        return ""
    numeric = all(isinstance(v, int | float) for v in given)
    distinct = dict.fromkeys("none" if v is None else str(v) for v in (sorted(given) if numeric else given))
    return ", ".join(distinct)


def _settings(record: RunRecord) -> str:
    return json.dumps({k: v for k, v in record.spec.items() if k != "seed"}, indent=1, sort_keys=True)


def _span(streams: Sequence[RunRecord], metric: str) -> tuple[float, float] | None:
    """The lowest and the highest score of all streams, so that their colours compare."""
    values = [v for r in streams for line in r_matrix(r, metric) for v in line if math.isfinite(v)]
    return (min(values), max(values)) if values else None


def _has_curves(records: Sequence[RunRecord]) -> bool:
    return any(e.get("valid") for r in records for s in r.stages for e in s.get("history", []))

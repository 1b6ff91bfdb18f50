"""One self-contained page about a set of records: what came out, what it cost, what was run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.record import RunRecord
from holdfast.report import expert_pictures, general, lines, pictures, plots, routing, sections, slot_pictures, words
from holdfast.report.decision import decide
from holdfast.report.forgetting import panels
from holdfast.report.gap import INSIDE, gaps
from holdfast.report.labels import grouped
from holdfast.report.plots import cost_chart
from holdfast.report.runs import configurations, facts
from holdfast.report.significance import against_baseline
from holdfast.report.streams import transfers
from holdfast.report.table import columns, costs, data_and_plan, rows, score_matrix, source_columns
from holdfast.report.terminal import Grid, grid_map


def write_report(
    records: Iterable[RunRecord],
    path: Path,
    *,
    title: str,
    metric: str,
    notes: Sequence[str] = (),
    source: Sequence[str] = (),
) -> Path:
    """Write report.html: readable offline, nothing is fetched. `source` is how a command line names the data."""
    groups = grouped(records)
    everything = [r for group in groups.values() for r in group]
    if not everything:
        raise BadInput(f"no run records to write {path} from: run a comparison first or name another folder")
    text = template("page.html").render(
        title=title,
        metric=words.metric_name(metric),
        **_scores(everything, groups, metric),
        **_streams(everything, groups, metric),
        **_looked_at(everything, groups, metric),
        facts=facts(everything),
        configurations=configurations(groups, source),
        notes=list(notes),
    )
    return write_text(path, text)


def _scores(everything: Sequence[RunRecord], groups: sections.Groups, metric: str) -> dict[str, Any]:
    """What came out and what it cost: sentences, tables, charts."""
    table, spent = rows(everything, metric), costs(everything)
    # runs inside the domains are what the others are held against, not rivals of them
    rivals = [r for r in everything if r.spec.get("plan") != INSIDE] or everything
    several = len({data_and_plan(r) for r in rivals}) > 1
    ids = {r.id for r in rivals}
    shown = {label for label, group in groups.items() if any(r.id in ids for r in group)}
    headline = (
        "The records come from several data sets or plans, so no single best is named."
        if several
        else words.headline([row for row in table if row.label in shown], metric)
    )
    bought = None if several else cost_chart(table, spent, metric, shown=shown)
    curved = {label for label, group in groups.items() if _has_curves(group)}
    return {
        "headline": headline,
        "decision": decide(rivals, metric),
        "error_note": words.error_note(table),
        "targets": columns(table),
        "scored": "pair of source and target" if all(row.paired for row in table) else "target domain",
        "owned": source_columns(table),
        "own_note": words.OWN,
        "lines": lines.score_lines(table, metric),
        "methods": list(dict.fromkeys(str(group[0].spec["method"]) for group in groups.values())),
        "keys": plots.legend(groups),
        "against": [lines.against_line(entry, metric) for entry in against_baseline(everything, metric)],
        "scores": Markup(plots.scores_chart(table, metric)),
        "inside": [
            line
            for label, reference, found in gaps(everything, metric)
            for line in lines.gap_lines(label, reference, found, metric)
        ],
        "curves": Markup(plots.curves(everything)) if curved else None,
        "curve_keys": plots.legend(groups, curved),
        "costs": [lines.cost_line(entry) for entry in spent],
        "bought": None if bought is None else Markup(bought),
        "bought_keys": plots.legend(groups, shown),
    }


def _streams(everything: Sequence[RunRecord], groups: sections.Groups, metric: str) -> dict[str, Any]:
    """What happened along streams, where there were some."""
    firsts = {name: group[0] for name, group in groups.items() if len(group[0].stages) > 1}
    span = _span(list(firsts.values()), metric)
    return {
        "streams": [
            (name, record.spec.get("seed"), Markup(plots.stream_heatmap(record, metric, span=span)))
            for name, record in firsts.items()
        ],
        "forgetting": [(p, [(d, Markup(picture)) for d, picture in p.pictures]) for p in panels(groups, metric)],
        "transfers": [lines.transfer_line(entry, metric) for entry in transfers(everything, metric)],
    }


def _looked_at(everything: Sequence[RunRecord], groups: sections.Groups, metric: str) -> dict[str, Any]:
    """What analyses found, and how memories of several sizes did."""
    return {
        "distances": _distances(groups),
        "projections": [_pictured(groups, name, pictures.feature_panels) for name in ("projection", "projection-tsne")],
        "slots": _pictured(groups, "memory-use", pictures.slot_bars),
        "segments": _pictured(groups, "segment-mass", pictures.segment_map),
        "slot_maps": [_pictured(groups, name, slot_pictures.slot_panels) for name in ("slot-map", "slot-map-tsne")],
        "attentions": _pictured(groups, "slot-attention", slot_pictures.attention_map),
        "likeness": _pictured(groups, "slot-diversity", slot_pictures.likeness_bars),
        "sizes": [(data, Markup(picture)) for data, picture in slot_pictures.size_maps(everything, metric)],
        "routings": routing.lines(groups),
        "expert_keys": routing.expert_keys,
        "routed": _pictured(groups, "routing", routing.panels),
        "patches": expert_pictures.sections(groups),
        "recalls": general.lines(groups),
        "recalled": _pictured(groups, "general-memory", general.panels),
        "memories": [lines.memory_line(entry) for entry in sections.memories(groups)],
    }


def _distances(groups: sections.Groups) -> dict[str, Any] | None:
    """The bars, and what their errors are."""
    found = sections.distances(groups)
    if not found:
        return None
    seeds = max(bar.seeds for bars in found.values() for bar in bars.values())
    places = {label: place for place, label in enumerate(groups)}
    picture = Markup(pictures.distance_bars(found, places))
    legend = plots.legend(groups, found)
    return {"picture": picture, "legend": legend, "seeds": seeds, "noise": f"{sections.noise(groups):.2f}"}


def _pictured(groups: sections.Groups, name: str, draw: Callable[[sections.Shown], Any]) -> dict[str, Any]:
    """The runs that are pictured, each with its pictures, and how many are not."""
    shown, left = sections.pictured(groups, name)
    drawn = []
    for each in shown:
        made = draw(each)
        many = [("", made)] if isinstance(made, str) else made
        drawn.append((each, [(title, Markup(picture)) for title, picture in many]))
    return {"runs": drawn, "left": left}


def _span(streams: Sequence[RunRecord], metric: str) -> tuple[float, float] | None:
    """The lowest and the highest score of all streams, so that their colours compare."""
    values = [v for r in streams for line in score_matrix(r, metric) for v in line if math.isfinite(v)]
    return (min(values), max(values)) if values else None


def _has_curves(records: Sequence[RunRecord]) -> bool:
    return any(e.get("valid") for r in records for s in r.stages for e in s.get("history", []))


def template(name: str) -> Template:
    """A template by its file; plotly.js is at hand in it, so that a page can be read offline."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    """One for all pages: a template is compiled once."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["plotlyjs"] = Markup(get_plotlyjs())
    return environment


def write_audit(
    path: Path, *, title: str, headline: str, advice: Sequence[str], grids: Sequence[Grid], notes: Sequence[str]
) -> Path:
    """Write audit.html: readable offline, nothing is fetched."""
    drawn = [
        (grid, None if grid.top is None else Markup(grid_map(grid, f"map-{place}"))) for place, grid in enumerate(grids)
    ]
    text = template("audit.html").render(title=title, headline=headline, advice=advice, grids=drawn, notes=notes)
    return write_text(path, text)

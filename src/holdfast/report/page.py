"""Write the HTML report of a set of records as one self-contained file."""

import importlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from holdfast.catalog import ANALYSES, buildable_names
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.report import charts, plots, words
from holdfast.report.explain import recommendation
from holdfast.report.forest import forest_chart, forest_lines, forest_summary
from holdfast.report.predicted import coverage_sections, predicted_sections
from holdfast.report.runs import configurations, facts
from holdfast.report.sections import Cell, Section
from holdfast.report.streams import course_figures, stream_heatmap
from holdfast.report.terminal import Grid, grid_map
from holdfast.stats.decision import Difference
from holdfast.stats.engagement import ENGAGED, Engagement, percent
from holdfast.stats.formatting import MISSING, format_cell, format_difference, format_number, format_p, metric_name
from holdfast.stats.labels import Groups
from holdfast.stats.streams import transfers
from holdfast.stats.summary import Summary
from holdfast.stats.table import score_matrix, shown_columns, source_columns

Line = tuple[str, list[Cell]]  # label and cells of a table


def write_report(
    summary: Summary, path: Path, *, title: str, notes: Sequence[str] = (), source: Sequence[str] = ()
) -> Path:
    """Write the report, readable offline; `source` holds the command-line arguments that name the data."""
    groups, metric = summary.shown.groups, summary.metric
    if not groups:
        raise BadInput(f"no run records for the report {path}: run `holdfast compare` first or name another folder")
    text = _template("page.html").render(
        title=title, metric=metric_name(metric), decision=summary.decision, **_scores(summary),
        **_streams(groups, metric),
        analyses=[*predicted_sections(groups), *coverage_sections(groups), *analysis_sections(groups, metric)],
        facts=facts([r for group in groups.values() for r in group]), configurations=configurations(groups, source),
        notes=list(notes),
    )  # fmt: skip
    return write_text(path, text)


def analysis_sections(groups: Groups, metric: str) -> list[Section]:
    """Collect the sections of all analyses in the catalog that have something to show."""
    modules = dict.fromkeys(ANALYSES[name].target.partition(":")[0] for name in buildable_names("analyses"))
    return [section for name in modules for section in importlib.import_module(name).sections(groups, metric)]


def _scores(summary: Summary) -> dict[str, Any]:
    """Return scores, tests and costs for the template."""
    groups, table, metric = summary.shown.groups, summary.shown.rows, summary.metric
    validated = {
        label for label, group in groups.items()
        if any(entry.get("valid") for r in group for stage in r.stages for entry in stage.get("history", []))
    }  # fmt: skip
    hidden = {*shown_columns(table), *source_columns(table)}
    return {
        "recommendation": recommendation(summary),
        "headroom": words.headroom_text(None if summary.mixed else summary.headroom, metric),
        "forest": forest_chart(summary.differences, metric),
        "forest_summary": forest_summary(summary.differences, metric),
        "forest_lines": forest_lines(summary.differences, metric),
        "error_note": words.error_note(table),
        "targets": shown_columns(table),
        "after_targets": [name for name in words.score_columns(table, metric) if name not in hidden],
        "columns_note": words.columns_note(table),
        "scored": "source-target pair" if all(row.paired for row in table) else "target domain",
        "source_columns": source_columns(table),
        "source_note": words.SOURCE_NOTE,
        "lines": words.score_lines(table, metric),
        "methods": list(dict.fromkeys(str(group[0].spec["method"]) for group in groups.values())),
        "legend_entries": plots.legend(groups),
        "against": [_against_line(test, metric) for test in summary.tests],
        "scores": charts.scores_chart(table, metric),
        "engagement": list(map(_engagement_line, summary.engagements)),
        "threshold": f"{ENGAGED:.0%}",
        "gaps": _gap_lines(summary),
        "curves": charts.validation_chart(groups) if validated else None,
        "curve_legend": plots.legend(groups, validated),
        "costs": [_cost_line(entry) for entry in summary.costs],
    }


def _streams(groups: Groups, metric: str) -> dict[str, Any]:
    """Return the figures and numbers of streams for the template; empty without streams."""
    firsts = {name: group[0] for name, group in groups.items() if len(group[0].stages) > 1}
    scores = [v for r in firsts.values() for line in score_matrix(r, metric) for v in line if math.isfinite(v)]
    span = (min(scores), max(scores)) if scores else None  # one range of colours for all streams
    return {
        "streams": [
            (name, record.spec.get("seed"), stream_heatmap(record, metric, span=span))
            for name, record in firsts.items()
        ],
        "courses": course_figures(groups, metric),
        "transfers": [
            (entry.label, [(format_cell(cell, metric), None if cell is None else cell.mean)
                           for cell in (entry.average, entry.backward, entry.forgetting)])
            for entry in transfers(groups, metric)
        ],
    }  # fmt: skip


def _against_line(test: Difference, metric: str) -> Line:
    pairs, seeds = test.pairs, test.seeds
    difference = f"{format_difference(pairs.difference, metric)} ± {format_number(pairs.stderr, metric)}"
    return test.label + (" (not engaged)" if test.idle else ""), [
        (test.rival, None), (difference, pairs.difference), (str(pairs.n), pairs.n), (format_p(pairs.p), pairs.p),
        (format_p(test.p), test.p), (f"{format_p(seeds.p)} (n={seeds.n})", seeds.p),
    ]  # fmt: skip


def _engagement_line(entry: Engagement) -> Line:
    """Return mechanism, share, range, state, runs, statistics and null of a configuration."""
    spread = f"{percent(entry.low)} to {percent(entry.high)}" if entry.runs > 1 else percent(entry.low)
    return entry.label, [
        (entry.name, None), (percent(entry.share), entry.share), (spread, entry.low), (entry.state, entry.share),
        (str(entry.runs), entry.runs), (_statistics_text(entry.statistics), None), (entry.null, None),
    ]  # fmt: skip


def _statistics_text(statistics: Mapping[str, float | None]) -> str:
    texts = (f"{name.replace('_', ' ')} {value:.3g}" for name, value in statistics.items() if value is not None)
    return ", ".join(texts)


def _gap_lines(summary: Summary) -> list[Line]:
    """Return one line per configuration and domain: held out, in-domain, gap, reference."""
    metric, lines = summary.metric, []
    for label, reference, by_domain in summary.gaps:
        for domain, gap in by_domain.items():
            error = "" if gap.stderr is None else f" ± {format_number(gap.stderr, metric)}"
            cells: list[Cell] = [(format_cell(cell, metric), cell.mean) for cell in (gap.held_out, gap.in_domain)]
            cells += [(f"{format_difference(gap.gap, metric)}{error}", gap.gap), (reference, None)]
            lines.append((f"{label}, {domain}", cells))
    return lines


def _cost_line(entry: Mapping[str, Any]) -> Line:
    def cell(key: str, digits: int, unit: float = 1) -> Cell:
        value = entry[key]
        return (MISSING if value is None else f"{value / unit:,.{digits}f}"), value

    keys = (("seconds", 1), ("examples_per_second", 0), ("peak_memory_mb", 0), ("learning_parameters", 0))
    return entry["method"], [*(cell(k, d) for k, d in keys), cell("macs", 3, 1e6), cell("runs", 0)]


def write_audit(
    path: Path, *, title: str, headline: str, advice: Sequence[str], grids: Sequence[Grid], notes: Sequence[str]
) -> Path:
    """Write the HTML report of an audit, readable offline."""
    figures = [(grid, None if grid.top is None else grid_map(grid, f"map-{i}")) for i, grid in enumerate(grids)]
    text = _template("audit.html").render(title=title, headline=headline, advice=advice, grids=figures, notes=notes)
    return write_text(path, text)


def write_watch(
    path: Path, *, title: str, headline: str, alerts: Sequence[str], grids: Sequence[Grid],
    figures: Sequence[tuple[str, str]], notes: Sequence[str],
) -> Path:  # fmt: skip
    """Write the HTML report of `holdfast watch`, readable offline."""
    values = {"title": title, "headline": headline, "alerts": alerts, "grids": grids, "figures": figures}
    return write_text(path, _template("watch.html").render(**values, notes=notes))


@cache
def _template(name: str) -> Template:
    """Compile a template by file name."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template(name)

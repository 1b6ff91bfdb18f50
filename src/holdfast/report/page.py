"""Write the HTML report of a set of records as one self-contained file."""

import importlib
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from holdfast.catalog import ANALYSES, buildable_names
from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from holdfast.report import charts, plots, streams, words
from holdfast.report.explain import recommendation
from holdfast.report.plots import Chart
from holdfast.report.predicted import coverage_sections, predicted_sections
from holdfast.report.runs import configurations, facts
from holdfast.report.sections import Section
from holdfast.report.terminal import Grid, grid_map
from holdfast.stats.engagement import ENGAGED
from holdfast.stats.labels import Groups
from holdfast.stats.summary import Summary
from holdfast.stats.table import score_matrix, shown_columns, source_columns


def write_report(
    summary: Summary, path: Path, *, title: str, notes: Sequence[str] = (), source: Sequence[str] = ()
) -> Path:
    """Write the report, readable offline; `source` holds the command-line arguments that name the data."""
    groups, metric = summary.shown.groups, summary.metric
    if not groups:
        raise BadInput(f"no run records for the report {path}: run `holdfast compare` first or name another folder")
    text = _template("page.html").render(
        title=title, notes=notes, summary=summary, recommendation=recommendation(summary),
        streams=_stream_figures(groups, metric),
        analyses=[*predicted_sections(groups), *coverage_sections(groups), *analysis_sections(groups, metric)],
        facts=facts([r for group in groups.values() for r in group]), configurations=configurations(groups, source),
    )  # fmt: skip
    return write_text(path, text)


def analysis_sections(groups: Groups, metric: str) -> list[Section]:
    """Collect the sections of all analyses in the catalog that have something to show."""
    modules = dict.fromkeys(ANALYSES[name].target.partition(":")[0] for name in buildable_names("analyses"))
    return [section for name in modules for section in importlib.import_module(name).sections(groups, metric)]


def _stream_figures(groups: Groups, metric: str) -> list[tuple[str, Any, Chart]]:
    """Return label, seed and scores after every stage of the first run per stream; one range of colours for all."""
    firsts = {name: group[0] for name, group in groups.items() if len(group[0].stages) > 1}
    scores = [v for r in firsts.values() for line in score_matrix(r, metric) for v in line if math.isfinite(v)]
    span = (min(scores), max(scores)) if scores else None
    return [(n, r.spec.get("seed"), streams.stream_heatmap(r, metric, span=span)) for n, r in firsts.items()]


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
    modules = {"charts": charts, "plots": plots, "stages": streams, "words": words}
    tables = {"shown_columns": shown_columns, "source_columns": source_columns, "threshold": f"{ENGAGED:.0%}"}
    environment.globals |= modules | tables
    return environment.get_template(name)

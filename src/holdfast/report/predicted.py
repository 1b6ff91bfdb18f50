"""Predicted against observed numbers per test domain, and the coverage of prediction intervals and sets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.record import RunRecord
from holdfast.report.axes import Axis
from holdfast.report.marks import DOTTED, Errors, Points
from holdfast.report.plots import COLOURS, Chart, Plot
from holdfast.report.sections import Cell, Figure, RunFigures, Section, first_seeds, mean_cell, run_name
from holdfast.stats.formatting import MISSING, format_number
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean

TITLE = "Predicted against observed"
COLUMNS = ("method", "coverage (%)", "lowest coverage (%)", "domain", "interval width")
TEXT = (
    "Each point is a test example of a domain that the run was not trained on; on the dotted line the prediction is "
    "equal to the observation. Bars are prediction intervals, calibrated on validation rows of the training domains. "
    "In a new domain they may cover fewer examples than intended: the table shows how many."
)
SET_TITLE = "Coverage of prediction sets"
SET_TEXT = (
    "`holdfast predict --coverage` returns sets of labels, or intervals, that should contain the truth with the "
    "nominal probability. The table shows how often they do per domain, with the run that did not train on it and "
    "thresholds of the other left-out domains. Split sets have one threshold, Mondrian sets the largest of the "
    "domains. Sets always contain the most probable label, so that their coverage is at least the accuracy."
)
NAMES = {"split": "split", "mondrian": "Mondrian"}


def predicted_sections(groups: Groups) -> list[Section]:
    """Return the section with one figure per run and domain; empty without predicted numbers."""
    selected, left_out = first_seeds(groups, _predictions)
    runs = [
        RunFigures(f"{run_name(label, record.episode)}, seed {record.spec.get('seed')}", _figures(record, predictions))
        for label, record, predictions in selected
    ]
    lines = [(label, cells) for label, group in groups.items() if (cells := _coverage(group))]
    return [Section(TITLE, TEXT, columns=COLUMNS, rows=lines, runs=runs, left_out=left_out)] if runs else []


def _predictions(record: RunRecord) -> Mapping[str, Any] | None:
    return record.stages[-1].get("predictions") or None


def _figures(record: RunRecord, predictions: Mapping[str, Any]) -> list[Figure]:
    return [
        (domain, scatter(points, f"predicted-{record.id}-{number}"))
        for number, (domain, points) in enumerate(predictions.items())
    ]


def scatter(points: Mapping[str, Sequence[float]], name: str) -> Chart:
    """Draw predictions over observations with their intervals, and the line where both are equal."""
    observed, predicted, errors = points["observed"], points["predicted"], None
    if "low" in points:
        above = [high - value for high, value in zip(points["high"], predicted, strict=True)]
        below = [value - low for low, value in zip(points["low"], predicted, strict=True)]
        errors = Errors(above, below, width=0, thickness=0.5)
    ends = [min(*observed, *predicted), max(*observed, *predicted)]
    tips = [f"observed {a:.4g}, predicted {b:.4g}" for a, b in zip(observed, predicted, strict=True)]
    equal = Points(ends, ends, size=0, line=DOTTED)
    marks = Points(list(observed), list(predicted), tips, colour=COLOURS[0], size=5, errors=errors)
    return Plot(equal, marks, x=Axis("observed"), y=Axis("predicted")).html(name, height=320, legend=False)


def _coverage(group: Sequence[RunRecord]) -> list[Cell]:
    """Return mean coverage, the lowest coverage with its domain, and the mean width; empty without intervals."""
    scores = [(domain, each) for r in group for domain, each in r.stages[-1]["test"].items() if "coverage" in each]
    if not scores:
        return []
    by_domain: dict[str, list[float | None]] = {}
    for domain, each in scores:
        by_domain.setdefault(domain, []).append(each["coverage"])
    means = {domain: 100 * value for domain, values in by_domain.items() if (value := mean(values)) is not None}
    lowest = min(means, key=lambda domain: means[domain], default="")
    width = mean(each["interval_width"] for _, each in scores)
    low: Cell = (f"{means[lowest]:.1f}", means[lowest]) if lowest else (MISSING, None)
    return [mean_cell(means.values(), 1), low, (lowest, None), (format_number(width, "interval_width"), width)]


def coverage_sections(groups: Groups) -> list[Section]:
    """Return the section with one row per configuration and left-out domain; empty without measured sets."""
    measured = {label: list(_measured_sets(group)) for label, group in groups.items()}
    entries = [levels for each in measured.values() for _, levels in each]
    pairs = list(dict.fromkeys((level, method) for levels in entries for level in levels for method in levels[level]))
    if not pairs:
        return []
    rows = []
    for label, domains in measured.items():
        rows += [(run_name(label, domain), _set_cells([levels], pairs)) for domain, levels in domains]
        if len(domains) > 1:
            rows.append((f"{label}, mean over domains", _set_cells([levels for _, levels in domains], pairs)))
    names = [f"{NAMES[method]} at {100 * float(level):g}%: coverage (%), size" for level, method in pairs]
    return [Section(SET_TITLE, SET_TEXT, columns=["domain", *names], rows=rows)]


def _measured_sets(group: Sequence[RunRecord]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for record in group:
        yield from record.stages[-1].get("sets", {}).items()


def _set_cells(domains: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[Cell]:
    """Return the mean coverage and the mean size over domains."""
    cells: list[Cell] = []
    for level, method in pairs:
        entries = [entry for levels in domains if (entry := levels.get(level, {}).get(method)) is not None]
        coverage, size = (mean(entry[key] for entry in entries) for key in ("coverage", "size"))
        cells.append((MISSING, None) if coverage is None else (f"{100 * coverage:.1f}, {size:.3g}", coverage))
    return cells

"""Coverage of prediction sets on left-out domains, next to the nominal coverage."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.record import RunRecord
from holdfast.report.sections import Cell, Section, run_name
from holdfast.stats.formatting import MISSING
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean

TITLE = "Coverage of prediction sets"
TEXT = (
    "`holdfast predict --coverage` returns sets of labels, or intervals, that should contain the truth with the "
    "nominal probability. The table shows how often they do per domain, with the run that did not train on it and "
    "thresholds of the other left-out domains. Split sets have one threshold, Mondrian sets the largest of the "
    "domains. Sets always contain the most probable label, so that their coverage is at least the accuracy."
)
NAMES = {"split": "split", "mondrian": "Mondrian"}


def coverage_sections(groups: Groups) -> list[Section]:
    """Return the section with one row per configuration and left-out domain; empty without measured sets."""
    measured = {label: list(_entries(group)) for label, group in groups.items()}
    entries = [levels for each in measured.values() for _, levels in each]
    pairs = list(dict.fromkeys((level, method) for levels in entries for level in levels for method in levels[level]))
    if not pairs:
        return []
    rows = []
    for label, domains in measured.items():
        rows += [(run_name(label, domain), _cells(levels, pairs)) for domain, levels in domains]
        if len(domains) > 1:
            rows.append((f"{label}, mean over domains", _means([levels for _, levels in domains], pairs)))
    names = [f"{NAMES[method]} at {100 * float(level):g}%: coverage (%), size" for level, method in pairs]
    return [Section(TITLE, TEXT, columns=["domain", *names], rows=rows)]


def _entries(group: Sequence[RunRecord]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for record in group:
        yield from record.stages[-1].get("sets", {}).items()


def _cells(levels: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> list[Cell]:
    entries = [levels.get(level, {}).get(method) for level, method in pairs]
    return [(MISSING, None) if e is None else _cell(e["coverage"], e["size"]) for e in entries]


def _means(domains: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[Cell]:
    """Return the mean coverage and the mean size over domains."""
    cells: list[Cell] = []
    for level, method in pairs:
        entries = [e for levels in domains if (e := levels.get(level, {}).get(method)) is not None]
        coverage, size = (mean(each[key] for each in entries) for key in ("coverage", "size"))
        cells.append((MISSING, None) if coverage is None or size is None else _cell(coverage, size))
    return cells


def _cell(coverage: float, size: float) -> Cell:
    return f"{100 * coverage:.1f}, {size:.3g}", coverage

"""Sections of the report that show analyses: their structure, and the choice of runs whose figures are shown."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.record import RunRecord
from holdfast.stats.formatting import MISSING
from holdfast.stats.labels import Groups, natural_key
from holdfast.stats.statistics import mean

MAX_RUNS = 12  # runs with figures per section, so that the report stays small
NAMED = 4  # targets in the name of a run

Result = Mapping[str, Any]  # what an analysis stored in a record
Cell = tuple[str, float | None]  # text, value to sort by
EMPTY: Cell = ("", None)
Figure = tuple[str, str]  # caption ("" for a figure of full width), HTML
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one analysis for one run."""

    label: str
    target: str
    seed: Any
    id: str
    result: Result

    @property
    def title(self) -> str:
        return f"{run_name(self.label, self.target)}, seed {self.seed}"


@dataclass(frozen=True)
class RunFigures:
    """Figures of one run below a heading."""

    title: str
    figures: Sequence[Figure]
    text: str = ""
    colours: Sequence[tuple[str, int]] = ()  # colour and number per expert


@dataclass(frozen=True)
class Section:
    """One section of the report: an explanation, then an optional figure, a table and figures per run."""

    title: str
    text: str
    figure: str = ""  # HTML of one figure for all runs
    legend: Sequence[tuple[str, str, str]] = ()  # colour, sign, label
    columns: Sequence[str] = ()  # of the table; the first names the rows
    rows: Sequence[tuple[str, Sequence[Cell]]] = ()
    figure_text: str = ""  # explains the figures of the runs
    runs: Sequence[RunFigures] = ()
    left_out: int = 0  # runs whose figures are not shown


def run_name(label: str, target: str) -> str:
    """Name a run: `mil to films`, or the method alone if no domain was held out."""
    return f"{label} to {target}" if target else label


def target_names(targets: Sequence[str]) -> str:
    """Join the names of targets; of many, name the first and count the others."""
    return ", ".join(targets) if len(targets) <= NAMED else f"{targets[0]} and {len(targets) - 1:,} more domains"


def results_by_target(groups: Groups, name: str) -> Iterator[tuple[str, list[Result]]]:
    """Yield (name of method and target, results of its seeds) of one analysis."""
    for label, group in groups.items():
        by_target: dict[str, list[Result]] = {}
        for record in group:
            if (result := record.analysis.get(name)) is not None:
                by_target.setdefault(target_names(result["targets"]), []).append(result)
        for target in sorted(by_target, key=natural_key):
            yield run_name(label, target), by_target[target]


def select_runs(groups: Groups, name: str) -> tuple[list[RunResult], int]:
    """Return the runs whose results of an analysis are drawn, and the number of other runs that have a result."""
    selected, left_out = first_seeds(groups, lambda record: record.analysis.get(name))
    runs = [RunResult(label, target_names(r["targets"]), rec.spec.get("seed"), rec.id, r) for label, rec, r in selected]
    return runs, left_out


def first_seeds(groups: Groups, get: Callable[[RunRecord], T | None]) -> tuple[list[tuple[str, RunRecord, T]], int]:
    """Select the first seed per target and method that `get` returns a value for, up to `MAX_RUNS`."""
    first: dict[tuple[str, str], tuple[str, RunRecord, T]] = {}
    total = 0
    for label, group in groups.items():
        for record in group:
            if (value := get(record)) is not None:
                total += 1
                first.setdefault((record.episode, label), (label, record, value))
    positions = {label: position for position, label in enumerate(groups)}
    order = sorted(first, key=lambda key: (natural_key(key[0]), positions[key[1]]))
    selected = [first[key] for key in order[:MAX_RUNS]]
    return selected, total - len(selected)


def figure_section(
    groups: Groups, name: str, title: str, text: str, draw: Callable[[RunResult], Sequence[Figure]], *,
    describe: Callable[[RunResult], str] = lambda run: "",
    colours: Callable[[RunResult], Sequence[tuple[str, int]]] = lambda run: (),
    rows: Callable[[Sequence[Result]], Iterable[tuple[str, Sequence[Cell]]]] = lambda results: (),
    **options: Any,
) -> list[Section]:  # fmt: skip
    """Return the section of one analysis with the figures that `draw` makes per run; empty without results.

    `rows` returns table rows of one method and target from the results of its seeds; their labels are appended to the
    names of method and target. `options` are further fields of the section.
    """
    selected, left_out = select_runs(groups, name)
    runs = [RunFigures(run.title, draw(run), describe(run), colours(run)) for run in selected]
    table = [
        (of_target + label, cells)
        for of_target, results in results_by_target(groups, name)
        for label, cells in rows(results)
    ]
    return [Section(title, text, rows=table, runs=runs, left_out=left_out, **options)] if runs else []


def word_cell(text: str) -> Cell:
    """Return a cell of text."""
    return text, None


def number_cell(value: float | None, form: str = ",") -> Cell:
    """Return a number in a format; empty for None."""
    return EMPTY if value is None else (format(value, form), value)


def share_cell(value: float | None) -> Cell:
    """Return a share in percent; empty for None."""
    return EMPTY if value is None else (f"{100 * value:.1f}", value)


def mean_cell(values: Iterable[float | None], digits: int = 2) -> Cell:
    """Return the mean of the values that are not None, as text and as a number."""
    average = mean(values)
    return (MISSING, None) if average is None else (f"{average:.{digits}f}", average)

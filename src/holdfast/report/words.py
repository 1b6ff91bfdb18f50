"""Lines of the tables of a comparison and sentences on them, for the terminal and the HTML report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.report.sections import Cell as TableCell
from holdfast.stats.decision import LEVEL, ByExample, Difference, p_relation
from holdfast.stats.engagement import Engagement, percent
from holdfast.stats.formatting import MISSING, format_cell, format_difference, format_number, format_p, is_percent
from holdfast.stats.gap import Headroom
from holdfast.stats.labels import BASELINE, Groups
from holdfast.stats.statistics import Cell
from holdfast.stats.streams import transfers
from holdfast.stats.summary import Summary
from holdfast.stats.table import Row, best, columns, low_name, shown_columns, source_columns

Line = tuple[str, list[TableCell]]  # label and cells of a table
SOURCE_NOTE = "(valid): validation rows of the single training domain, not part of any average"


def seeds(rows: Iterable[Row]) -> str:
    """Count the seeds of a table: `3 seeds`, `2 to 3 seeds`."""
    counts = [cell.n for row in rows for cell in row.cells.values()] or [0]
    low, high = min(counts), max(counts)
    return f"{low} to {high} seeds" if low < high else f"{high} seed{'s' if high != 1 else ''}"


def error_note(rows: Sequence[Row]) -> str:
    """Explain ± in a table and the number of seeds."""
    if any(cell.stderr is not None for row in rows for cell in row.cells.values()):
        return f"{seeds(rows)}; ± is the standard error over seeds"
    return f"{seeds(rows)}, so no standard error"


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """One cell of the table of scores as it is shown."""

    text: str
    value: float | None  # to sort by
    best: bool = False
    seeds: int | None = None  # set if it is fewer than in other cells
    domain: str | None = None  # set in the column of the worst domain


def score_columns(rows: Sequence[Row], metric: str) -> list[str]:
    """Return the columns of the table of scores: targets, average, worst domain, then scores of single sources.

    Of many targets the table shows the largest, and the 10th percentile over all of them.
    """
    low = [low_name(metric)] if any(row.low is not None for row in rows) else []
    return [*shown_columns(rows), "average", *low, "worst", *source_columns(rows)]


def columns_note(rows: Sequence[Row]) -> str:
    """Explain which targets a table shows; empty if it shows all."""
    count, shown = len(columns(rows)), len(shown_columns(rows))
    if shown == count:
        return ""
    return f"the {shown} largest of {count:,} target domains; average, percentile and worst are over all of them"


def score_lines(rows: Sequence[Row], metric: str) -> list[tuple[str, list[ScoreCell]]]:
    """Return label and cells per row, one per name in `score_columns`."""
    most = max((cell.n for row in rows for cell in row.cells.values()), default=0)
    columns = [[row.cells.get(target) for row in rows] for target in shown_columns(rows)]
    columns.append([row.average for row in rows])
    columns += [[row.low for row in rows]] if any(row.low is not None for row in rows) else []
    columns.append([None if row.worst is None else Cell(row.worst[1], None, None, most) for row in rows])
    columns += [[row.source_cells.get(source) for row in rows] for source in source_columns(rows)]
    worst = score_columns(rows, metric).index("worst")
    lines: list[tuple[str, list[ScoreCell]]] = [(row.label, []) for row in rows]
    for position, cells in enumerate(columns):
        top = best({i: cell.mean for i, cell in enumerate(cells) if cell is not None}, metric)
        for i, (row, cell) in enumerate(zip(rows, cells, strict=True)):
            mean, fewer = (None, None) if cell is None else (cell.mean, cell.n if cell.n < most else None)
            domain = row.worst[0] if position == worst and row.worst is not None else None
            lines[i][1].append(ScoreCell(format_cell(cell, metric), mean, i in top, fewer, domain))
    return lines


def headroom_text(headroom: Headroom | None, metric: str) -> str:
    """Return a sentence on the headroom of the baseline; empty without it."""
    if headroom is None:
        return ""
    loss, percent = headroom.loss, is_percent(metric)
    source = "validation rows of its training domains" if headroom.validated else "a domain that it was trained on"
    error = "" if loss.stderr is None else f" ± {format_number(loss.stderr, metric)}"
    change = f"{'loses' if loss.mean >= 0 else 'gains'} {format_number(abs(loss.mean), metric)}{error}"
    level = format_number(headroom.level, metric) + (" %" if percent else "")
    meaning = "there is room for methods that resist the shift"
    if loss.stderr is None or loss.mean < 2 * loss.stderr:
        meaning = "it is not clearly above zero, so that methods against the shift have little to gain"
    unit = " points" if percent else ""
    return f"{BASELINE} reaches {level} on {source} and {change}{unit} on a domain that it has never seen: {meaning}."


def baseline_note(tests: Sequence[Difference], metric: str) -> str | None:
    """Summarise the tests against the baseline in one sentence; None without tests."""
    if not tests:
        return None
    significant = [test for test in tests if test.significant]
    pairs = {test.pairs.n for test in tests}
    count = str(min(pairs)) if len(pairs) == 1 else f"{min(pairs)} to {max(pairs)}"
    procedure = f"paired t test over {count} seed-target pairs, Holm-corrected p < {LEVEL}"
    rivals = {test.rival for test in tests}
    rival = rivals.pop() if len(rivals) == 1 else f"their {BASELINE}"
    idle = _idle_labels(tests)
    rest = len(tests) - len(significant) - len(idle)
    note = [f"not engaged: {', '.join(idle)}"] if idle else []
    if not significant:
        none = f"no{' other' if idle else ''} method differs significantly from {rival} ({procedure})"
        return "; ".join([*note, *([none] if rest else [])])
    differences = [
        f"{test.label} {format_difference(test.pairs.difference, metric)} (p {p_relation(test.p)})"
        for test in significant
    ]
    others = [f"{rest} other method{' does' if rest == 1 else 's do'} not differ significantly"] if rest else []
    different = f"significantly different from {rival} ({procedure}): {', '.join(differences)}"
    return "; ".join([different, *others, *note])


def by_example_note(tests: Sequence[ByExample]) -> str | None:
    """Summarise the tests per example in one sentence; None without tests."""
    if not tests:
        return None
    procedure = f"McNemar's test on the same examples, Holm-corrected p < {LEVEL}; other seeds may differ"
    differences = [
        f"{test.label} is correct on {test.test.only_a} examples that {test.rival} gets wrong, and wrong on "
        f"{test.test.only_b} that it gets right (p {p_relation(test.p)})"
        for test in tests
        if test.significant
    ]
    idle = _idle_labels(tests)
    note = f"not engaged: {', '.join(idle)}" if idle else ""
    if idle and len(idle) == len(tests):
        return note
    if not differences:
        other = " other" if idle else ""
        differences = [f"no{other} method differs significantly from {BASELINE}"]
    text = f"on the test examples of these runs {'; '.join(differences)} ({procedure})"
    return f"{text}; {note}" if note else text


def _idle_labels(tests: Sequence[Difference] | Sequence[ByExample]) -> list[str]:
    """Return the methods that do not differ from their baseline and have no engaged mechanism: nothing was tested."""
    return [test.label for test in tests if test.idle and not test.significant]


def inactive_notes(entries: Iterable[Engagement]) -> list[str]:
    """Return one line per configuration: `erm + memory: memory inactive, 0.2% of predictions depend on it`."""
    by_label: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.is_engaged:
            text = f"{entry.name} inactive, {percent(entry.share)} of predictions depend on it"
            by_label.setdefault(entry.label, []).append(text)
    return [f"{label}: {'; '.join(texts)}" for label, texts in by_label.items()]


def against_lines(tests: Sequence[Difference], metric: str) -> list[Line]:
    """Return baseline, difference, pairs, p, corrected p, and p over seeds per row."""
    lines = []
    for test in tests:
        pairs, seeds = test.pairs, test.seeds
        difference = f"{format_difference(pairs.difference, metric)} ± {format_number(pairs.stderr, metric)}"
        lines.append((test.label + (" (not engaged)" if test.idle else ""), [
            (test.rival, None), (difference, pairs.difference), (str(pairs.n), pairs.n), (format_p(pairs.p), pairs.p),
            (format_p(test.p), test.p), (f"{format_p(seeds.p)} (n={seeds.n})", seeds.p),
        ]))  # fmt: skip
    return lines


def engagement_lines(entries: Sequence[Engagement]) -> list[Line]:
    """Return mechanism, share, range, state, runs, statistics and null per configuration."""
    lines = []
    for each in entries:
        spread = f"{percent(each.low)} to {percent(each.high)}" if each.runs > 1 else percent(each.low)
        statistics = (f"{n.replace('_', ' ')} {value:.3g}" for n, value in each.statistics.items() if value is not None)
        lines.append((each.label, [
            (each.name, None), (percent(each.share), each.share), (spread, each.low), (each.state, each.share),
            (str(each.runs), each.runs), (", ".join(statistics), None), (each.null, None),
        ]))  # fmt: skip
    return lines


def gap_lines(summary: Summary) -> list[Line]:
    """Return one line per configuration and domain: held out, in-domain, gap, reference."""
    metric, lines = summary.metric, []
    for label, reference, by_domain in summary.gaps:
        for domain, gap in by_domain.items():
            error = "" if gap.stderr is None else f" ± {format_number(gap.stderr, metric)}"
            cells: list[TableCell] = [(format_cell(cell, metric), cell.mean) for cell in (gap.held_out, gap.in_domain)]
            cells += [(f"{format_difference(gap.gap, metric)}{error}", gap.gap), (reference, None)]
            lines.append((f"{label}, {domain}", cells))
    return lines


def cost_lines(entries: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return time, speed, memory, parameters, multiply-adds and runs per configuration."""
    forms = {
        "seconds": (1, 1), "examples_per_second": (0, 1), "peak_memory_mb": (0, 1), "learning_parameters": (0, 1),
        "macs": (3, 1e6), "runs": (0, 1),
    }  # fmt: skip
    return [
        (entry["method"], [
            (MISSING if (value := entry[key]) is None else f"{value / unit:,.{digits}f}", value)
            for key, (digits, unit) in forms.items()
        ])
        for entry in entries
    ]  # fmt: skip


def transfer_lines(groups: Groups, metric: str) -> list[Line]:
    """Return average, backward transfer and forgetting per configuration of a stream."""
    return [
        (entry.label, [(format_cell(cell, metric), None if cell is None else cell.mean)
                       for cell in (entry.average, entry.backward, entry.forgetting)])
        for entry in transfers(groups, metric)
    ]  # fmt: skip

"""Numbers and findings in words, so that the console and the page say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.record import LOWER_IS_BETTER
from holdfast.report.statistics import Cell, pooled
from holdfast.report.table import Row

PLAIN = ("nll", "ece", "mcc", "loss", "perplexity", "w2v_similarity")  # not shares of one: shown as they are
MISSING = "–"
OWN = "(valid): validation rows of the domain that trained, which no average counts"
SPELLED = {
    "macro_f1": "macro-F1", "micro_f1": "micro-F1", "entity_f1": "entity F1", "answer_f1": "answer F1",
    "roc_auc": "ROC AUC",
}  # fmt: skip


def is_percent(metric: str) -> bool:
    return metric not in PLAIN


def scaled(value: float, metric: str) -> float:
    """The value as it is shown: in percent, or as it is."""
    return 100 * value if is_percent(metric) else value


def number(value: float | None, metric: str) -> str:
    """One decimal of a percentage, three of anything else."""
    if value is None:
        return MISSING
    return f"{scaled(value, metric):.{1 if is_percent(metric) else 3}f}"


def show(cell: Cell | None, metric: str) -> str:
    """`81.2 ± 0.4`, or the mean alone where there is one seed."""
    if cell is None:
        return MISSING
    error = "" if cell.stderr is None else f" ± {number(cell.stderr, metric)}"
    return number(cell.mean, metric) + error


def metric_name(metric: str) -> str:
    """`accuracy (%)`, `ece`."""
    return spelled(metric) + (" (%)" if is_percent(metric) else "")


def spelled(metric: str) -> str:
    """As people write it: `macro-F1`, `balanced accuracy`."""
    return SPELLED.get(metric, metric.replace("_", " "))


def seeds(rows: Iterable[Row]) -> str:
    """`3 seeds`, `2 to 3 seeds`."""
    counts = [cell.n for row in rows for cell in row.cells.values()] or [0]
    low, high = min(counts), max(counts)
    return f"{low} to {high} seeds" if low < high else _plural(high, "seed")


def error_note(rows: Sequence[Row]) -> str:
    """What ± means in this table, and over how many seeds."""
    if any(cell.stderr is not None for row in rows for cell in row.cells.values()):
        return f"{seeds(rows)}; ± is the standard error over seeds"
    return f"{seeds(rows)}, so no standard error"


def headline(rows: Sequence[Row], metric: str) -> str:
    """Which row is best on average, by how much, and whether the seeds can tell."""
    name = spelled(metric)
    scored = [(r, r.average) for r in rows if r.average is not None and math.isfinite(r.average.mean)]
    if not scored:
        return "No method has finished every target domain yet; the table shows what is there."
    scored.sort(key=lambda pair: pair[1].mean, reverse=metric not in LOWER_IS_BETTER)
    (top, mean), rest = scored[0], scored[1:]
    places = _plural(len(top.cells), "pair" if top.paired else "target domain")
    over = f"over {places}{' of source and target' if top.paired else ''} and {_plural(mean.n, 'seed')}"
    found = f"average {name} of {_unit(show(mean, metric), metric)} {over}"
    if not rest:
        return f"{top.label} has an {found}."
    baseline = next((pair for pair in rest if pair[0].baseline), None)
    rival, other = baseline if baseline is not None and not top.baseline else rest[0]
    told = f"{rival.label} ({_unit(show(other, metric), metric)}; {_plural(other.n, 'seed')})"
    level = [row.label for row, cell in rest if not float(number(abs(mean.mean - cell.mean), metric))]
    best = f"{', '.join([top.label, *level[:-1]])} and {level[-1]}" if level else top.label
    if rival.label in level:
        text = f"{best} are level, with an {found}."
    else:
        gap = abs(mean.mean - other.mean)
        points = f"{number(gap, metric)} points" if is_percent(metric) else number(gap, metric)
        judged = f"{points} better than {told}, {_judged(mean, other, metric)}"
        text = f"{best} {'are' if level else 'is'} best, with an {found}: {judged}."
    named = {rival.label, *level}
    near = [row.label for row, cell in rest if row.label not in named and _within(mean, cell)]
    if near:
        text += f" Also within the error of the best: {', '.join(near)}."
    return text


def _judged(a: Cell, b: Cell, metric: str) -> str:
    error, gap = pooled(a, b), abs(a.mean - b.mean)
    if error is None:
        return "but a single seed gives no error to judge that by"
    told = f"the pooled standard error of {number(error, metric)}"
    if _within(a, b):
        return f"which is within the error: not more than {told}"
    if gap < 2 * error:
        return f"which is more than {told} but less than twice that, so weak evidence"
    if gap > 10 * error:
        return f"which is more than ten times {told}"
    return f"which is {gap / error:.1f} times {told}"


def _within(a: Cell, b: Cell) -> bool:
    error = pooled(a, b)
    return error is not None and abs(a.mean - b.mean) <= error


def _unit(text: str, metric: str) -> str:
    return f"{text} %" if is_percent(metric) else text


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")

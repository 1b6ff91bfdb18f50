"""Which configuration to take, and why: another than the baseline only where it is better by more than chance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import BASELINE, grouped
from holdfast.report.significance import LEVEL, against_baseline, by_example, format_difference, format_p
from holdfast.report.table import Row, data_and_plan, rows
from holdfast.report.words import number


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen row, the spec of one of its runs, and the reason in one or two sentences."""

    label: str
    spec: dict[str, Any]
    why: str


def decide(records: Iterable[RunRecord], metric: str) -> Decision | None:
    """None where nothing is finished, or where runs are of several data sets or plans."""
    groups = grouped(records)
    everything = [record for group in groups.values() for record in group]
    if len({data_and_plan(record) for record in everything}) != 1:
        return None
    up = -1 if metric in LOWER_IS_BETTER else 1
    table = [row for row in rows(everything, metric) if row.average is not None and math.isfinite(row.average.mean)]
    table.sort(key=lambda row: -up * row.average.mean if row.average is not None else 0.0)
    if not table:
        return None
    label, why = _chosen(everything, table, metric, up)
    return Decision(label, groups[label][0].spec, why)


def _chosen(records: Sequence[RunRecord], table: Sequence[Row], metric: str, up: int) -> tuple[str, str]:
    """The label and the reason; the table is sorted, the best first."""
    bases = [row for row in table if row.baseline]
    if len(table) == 1:
        return table[0].label, "it is the only one that was run to the end"
    if not bases:
        return table[0].label, (
            f"it has the best average, but nothing says whether by more than chance: {BASELINE} was not run beside it"
        )
    tested = {entry.label: entry for entry in against_baseline(records, metric)}
    for row in table:
        entry = tested.get(row.label)
        if entry is not None and entry.p is not None and entry.p < LEVEL and up * entry.pairs.difference > 0:
            gain = format_difference(entry.pairs.difference, metric)
            seen = f"p {format_p(entry.p)}, paired t over {entry.pairs.n} seed-target pairs, Holm-corrected"
            rival = next(other for other in table if other.label == entry.rival)
            return row.label, f"it is better than {entry.rival}, {gain} on average ({seen}){_worst(row, rival, metric)}"
    simple = f"so the simplest is taken, {bases[0].label}"
    if tested:
        return bases[0].label, f"no method is distinguishable from {BASELINE} to the better, {simple}"
    few = f"fewer than three seeds cannot show a method to be better than {BASELINE}"
    return bases[0].label, f"{few}, {simple}{_seen(records, table)}; --seeds 3 can tell more"


def _seen(records: Sequence[RunRecord], table: Sequence[Row]) -> str:
    """The best method that is right more often than its baseline in the runs at hand, which says nothing of others."""
    tests = {entry.label: entry for entry in by_example(records) if entry.p is not None and entry.p < LEVEL}
    for row in table:
        entry = tests.get(row.label)
        if entry is not None and entry.test.only_a > entry.test.only_b:
            return (
                f", though in these very runs {row.label} is right on more of the same examples than {entry.rival} "
                f"(p {format_p(entry.p)}, McNemar's test), which another seed may turn around"
            )
    return ""


def _worst(row: Row, rival: Row, metric: str) -> str:
    """How it does where it does worst, beside the baseline."""
    if row.worst is None or rival.worst is None:
        return ""
    (name, value), (other, least) = row.worst, rival.worst
    return f"; at its worst {number(value, metric)} ({name}) against {number(least, metric)} ({other})"

"""Recommend a configuration: another one than the baseline only if it is significantly better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.labels import BASELINE, grouped
from holdfast.report.significance import LEVEL, against_baseline, by_example
from holdfast.report.table import Row, data_and_plan, rows
from holdfast.report.words import format_difference, format_number, format_p


@dataclass(frozen=True, slots=True)
class Decision:
    """The recommended row, the spec of one of its runs, and the reason."""

    label: str
    spec: dict[str, Any]
    why: str


def decide(records: Iterable[RunRecord], metric: str) -> Decision | None:
    """Recommend a configuration; None if no run is complete or the records mix data sets or plans."""
    groups = grouped(records)
    records = [record for group in groups.values() for record in group]
    if len({data_and_plan(record) for record in records}) != 1:
        return None
    sign = -1 if metric in LOWER_IS_BETTER else 1
    table = [row for row in rows(records, metric) if row.average is not None and math.isfinite(row.average.mean)]
    table.sort(key=lambda row: -sign * row.average.mean if row.average is not None else 0.0)
    if not table:
        return None
    label, why = _choose(records, table, metric, sign)
    return Decision(label, groups[label][0].spec, why)


def _choose(records: Sequence[RunRecord], table: Sequence[Row], metric: str, sign: int) -> tuple[str, str]:
    """Return label and reason; `table` is sorted, the best row first."""
    baseline = next((row for row in table if row.baseline), None)
    if len(table) == 1:
        return table[0].label, "it is the only configuration with complete runs"
    if baseline is None:
        return table[0].label, f"it has the best average, which cannot be tested because {BASELINE} was not run"
    tests = {test.label: test for test in against_baseline(records, metric)}
    for row in table:
        test = tests.get(row.label)
        if test is not None and test.p is not None and test.p < LEVEL and sign * test.pairs.difference > 0:
            gain = format_difference(test.pairs.difference, metric)
            procedure = f"p {format_p(test.p)}, paired t test over {test.pairs.n} seed-target pairs, Holm-corrected"
            rival = next(other for other in table if other.label == test.rival)
            worst = _compare_worst(row, rival, metric)
            return row.label, f"it is significantly better than {test.rival}, {gain} on average ({procedure}){worst}"
    if tests:
        return (
            baseline.label,
            f"no method is significantly better than {BASELINE}, and {baseline.label} is the simplest",
        )
    return baseline.label, (
        f"fewer than three seeds cannot show that a method is better than {BASELINE}, and {baseline.label} is the "
        f"simplest{_better_by_example(records, table)}; use --seeds 3 for a test over seeds"
    )


def _better_by_example(records: Sequence[RunRecord], table: Sequence[Row]) -> str:
    """Name the best method that is significantly better than its baseline on the examples of these runs."""
    tests = {test.label: test for test in by_example(records) if test.p is not None and test.p < LEVEL}
    for row in table:
        test = tests.get(row.label)
        if test is not None and test.test.only_a > test.test.only_b:
            return (
                f"; in these runs {row.label} is correct on more examples than {test.rival} "
                f"(p {format_p(test.p)}, McNemar's test), but other seeds may differ"
            )
    return ""


def _compare_worst(row: Row, rival: Row, metric: str) -> str:
    """Compare the worst domains of a row and its baseline."""
    if row.worst is None or rival.worst is None:
        return ""
    (domain, score), (other, other_score) = row.worst, rival.worst
    scores = format_number(score, metric), format_number(other_score, metric)
    return f"; its worst domain scores {scores[0]} ({domain}), that of {rival.label} {scores[1]} ({other})"

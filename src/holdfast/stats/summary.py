"""Findings of a comparison, computed once from its records and passed to everything that draws."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.stats.decision import ByExample, Decision, Difference, by_example, decide, differences
from holdfast.stats.engagement import Engagement, engagements
from holdfast.stats.gap import IN_DOMAIN, Gap, Headroom, gaps, headroom
from holdfast.stats.labels import largest
from holdfast.stats.table import Table, costs, experiment, tabulate


@dataclass(frozen=True)
class Summary:
    """Scores, tests, gaps, costs and the decision; configurations count on the most rows that they were trained on.

    In-domain runs are references for the others: they have rows, and do not compete with them.
    """

    metric: str
    records: Sequence[RunRecord]  # all, in the order in which they were passed
    every: Table  # of all records, on any number of rows
    shown: Table  # of the records on the most rows
    competing: Table  # of those that are no references; its labels may be shorter
    mixed: bool  # whether they come from several data sets or plans, so that no method can be recommended
    engagements: list[Engagement]
    tests: list[Difference]  # of all rows that share enough seeds with their baseline
    by_example: list[ByExample]  # where there are no such tests
    differences: list[Difference]  # of rows that compete, best first, tests corrected among them; empty if `mixed`
    gaps: list[tuple[str, str, dict[str, Gap]]]
    headroom: Headroom | None
    costs: list[dict[str, Any]]
    decision: Decision | None

    def with_records(self, changed: Mapping[str, RunRecord]) -> "Summary":
        """Replace records by id with those that have the same scores."""

        def exchanged(table: Table) -> Table:
            groups = {label: [changed.get(r.id, r) for r in group] for label, group in table.groups.items()}
            return replace(table, groups=groups)

        return replace(
            self, records=[changed.get(r.id, r) for r in self.records], every=exchanged(self.every),
            shown=exchanged(self.shown), competing=exchanged(self.competing),
        )  # fmt: skip


def summarise(records: Iterable[RunRecord], metric: str) -> Summary:
    """Compute tables, tests, gaps, costs and the decision of a set of records."""
    records = list(records)
    every, largest_runs = tabulate(records, metric), largest(records)
    shown = every if len(largest_runs) == len(records) else tabulate(largest_runs, metric)
    groups = shown.groups
    rivals = {k: g for k, g in groups.items() if g[0].spec.get("plan") != IN_DOMAIN} or groups
    every_row = len(rivals) == len(groups)
    competing = shown if every_row else tabulate((r for group in rivals.values() for r in group), metric)
    mixed = len({experiment(group[0]) for group in rivals.values()}) > 1
    compared = differences(groups, metric)
    tests, shifts = [each for each in compared if each.tested], gaps(groups, metric)
    entries = [] if mixed else compared if every_row else differences(rivals, metric)
    entries = [entry for entry in entries if math.isfinite(entry.pairs.difference)]
    entries.sort(key=lambda entry: entry.pairs.difference, reverse=metric not in LOWER_IS_BETTER)
    decision = decide([r for r in records if r.spec.get("plan") != IN_DOMAIN] or records, metric)
    if decision is not None:
        # rejected rows are no candidates, but they are in the table and may change the labels of the others
        named = (label for label, group in competing.groups.items() if any(r.spec == decision.spec for r in group))
        decision = replace(decision, label=next(named, decision.label))
    return Summary(
        metric, records, every, shown, competing, mixed, engagements(groups), tests,
        by_example=[] if tests else by_example(groups), differences=entries, gaps=shifts,
        headroom=headroom(groups, metric, shifts), costs=costs(groups), decision=decision,
    )  # fmt: skip

"""Scores of an earlier comparison on the same data, shown next to those of the audit's linear probe."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.record import RunRecord, load
from holdfast.stats.decision import decide
from holdfast.stats.gap import HELD_OUT
from holdfast.stats.labels import CONSTANT
from holdfast.stats.table import Row, tabulate

METRIC = "accuracy"  # of the linear probe


@dataclass(frozen=True)
class Compared:
    """Accuracy per domain of one configuration of the comparison."""

    label: str
    role: str  # choice, baseline or simple
    scores: dict[str, float]


def read_compared(folder: Path | None, dataset: Dataset) -> list[Compared]:
    """Return the choice, ERM and the best simple baseline of a comparison on exactly this data; empty without one."""
    if folder is None or not (folder / "records").is_dir():
        return []
    try:
        records = [r for r in load(folder) if r.spec.get("plan") in HELD_OUT]
    except BadInput:  # damaged records are the concern of `report`
        return []
    records = [r for r in records if r.spec.get("fingerprint") == dataset.fingerprint and _has_metric(r)]
    table = {row.label: row for row in tabulate(records, METRIC).rows if row.average is not None}
    decision = decide(records, str(records[0].spec["metric"])) if records else None
    roles: dict[str, str] = {}
    if decision is not None and decision.label in table:
        roles[decision.label] = "choice"
    for row in table.values():
        if row.baseline:
            roles.setdefault(row.label, "baseline")
    simple = [row for row in table.values() if row.simple and row.label not in CONSTANT]
    if simple:
        roles.setdefault(max(simple, key=_average).label, "simple")
    return [
        Compared(label, role, {domain: cell.mean for domain, cell in table[label].cells.items()})
        for label, role in roles.items()
    ]


def _average(row: Row) -> float:
    assert row.average is not None
    return row.average.mean


def _has_metric(record: RunRecord) -> bool:
    return bool(record.stages) and all(METRIC in scores for scores in record.stages[-1]["test"].values())

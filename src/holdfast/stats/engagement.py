"""Engagement of mechanisms over the runs of a method: which share of validation predictions depends on a memory."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.record import RunRecord
from holdfast.stats.labels import Groups
from holdfast.stats.statistics import mean

ENGAGED = 0.05  # share of validation predictions from which on a mechanism counts as engaged
NAMES = {"general": "general model", "support": "support set"}  # as they are shown, where the record's name is shorter


@dataclass(frozen=True, slots=True)
class Engagement:
    """Share of predictions that depend on one mechanism, over the runs of one configuration."""

    label: str
    mechanism: str
    share: float  # mean over runs
    low: float
    high: float
    runs: int
    predictions: int  # of all runs together
    null: str
    statistics: dict[str, float | None]  # means over runs

    @property
    def is_engaged(self) -> bool:
        return self.share >= ENGAGED

    @property
    def state(self) -> str:
        return "engaged" if self.is_engaged else "inactive"

    @property
    def name(self) -> str:
        return NAMES.get(self.mechanism, self.mechanism)


def engagements(groups: Groups) -> list[Engagement]:
    """Return one entry per configuration and mechanism; runs without a measurement are left out."""
    return [entry for label, group in groups.items() for entry in engagement_of(label, group)]


def engagement_of(label: str, group: Sequence[RunRecord]) -> list[Engagement]:
    """Return the mechanisms of one configuration, in alphabetical order."""
    entries = []
    for mechanism in sorted({name for record in group for name in record.engagement}):
        runs = [record.engagement[mechanism] for record in group if mechanism in record.engagement]
        shares = [float(run["share"]) for run in runs]
        names = dict.fromkeys(name for run in runs for name in run.get("statistics", {}))
        statistics = {name: mean(run.get("statistics", {}).get(name) for run in runs) for name in names}
        predictions = sum(int(run.get("predictions", 0)) for run in runs)
        spread = (sum(shares) / len(shares), min(shares), max(shares))
        null = str(runs[0].get("null", ""))
        entries.append(Engagement(label, mechanism, *spread, len(runs), predictions, null, statistics))
    return entries


def is_idle(group: Sequence[RunRecord]) -> bool:
    """Whether a configuration has mechanisms and none of them is engaged: its result is not a test of the mechanism."""
    entries = engagement_of("", group)
    return bool(entries) and not any(entry.is_engaged for entry in entries)


def engagement_table(groups: Groups) -> list[dict[str, Any]]:
    """Return the entries for `--json`."""
    entries = []
    for entry in engagements(groups):
        fields = asdict(entry)
        entries.append({"method": fields.pop("label"), **fields, "state": entry.state})
    return entries


def percent(share: float) -> str:
    """Format a share: `0.2%`."""
    return f"{100 * share:.1f}%"

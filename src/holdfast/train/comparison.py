"""The result of a comparison: its records, the decision, its time, and what was not run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.stopping import Deadline, format_seconds, parse_duration
from holdfast.data.dataset import Dataset
from holdfast.defaults import LIMIT
from holdfast.record import LOWER_IS_BETTER, RunRecord
from holdfast.report.explain import explain
from holdfast.stats.decision import Decision
from holdfast.stats.engagement import engagement_table
from holdfast.stats.labels import Groups
from holdfast.stats.summary import Summary
from holdfast.stats.table import flat_table
from holdfast.train.board import Board, Failure, RateChoice
from holdfast.train.progress import ProgressListener
from holdfast.train.queue import Unit

REPORT_FACTOR = 0.5  # time of combinations and report after the runs, as a multiple of that before the first one
REPORT_SHARE = 0.03  # of the limit, for the same
FEW_RUNS = 0.4  # share of that time while plain training has no result: there is little to combine and to draw
MODEL_FACTOR = 1.6  # time of a model of all domains, as a multiple of the longest run without one of them
CROWD, ALONE = 8, 3.0  # workers that share a GPU, and how much faster a run is without the others
MOST_RESERVED = 0.3  # share of the limit that is reserved for the model, at most


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: what its records say, the report, and remarks."""

    summary: Summary
    report: Path
    dataset: Dataset
    notes: tuple[str, ...] = ()
    schedule: Schedule | None = None  # time, and what a budget left out
    identical: Mapping[str, str] = field(default_factory=dict)  # method that was not run -> the one it is identical to
    rates: tuple[RateChoice, ...] = ()  # learning rates that a search chose, and the scores of all
    failures: tuple[Failure, ...] = ()  # runs that failed, and why
    deadline: Deadline = field(default_factory=Deadline)  # of the comparison, the final model included
    workers: int = 1  # runs at once

    @property
    def records(self) -> Sequence[RunRecord]:
        """The records of all runs."""
        return self.summary.records

    @property
    def metric(self) -> str:
        """The metric of the table."""
        return self.summary.metric

    @property
    def decision(self) -> Decision | None:
        """The chosen method; None if no method finished all target domains."""
        return self.summary.decision

    def table(self) -> list[dict[str, Any]]:
        """Return one dict per cell: method, target, metric, mean, stderr, n."""
        return flat_table(self.summary.every)

    def engagement(self) -> list[dict[str, Any]]:
        """Return one dict per method and mechanism: share of predictions that depend on it, range, state, ..."""
        return engagement_table(self.summary.every.groups)

    @property
    def explanation(self) -> str:
        """The choice in two plain sentences, and what was not tried; empty without a choice."""
        return explain(self.summary)

    @property
    def why_no_model(self) -> str | None:
        """The reason why `refit` cannot train a model, or None if it can."""
        if self.decision is None:
            return "no model was saved: no method finished all target domains"
        if self.decision.spec["plan"] == "stream":
            return (
                "no model was saved: the plan was a stream; train a model with fit and continue with adapt, one domain "
                "at a time"
            )
        return None


@dataclass(frozen=True)
class Schedule:
    """Time of a comparison in seconds, and the units that it did not suffice for."""

    seconds: float
    budget: float | None
    left_out: tuple[Unit, ...] = ()
    note: str = ""

    def json(self) -> dict[str, object]:
        """Return the form for `--json`."""
        left_out = [{"method": unit.name, "seed": unit.seed} for unit in self.left_out]
        return {**asdict(self), "estimated": None, "left_out": left_out}


def time_limit(budget: str | None, started: float | None, watch: ProgressListener) -> Deadline:
    """Return the deadline of a command with this budget, by default `defaults.LIMIT`, and show it to the listener."""
    deadline = Deadline(LIMIT if budget is None else parse_duration(budget), started=started)
    watch.limit(lambda: None if math.isinf(deadline.seconds) else deadline.left())
    return deadline


def limit_sentence(limit: float, *, default: bool) -> str:
    """Return the first note of a comparison: its time limit."""
    if math.isinf(limit):
        return "time limit: none, so that everything runs"
    which = "the default; --budget 20m extends it" if default else "--budget"
    return f"time limit: {format_seconds(limit)} ({which}); the same command continues"


def model_seconds(records: Sequence[RunRecord], *, members: int = 1, workers: int = 1) -> float:
    """Return the time of training a model of all domains, by that of its runs.

    On a GPU that many workers shared, a run alone is several times faster than each of them was.
    """
    shared = workers >= CROWD and bool(records) and records[0].machine.get("device") != "cpu"
    longest = max((float(record.cost.get("seconds") or 0.0) for record in records), default=0.0)
    return MODEL_FACTOR * members * longest / (ALONE if shared else 1.0)


def reserve(board: Board, *, limit: float, model: bool, before: float) -> float:
    """Return the seconds before the limit at which the runs stop, for the report and the final model.

    `before` are the seconds before the first run, for imports and reading: they show how fast this machine is now.
    """
    report = REPORT_FACTOR * before + REPORT_SHARE * min(limit, 600.0)
    if not board.has_baseline():
        report *= FEW_RUNS
    training = model_seconds(leading(board), workers=board.workers) if model else 0.0
    return min(report, MOST_RESERVED * limit) + min(training, MOST_RESERVED * limit)


def leading(board: Board) -> list[RunRecord]:
    """Return the runs of the unit with the best mean test score so far, on which only the reserve depends."""
    best: tuple[float, list[RunRecord]] = (-math.inf, [])
    for by_episode in board.records.values():
        records = list(by_episode.values())
        if records and (score := _mean_test_score(records)) > best[0]:
            best = score, records
    return best[1]


def _mean_test_score(records: Sequence[RunRecord]) -> float:
    metric = str(records[0].spec["metric"])
    values = [
        value for record in records for scores in record.stages[-1]["test"].values()
        if (value := scores.get(metric)) is not None
    ]  # fmt: skip
    mean = math.fsum(values) / len(values) if values else -math.inf
    return -mean if metric in LOWER_IS_BETTER else mean


def schedule_of(board: Board, *, seconds: float, limit: float) -> Schedule:
    """Return the schedule of a comparison that has ended."""
    units = board.unfinished()
    budget = None if math.isinf(limit) else limit
    note = "" if not units else f"not run within {format_seconds(limit)}: {_names(units, board.finished)}"
    return Schedule(
        seconds, budget, tuple(units), note and f"{note}; the same command with a larger --budget continues"
    )


def _names(units: Sequence[Unit], finished: Mapping[Unit, object]) -> str:
    """Name units: methods of which nothing has finished, further seeds, rates, and numbers of rows."""
    done = {unit.name for unit in finished}
    missing = list(dict.fromkeys(unit.name for unit in units if unit.name not in done))
    texts = [", ".join(missing)] if missing else []
    rest = [unit for unit in units if unit.name in done]
    seen = {(unit.name, unit.rows) for unit in finished if isinstance(unit, Unit)}
    larger = list(dict.fromkeys(unit.name for unit in rest if (unit.name, unit.rows) not in seen))
    rates = list(dict.fromkeys(u.name for u in rest if u.factor not in (0.0, 1.0) and u.name not in larger))
    seeds = list(dict.fromkeys(u.name for u in rest if u.name not in (*larger, *rates)))
    for names, what in ((larger, "more rows for"), (rates, "other learning rates of"), (seeds, "further seeds of")):
        texts += [f"{what} {', '.join(names)}"] if names else []
    return "; ".join(texts)


def failure_notes(failures: Sequence[Failure]) -> list[str]:
    """Return one sentence per method that failed, with its first cause."""
    first: dict[str, Failure] = {}
    for failure in failures:
        first.setdefault(failure.unit.name, failure)
    return [f"{name} failed ({each.episode or 'before its first run'}): {each.cause}" for name, each in first.items()]


def sample_note(groups: Groups, total: int) -> str:
    """Return a sentence on the rows that methods were trained and tested on, if these are not all."""
    sizes = {label: group[0].spec.get("rows") or total for label, group in groups.items()}
    if set(sizes.values()) <= {total}:
        return ""
    by_size: dict[int, list[str]] = {}
    for label, rows in sizes.items():
        by_size.setdefault(rows, []).append(label)
    texts = [
        f"{rows:,} rows for {', '.join(label.removesuffix(f' ({rows:,} rows)') for label in labels)}"
        for rows, labels in sorted(by_size.items())
        if rows < total
    ]
    return f"trained and tested on a stratified sample of the {total:,} rows: {'; '.join(texts)}"

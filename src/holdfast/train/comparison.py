"""The result of a comparison: its records, the decision, and what was not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.stopping import Deadline
from holdfast.data.dataset import Dataset
from holdfast.record import RunRecord
from holdfast.report.explain import explain
from holdfast.stats.decision import Decision
from holdfast.stats.engagement import engagement_table
from holdfast.stats.summary import Summary
from holdfast.stats.table import flat_table
from holdfast.train.board import Failure, RateChoice
from holdfast.train.schedule import Schedule


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

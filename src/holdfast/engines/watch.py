"""What an engine tells whoever watches: a base that shows nothing."""

from __future__ import annotations

from holdfast.methods.base import Metrics
from holdfast.record import RunRecord


class Watch:
    """Override what you want to show; every call is cheap and may be ignored."""

    def encoding(self, done: int, total: int) -> None:
        """Features of a frozen encoder are being computed."""

    def start(self, total: int, finished: int) -> None:
        """So many runs are asked for, of which so many have a record already."""

    def begin(self, name: str, steps: int) -> None:
        """A run begins."""

    def step(self, metrics: Metrics) -> None:
        """A step of the current run was taken."""

    def elsewhere(self, id: str, name: str, done: int, steps: int) -> None:
        """Of several runs at once, the one with this record has taken so many of its steps; all, when it is over."""

    def end(self, record: RunRecord) -> None:
        """The current run has its record."""

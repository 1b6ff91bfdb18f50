"""A difference between two rows of an evidence table, as the tables print it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.report.significance import paired_t
from holdfast.report.stats import interval


def difference(mine: Sequence[float], theirs: Sequence[float], digits: int = 2) -> str:
    """The mean difference with its 95% interval over seeds, and the two-sided p of the paired t-test."""
    told, test = interval([a - b for a, b in zip(mine, theirs, strict=True)]), paired_t(mine, theirs)
    assert told is not None
    assert test.p is not None
    return f"{test.difference:+.{digits}f} ({told[0]:+.{digits}f} to {told[1]:+.{digits}f}), p {test.p:.2f}"

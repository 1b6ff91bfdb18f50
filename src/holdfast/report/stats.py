"""Means over seeds and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table: the mean of n values; a single value has no spread."""

    mean: float
    stderr: float | None
    stdev: float | None
    n: int


def summarise(values: Sequence[float]) -> Cell:
    """Mean, standard error and sample standard deviation (divisor n - 1)."""
    assert len(values) > 0, "no values to summarise"
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Cell(mean, None, None, 1)
    # the mean of equal numbers can miss them by a rounding error, which must not look like spread
    spread = len(set(values)) > 1
    stdev = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if spread else 0.0
    return Cell(mean, stdev / math.sqrt(n), stdev, n)


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean, mean ± t_{n-1} stderr; None for a single value."""
    assert 0 < level < 1, level
    cell = summarise(values)
    if cell.stderr is None:
        return None
    half = float(stdtrit(cell.n - 1, (1 + level) / 2)) * cell.stderr
    return cell.mean - half, cell.mean + half


def pooled(a: Cell, b: Cell) -> float | None:
    """The standard error of a difference of two means, sqrt(a² + b²); None where one of them has none."""
    if a.stderr is None or b.stderr is None:
        return None
    return math.hypot(a.stderr, b.stderr)

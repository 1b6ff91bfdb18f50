"""Means with errors, and tests of differences: paired t, McNemar, Holm's correction, shrunk gains.

`stdev` is the standard deviation of values, `stderr` the standard error of their mean.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.special import bdtr, chdtrc, stdtr, stdtrit

from holdfast.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Cell:
    """Mean of n values; a single value has no standard error."""

    mean: float
    stderr: float | None
    stdev: float | None
    n: int


def summarise(values: Sequence[float]) -> Cell:
    """Compute mean, standard error and sample standard deviation (divisor n - 1)."""
    n, centre = len(values), fmean(values)
    if n == 1:
        return Cell(centre, None, None, 1)
    # the mean of equal numbers can differ from them by a rounding error, which must not look like spread
    stdev = math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (n - 1)) if len(set(values)) > 1 else 0.0
    return Cell(centre, stdev / math.sqrt(n), stdev, n)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None without any."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None


def margin(stderr: float, n: int, level: float = 0.95) -> float:
    """Half width of Student's t interval of a mean of n values."""
    assert 0 < level < 1, level
    return float(stdtrit(n - 1, (1 + level) / 2)) * stderr


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean, mean ± t_{n-1} stderr; None for a single value."""
    cell = summarise(values)
    if cell.stderr is None:
        return None
    half = margin(cell.stderr, cell.n, level)
    return cell.mean - half, cell.mean + half


def pooled(a: Cell, b: Cell) -> float | None:
    """Standard error of the difference of two means, sqrt(a² + b²); None if either has no standard error."""
    return None if a.stderr is None or b.stderr is None else math.hypot(a.stderr, b.stderr)


@dataclass(frozen=True, slots=True)
class Paired:
    """Result of a paired t test; `t` and `p` are None if the differences have no spread."""

    difference: float  # mean of a - b
    stderr: float | None
    stdev: float | None
    t: float | None
    p: float | None  # two-sided
    n: int  # pairs


def paired_t(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Student's test of the mean difference, t = mean(a - b) / stderr(a - b), n - 1 degrees of freedom, two-sided."""
    check_lengths(a, b)
    cell = summarise([x - y for x, y in zip(a, b, strict=True)])
    floor = 1e-12 * max(1.0, *(abs(v) for v in (*a, *b)))  # a smaller spread is a rounding error
    t = p = None
    if cell.stderr is not None and math.isfinite(cell.stderr) and cell.stderr > floor:
        t = cell.mean / cell.stderr
        p = 2 * float(stdtr(cell.n - 1, -abs(t)))
    return Paired(cell.mean, cell.stderr, cell.stdev, t, p, cell.n)


@dataclass(frozen=True, slots=True)
class McNemar:
    """Number of items that only one of two systems predicts correctly, with two-sided p-values."""

    only_a: int
    only_b: int
    p: float  # exact binomial
    chi_square: float  # with continuity correction
    p_chi_square: float


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> McNemar:
    """McNemar's test of two correctness vectors on the same items.

    With m items that only a and k items that only b predicts correctly, the exact p is 2 P(X <= min(m, k)) with
    X ~ Binomial(m + k, 1/2); the approximate one compares (|m - k| - 1)² / (m + k) with chi-square, one degree.
    """
    correct_a, correct_b = correctness_arrays(a, b)
    only_a, only_b = int((correct_a & ~correct_b).sum()), int((correct_b & ~correct_a).sum())
    total = only_a + only_b
    if total == 0:
        return McNemar(0, 0, 1.0, 0.0, 1.0)
    exact = min(1.0, 2 * float(bdtr(min(only_a, only_b), total, 0.5)))
    square = max(0, abs(only_a - only_b) - 1) ** 2 / total
    return McNemar(only_a, only_b, exact, square, float(chdtrc(1, square)))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the i-th smallest of m p-values times (m - i + 1), non-decreasing, at most 1.

    Comparisons without a p-value stay None and do not count.
    """
    order = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        corrected[i] = highest
    return corrected


def expected_gains(differences: Mapping[str, Paired]) -> dict[str, float]:
    """Return the expected difference per method; differences without a standard error are left out.

    The best of many measured differences is partly luck. With d_i the mean paired difference of method i and s_i its
    standard error, gains are modelled as N(0, v) with v = max(0, mean(d_i^2) - mean(s_i^2)); the expected gain is the
    posterior mean d_i v / (v + s_i^2) (empirical Bayes).
    """
    errors = {name: pairs.stderr**2 for name, pairs in differences.items() if pairs.stderr is not None}
    if not errors:
        return {}
    variance = max(0.0, fmean(differences[name].difference ** 2 for name in errors) - fmean(errors.values()))
    return {
        name: differences[name].difference * (variance / (variance + error) if variance + error > 0 else 0.0)
        for name, error in errors.items()
    }


def check_lengths(a: Sequence[object], b: Sequence[object]) -> None:
    if len(a) != len(b) or len(a) == 0:
        raise BadInput(f"a paired test needs two non-empty sequences of equal length; got {len(a)} and {len(b)} values")


def correctness_arrays(a: Sequence[bool], b: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    check_lengths(a, b)
    arrays = np.asarray(a), np.asarray(b)
    if not all(np.isin(values, (0, 1)).all() for values in arrays):
        raise BadInput("correctness values must be true or false (1 or 0) per item")
    return arrays[0].astype(bool), arrays[1].astype(bool)

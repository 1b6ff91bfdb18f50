"""Whether a difference is more than chance: paired t, Wilcoxon on bootstraps, McNemar, Holm's correction.

Standard deviation (of the values) and standard error (of their mean) are always called by their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, chdtrc, stdtr, stdtrit

from holdfast.core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Paired:
    """A paired t test; `t` and `p` are None where the differences have no spread to judge by."""

    difference: float  # mean of a - b
    stderr: float | None  # standard error of that mean
    stdev: float | None  # standard deviation of the differences
    t: float | None
    p: float | None  # two-sided
    n: int  # pairs


def paired_t(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Student's test of the mean difference, t = mean(a - b) / stderr(a - b) with n - 1 degrees, two-sided."""
    _same_length(a, b)
    found = summarise([x - y for x, y in zip(a, b, strict=True)])
    # below the rounding of the values themselves, a spread is none
    floor = 1e-12 * max(1.0, *(abs(v) for v in (*a, *b)))
    if found.stderr is None or not math.isfinite(found.stderr) or found.stderr <= floor:
        return Paired(found.mean, found.stderr, found.stdev, None, None, found.n)
    t = found.mean / found.stderr
    return Paired(found.mean, found.stderr, found.stdev, t, 2 * float(stdtr(found.n - 1, -abs(t))), found.n)


def signed_rank(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Wilcoxon's signed-rank test, one-tailed for a > b: (W+, exact p).

    W+ is the sum of the ranks of |a - b| where a > b; pairs without a difference are dropped. The p-value is exact with
    ties too, over all 2^n signs of the ranks that occur, which accuracies on a few hundred items need.
    """
    from scipy.stats import rankdata  # here, because a page needs the rest of this file and scipy.stats is slow to load

    _same_length(a, b)
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    differences = np.round(differences, 12)  # equal accuracies may differ by rounding, and would not tie
    differences = differences[differences != 0]
    ranks = rankdata(np.abs(differences))  # (n,) halves occur
    wins = float(ranks[differences > 0].sum())
    doubled = np.rint(2 * ranks).astype(int)
    ways = np.zeros(int(doubled.sum()) + 1)  # ways[w]: share of the signs whose doubled W+ is w
    ways[0] = 1.0
    for rank in doubled:
        shifted = np.zeros_like(ways)
        shifted[rank:] = ways[: len(ways) - rank]
        ways = (ways + shifted) / 2
    return wins, min(1.0, float(ways[round(2 * wins) :].sum()))


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Accuracies of two systems on the same draws, and the one-tailed test on them."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    statistic: float  # W+
    p: float


def bootstrap_signed_rank(
    a: Sequence[bool], b: Sequence[bool], *, draws: int = 10, size: int = 200, seed: int = 0
) -> Bootstrapped:
    """Is a better than b: accuracies on `draws` samples of `size` test items with replacement, then Wilcoxon.

    The test of Asghar et al. (2020): both systems are scored on the same draws. The draws come from one test set and
    are not independent evidence, so p shrinks with their number; stand it beside `mcnemar` and a test over seeds.
    """
    right_a, right_b = _correctness(a, b)
    rows = np.random.default_rng(seed).integers(len(right_a), size=(draws, size))
    accuracies = tuple(map(float, right_a[rows].mean(axis=1))), tuple(map(float, right_b[rows].mean(axis=1)))
    return Bootstrapped(*accuracies, *signed_rank(*accuracies))


@dataclass(frozen=True, slots=True)
class McNemar:
    """The items only one of two systems gets right, and both p-values, two-sided."""

    only_a: int
    only_b: int
    p: float  # exact binomial
    chi_square: float  # with continuity correction
    p_chi_square: float


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> McNemar:
    """McNemar's test of two correctness vectors on the same items.

    Exact: 2 P(X <= min(m, k)), X ~ Binomial(m + k, 1/2); approximate: (|m - k| - 1)² / (m + k) against chi-square with
    one degree, for m items that only a and k items that only b gets right.
    """
    right_a, right_b = _correctness(a, b)
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    odd = only_a + only_b
    if odd == 0:
        return McNemar(0, 0, 1.0, 0.0, 1.0)
    exact = min(1.0, 2 * float(bdtr(min(only_a, only_b), odd, 0.5)))
    square = max(0, abs(only_a - only_b) - 1) ** 2 / odd
    return McNemar(only_a, only_b, exact, square, float(chdtrc(1, square)))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the i-th smallest of m times (m - i + 1), never below the one before, at most 1.

    A comparison without a p-value stays without one and does not count.
    """
    order = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    found: list[float | None] = [None] * len(ps)
    highest = 0.0
    for place, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - place)))
        found[i] = highest
    return found


def _same_length(a: Sequence[object], b: Sequence[object]) -> None:
    if len(a) != len(b) or len(a) == 0:
        raise BadInput(f"a paired test needs as many values of each, at least one: here are {len(a)} and {len(b)}")


def _correctness(a: Sequence[bool], b: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    _same_length(a, b)
    found = np.asarray(a), np.asarray(b)
    if not all(np.isin(right, (0, 1)).all() for right in found):
        raise BadInput("correctness is given as true or false, 1 or 0, for each item")
    return found[0].astype(bool), found[1].astype(bool)


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

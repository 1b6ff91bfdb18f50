"""Wilcoxon's signed-rank test, and the test of published dialogue and inference systems on bootstrap samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from holdfast.stats.statistics import check_lengths, correctness_arrays


def signed_rank(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Wilcoxon's signed-rank test, one-tailed for a > b: (W+, exact p).

    W+ is the sum of the ranks of |a - b| with a > b; pairs without a difference are dropped. The p-value is exact with
    ties too: it enumerates all 2^n signs of the observed ranks.
    """
    check_lengths(a, b)
    # equal accuracies can differ by a rounding error
    differences = np.round(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64), 12)
    differences = differences[differences != 0]
    ranks = rankdata(np.abs(differences))  # (n,), multiples of 1/2
    statistic = float(ranks[differences > 0].sum())
    doubled = np.rint(2 * ranks).astype(int)
    shares = np.eye(1, int(doubled.sum()) + 1)[0]  # shares[w]: share of the signs with 2 W+ = w
    for rank in doubled:
        shares = (shares + np.pad(shares, (rank, 0))[: len(shares)]) / 2
    return statistic, min(1.0, float(shares[round(2 * statistic) :].sum()))


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """Accuracies of two systems on the same bootstrap samples, and the one-tailed test on them."""

    a: tuple[float, ...]
    b: tuple[float, ...]
    statistic: float  # W+
    p: float


def bootstrap_signed_rank(
    a: Sequence[bool], b: Sequence[bool], *, draws: int = 10, size: int = 200, seed: int = 0
) -> Bootstrapped:
    """Test whether a is better than b by Wilcoxon on accuracies of `draws` bootstrap samples of `size` items.

    The test of Asghar et al. (2020). The samples come from one test set and are not independent, so p shrinks with
    their number: report `mcnemar` and a test over seeds as well.
    """
    correct_a, correct_b = correctness_arrays(a, b)
    rows = np.random.default_rng(seed).integers(len(correct_a), size=(draws, size))
    accuracies = tuple(map(float, correct_a[rows].mean(axis=1))), tuple(map(float, correct_b[rows].mean(axis=1)))
    return Bootstrapped(*accuracies, *signed_rank(*accuracies))

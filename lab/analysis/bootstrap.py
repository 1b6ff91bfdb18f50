"""Wilcoxon's signed-rank test, and the test of published dialogue and inference systems on bootstrap samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from holdfast.stats.statistics import check_lengths, correctness_arrays


def signed_rank(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Wilcoxon's signed-rank test, one-tailed for a > b: (W+, exact p).

    W+ is the sum of the ranks of |a - b| with a > b; pairs without a difference are dropped. The p-value enumerates all
    2^n signs of the observed ranks, so that it is exact with ties too; from 21 pairs it is estimated from random signs.
    """
    check_lengths(a, b)
    # equal accuracies can differ by a rounding error
    differences = np.round(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64), 12)
    if not differences.any():
        return 0.0, 1.0
    signs: Any = stats.PermutationMethod(n_resamples=1 << 20)
    result: Any = stats.wilcoxon(differences[differences != 0], alternative="greater", method=signs)
    return float(result.statistic), float(result.pvalue)


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

"""Tests of two samples of one variable: Kolmogorov-Smirnov for numbers, chi-square for counts.

Shapes: n and m numbers, c categories or ordered values.
"""

from typing import Any

import numpy as np
from scipy.special import kolmogorov
from scipy.stats import chi2_contingency

MIN_EXPECTED = 5.0  # rows per category and sample for a chi-square test; rarer categories are counted together


def ks_test(one: np.ndarray, other: np.ndarray, *, size: int | None = None) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distance of two samples (n,), (m,), and the asymptotic p value of equality.

    With `size`, `other` holds evenly spaced quantiles of that number of values.
    """
    values, index = np.unique(np.concatenate([one, other]), return_inverse=True)
    counts = [np.bincount(side, minlength=len(values)) for side in np.split(index.reshape(-1), [len(one)])]
    return ks_test_of_counts(np.stack(counts), size=size)


def ks_test_of_counts(counts: np.ndarray, *, size: int | None = None) -> tuple[float, float]:
    """Return distance and p value of two samples from their counts (2, c) per ordered value or bin.

    With `size`, the second sample stands for that number of values.
    """
    n, m = counts.sum(axis=1).tolist()
    shares = np.cumsum(counts, axis=1) / [[n], [m]]
    distance, m = float(np.abs(shares[0] - shares[1]).max()), m if size is None else size
    return distance, float(kolmogorov(np.sqrt(n * m / (n + m)) * distance))


def total_variation(counts: np.ndarray) -> float:
    """Return the total variation distance of the distributions of two rows of counts (2, c)."""
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def chi_square(counts: np.ndarray) -> float:
    """Return the p value of a chi-square test of counts (2, c)."""
    used = counts[:, counts.sum(axis=0) > 0]
    result: Any = chi2_contingency(used) if used.shape[1] > 1 else None
    return 1.0 if result is None else float(result.pvalue)


def merge_rare(counts: np.ndarray) -> np.ndarray:
    """Sum the columns of counts (2, c) whose expected counts are too small for a chi-square test."""
    expected = counts.sum(axis=0) * counts.sum(axis=1).min() / max(1, counts.sum())
    rare = expected < MIN_EXPECTED
    merged = np.c_[counts[:, ~rare], counts[:, rare].sum(axis=1)] if rare.any() else counts
    return merged[:, merged.sum(axis=0) > 0]

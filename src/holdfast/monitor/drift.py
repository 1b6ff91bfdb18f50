"""Two-sample tests of a batch against the reference of a model: features, predictions, inputs and columns.

The features are compared with the maximum mean discrepancy (Gretton et al., 2012) and a permutation test; everything
else with tests of single variables. Shapes: n and m examples, d axes, r permutations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import fisher_exact, pearson3, skew

from holdfast.data.input_statistics import MISSING, InputStatistics
from holdfast.stats.statistics import holm
from holdfast.stats.two_sample import chi_square, ks_test, merge_rare, total_variation
from holdfast.uncertainty.reference import Columns, category_counts

PERMUTATIONS = 499
MIN_ABOVE = 10  # permutations above a statistic whose share is a p value by itself
BANDWIDTHS = (0.5, 1.0, 2.0)  # times the median distance; each is twice the one before
MIN_ROWS = 20  # fewer examples are not tested


@dataclass(frozen=True)
class Finding:
    """One test of a batch: statistic, values of the batch and of the reference, and the corrected p value."""

    name: str  # such as features, predictions, column age
    statistic: float
    value: float | None  # of the batch, such as a mean or a share
    expected: float | None  # of the reference
    p: float
    corrected: float = 1.0  # p value, corrected for all tests of the batch
    drifted: bool = False


def kernel(x: np.ndarray, y: np.ndarray, median: float) -> np.ndarray:
    """Return the sum of Gaussian kernels (n, m) with several bandwidths around the median distance.

    A bandwidth half as large is the fourth power of a kernel, so that one exponential is enough.
    """
    widest = BANDWIDTHS[-1] * median
    one = np.exp(cdist(x, y, "sqeuclidean") / (-2 * widest**2))
    total = one.copy()
    for _ in BANDWIDTHS[1:]:
        one *= one
        one *= one
        total += one
    return total


def median_distance(x: np.ndarray) -> float:
    """Return the median distance between different examples of a sample, at least a small positive number."""
    distances = cdist(x[:300], x[:300])
    values = distances[np.triu_indices(len(distances), 1)]
    return max(float(np.median(values)) if len(values) else 0.0, 1e-9)


def discrepancy(x: np.ndarray, y: np.ndarray, median: float) -> float:
    """Return the unbiased estimate of the squared maximum mean discrepancy; about 0 for equal distributions."""
    within = [mean_between(kernel(each, each, median)) for each in (x, y)]
    return within[0] + within[1] - 2 * float(kernel(x, y, median).mean())


def mean_between(gram: np.ndarray) -> float:
    """Return the mean kernel (n, n) between different examples of one sample."""
    n = len(gram)
    return float((gram.sum() - np.trace(gram)) / (n * (n - 1)))


def compare_features(batch: np.ndarray, reference: np.ndarray, *, seed: int, median: float) -> tuple[float, float]:
    """Return the squared discrepancy of projected features (n, d), (m, d) and its permutation p value."""
    n, m = len(batch), len(reference)
    joined = np.concatenate([batch, reference])
    gram = kernel(joined, joined, median)
    np.fill_diagonal(gram, 0.0)
    members = _permuted_members(n, n + m, seed)
    sums = gram.astype(np.float32) @ members  # most of the time of a check, which half the precision halves
    inner = np.einsum("ij,ij->j", sums, members, dtype=np.float64)  # (r,) within the first sample
    rows = gram.sum(axis=1) @ members
    others = gram.sum() - 2 * rows + inner
    values = inner / (n * (n - 1)) + others / (m * (m - 1)) - 2 * (rows - inner) / (n * m)
    return float(values[0]), _permutation_p(float(values[0]), values[1:])


@lru_cache(maxsize=4)
def _permuted_members(n: int, total: int, seed: int) -> np.ndarray:
    """(total, 1 + r) which examples belong to the first sample: the first n, and n random ones per permutation."""
    rng = np.random.default_rng(seed)
    members = np.zeros((total, 1 + PERMUTATIONS), dtype=np.float32)
    members[:n, 0] = 1
    for column in range(1, members.shape[1]):
        members[rng.permutation(total)[:n], column] = 1
    return members


def _permutation_p(value: float, permuted: np.ndarray) -> float:
    """Return the p value of a statistic; if few permutations exceed it, from a Pearson III fit to their moments.

    The fit (Minas and Montana, 2014) resolves p values below 1 / r, which remain after a correction for many tests.
    """
    above = int((permuted >= value - 1e-12).sum())
    counted = (1 + above) / (1 + len(permuted))
    if above >= MIN_ABOVE or permuted.std() == 0:
        return counted
    fitted = float(pearson3.sf(value, skew(permuted), permuted.mean(), permuted.std()))
    return float(np.clip(fitted, 1e-12, counted))


def compare_classes(predicted: np.ndarray, expected: np.ndarray, classes: int) -> Finding:
    """Compare the mix of predicted classes with that of the reference by a chi-square test."""
    return compare_counts("predictions", *(np.bincount(each, minlength=classes) for each in (predicted, expected)))


def compare_counts(name: str, batch: np.ndarray, reference: np.ndarray) -> Finding:
    """Compare counts (c,) of classes or categories by a chi-square test."""
    counts = np.stack([batch, reference])
    return Finding(name, total_variation(counts), None, None, chi_square(merge_rare(counts)))


def compare_values(name: str, batch: np.ndarray, reference: np.ndarray, *, size: int | None = None) -> Finding | None:
    """Compare two samples of numbers by the test of Kolmogorov and Smirnov; None for too few known values.

    With `size`, `reference` holds evenly spaced quantiles of that number of values.
    """
    batch, reference = (np.sort(values[np.isfinite(values)]) for values in (batch, reference))
    if min(len(batch), len(reference) if size is None else size) < MIN_ROWS or not len(reference):
        return None
    distance, p = ks_test(batch, reference, size=size)
    return Finding(name, distance, float(batch.mean()), float(reference.mean()), p)


def compare_shares(name: str, batch: tuple[int, int], reference: tuple[int, int]) -> Finding:
    """Compare two shares, given as (count, total), by Fisher's exact test."""
    table = [[count, total - count] for count, total in (batch, reference)]
    shares = [count / max(1, total) for count, total in (batch, reference)]
    p = float(fisher_exact(table)[1])  # pyright: ignore[reportArgumentType]
    return Finding(name, shares[0] - shares[1], shares[0], shares[1], p)


def compare_columns(batch: InputStatistics, columns: Columns, group: int) -> list[Finding]:
    """Compare every column of a table: values, categories, categories that are new, and missing values."""
    if batch.numbers is None:
        return []
    total, before, findings = len(batch.numbers), int(columns.counts[group]), list[Finding | None]()
    codes = np.zeros((total, 0), dtype=np.int64) if batch.codes is None else batch.codes
    missing = np.r_[np.isnan(batch.numbers).sum(axis=0), (codes == MISSING).sum(axis=0)].tolist()
    known_missing = columns.missing[group].tolist()
    names = [*columns.number_names, *(name for name, _ in columns.categories)]
    counts, numbers = category_counts(codes, columns.categories), len(columns.number_names)
    for i, name in enumerate(names):
        if i < numbers:
            values, known = batch.numbers[:, i], columns.quantiles[group, i]
            findings.append(compare_values(f"column {name}", values, known, size=before - known_missing[i]))
        else:
            at = columns.category_slice(i - numbers)
            findings += _compare_categories(name, counts[at], columns.codes[group, at])
        if missing[i] or known_missing[i]:
            pairs = (missing[i], total), (known_missing[i], before)
            findings.append(compare_shares(f"missing values of {name}", *pairs))
    return [finding for finding in findings if finding is not None]


def _compare_categories(name: str, own: np.ndarray, known: np.ndarray) -> list[Finding]:
    """Compare counts (c,) of categories, the last of which counts unknown ones."""
    findings, merged = list[Finding](), merge_rare(np.stack([own[:-1], known[:-1]]))
    if min(own.sum(), known.sum()) >= MIN_ROWS and merged.shape[1] > 1:
        variation = total_variation(np.stack([own, known]))
        findings.append(Finding(f"column {name}", variation, None, None, chi_square(merged)))
    if own[-1]:
        pairs = ((int(each[-1]), int(each.sum())) for each in (own, known))
        findings.append(compare_shares(f"new categories of {name}", *pairs))
    return findings


def corrected(features: Finding | None, others: Sequence[Finding], *, level: float, shares: int = 1) -> list[Finding]:
    """Correct the p values of one batch: half of the level is that of the features, the others share the rest.

    The others are corrected by Holm's method. The error rate of the batch as a whole is at most the level, or that of
    one of several equal `shares` of it.
    """
    split = shares * (2 if features is not None and others else 1)
    known = [] if features is None else [(features, split * features.p)]
    known += [(f, split * (1.0 if p is None else p)) for f, p in zip(others, holm([f.p for f in others]), strict=True)]
    return [replace(f, corrected=min(1.0, p), drifted=p < level) for f, p in known]

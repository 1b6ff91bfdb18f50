"""Nested samples of the rows of a data set, stratified by domain and by class or size of the target.

A sample of n rows is the first n rows of one fixed order, so that a larger sample contains every smaller one.
"""

from __future__ import annotations

import numpy as np

from holdfast.data.dataset import Dataset

BINS = 5  # of numeric targets
LEAST = 20  # rows per domain that come before all others, so that small domains are complete in every sample


def nested_order(dataset: Dataset, *, seed: int = 0) -> np.ndarray:
    """Return all rows (n,) in an order whose beginnings are stratified samples."""
    rng, n = np.random.default_rng(seed), len(dataset)
    shuffled = rng.permutation(n)
    share = _share_in_stratum(_strata(dataset)[shuffled], rng)  # (n,) the sample that first contains a row
    first = _rank(dataset.domain[shuffled], share) < LEAST
    # domains and their splits take turns, so that the smallest samples have rows of each
    splits = dataset.split_codes + 1
    domain_and_split = dataset.domain * (splits.max(initial=0) + 1) + splits
    turn = np.where(first, _rank(domain_and_split[shuffled], np.where(first, share, 2.0)), 0)
    return shuffled[np.lexsort((share, turn, ~first))]


def sample_sizes(total: int, first: int) -> tuple[int, ...]:
    """Return the numbers of rows of nested samples: from about `first`, doubled up to all rows.

    A sample with more than two thirds of the rows is not worth another one.
    """
    sizes, size = [], first
    while size < total / 1.5:
        sizes.append(size)
        size *= 2
    return (*sizes, total)


def _strata(dataset: Dataset) -> np.ndarray:
    """Return (n,) a number per combination of domain, split and class; numeric targets are binned by quantiles."""
    if dataset.targets is not None and dataset.targets.ndim == 1:
        known = dataset.targets[np.isfinite(dataset.targets)]
        edges = np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1)[1:-1])) if len(known) else np.zeros(0)
        y = np.searchsorted(edges, dataset.targets, side="right")
    else:
        y = dataset.y
    _, strata = np.unique(np.stack([dataset.domain, dataset.split_codes, y]), axis=1, return_inverse=True)
    return np.asarray(strata).reshape(-1)


def _share_in_stratum(strata: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return (n,) the position of each row in its stratum, as a share of the stratum with a random offset."""
    counts = np.bincount(strata)
    return (_rank(strata, np.arange(len(strata))) + rng.random(len(counts))[strata]) / counts[strata]


def _rank(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return (n,) the rank of each value within its group, from 0."""
    order = np.lexsort((values, groups))
    starts = np.concatenate([[0], np.flatnonzero(np.diff(groups[order])) + 1])
    sizes = np.diff(np.concatenate([starts, [len(groups)]]))
    ranks = np.empty(len(groups), dtype=np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return ranks

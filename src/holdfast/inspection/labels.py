"""How labels are spread over domains: counts, and how far the shares of two domains lie apart.

k domains, c labels
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import chi2_contingency

from holdfast.core.annotated import Sentence
from holdfast.data.domain import Dataset
from holdfast.report.significance import holm

LEVEL = 0.01


@dataclass(frozen=True)
class Apart:
    """Two domains: half the summed difference of their shares of labels, and how likely chance alone gives it."""

    one: str
    other: str
    variation: float  # total variation: 0 where the shares are equal, 1 where no label is shared
    p: float  # chi-square, corrected for all pairs by Holm
    rows: int  # labels of the domain that has fewer

    @property
    def real(self) -> bool:
        return self.p < LEVEL


def label_counts(dataset: Dataset) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of labels and (k, c) how often each is in each domain; of sentences with tags the kinds of entities."""
    if dataset.y.max(initial=-1) >= 0:
        found = np.zeros((len(dataset.domains), len(dataset.classes)), dtype=np.int64)
        known = dataset.y >= 0
        np.add.at(found, (dataset.domain[known], dataset.y[known]), 1)
        return dataset.classes, found
    begun = [i for i, name in enumerate(dataset.classes) if name.startswith("B-")]
    if dataset.raw.kind != "text" or not begun:
        return (), np.zeros((len(dataset.domains), 0), dtype=np.int64)
    found = np.zeros((len(dataset.domains), len(dataset.classes)), dtype=np.int64)
    for at in range(len(dataset.domains)):
        for example in dataset.raw.take(np.flatnonzero(dataset.domain == at)):
            if isinstance(example, Sentence) and example.tags is not None:
                found[at] += np.bincount(example.tags, minlength=found.shape[1])
    return tuple(dataset.classes[i][2:] for i in begun), found[:, begun]


def label_shifts(domains: tuple[str, ...], counts: np.ndarray) -> list[Apart]:
    """Every two domains that have labels."""
    filled = [i for i in range(len(domains)) if counts.shape[1] and counts[i].sum()]
    pairs = list(combinations(filled, 2))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    ps = holm([_chance(counts[[a, b]]) for a, b in pairs])
    found = []
    for (a, b), p in zip(pairs, ps, strict=True):
        assert p is not None
        variation, rows = float(np.abs(shares[a] - shares[b]).sum() / 2), int(counts[[a, b]].sum(axis=1).min())
        found.append(Apart(domains[a], domains[b], variation, float(p), rows))
    return found


def _chance(two: np.ndarray) -> float:
    """The p-value of a chi-square test of (2, c) counts."""
    used = two[:, two.sum(axis=0) > 0]
    if used.shape[1] < 2:
        return 1.0
    result: Any = chi2_contingency(used)
    return float(result.pvalue)

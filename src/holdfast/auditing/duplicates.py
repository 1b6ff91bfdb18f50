"""Exact and near duplicates of inputs, and which rows to keep (n rows, g groups of equal rows, p pairs, k subsets)."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pandas as pd

from holdfast.auditing.examples import Examples, input_hashes

KEPT, EQUAL, NEAR, CONFLICT = range(4)
REASONS = ("kept", "equal", "near", "conflict")


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of rows with equal inputs, and pairs of groups with similar inputs."""

    group: np.ndarray  # (n,) group of each row, numbered by first occurrence
    first: np.ndarray  # (g,) first row of each group
    pairs: np.ndarray  # (p, 2) groups
    similarity: np.ndarray  # (p,)

    def presence(self, subset: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return per row and subset (n, k) whether its input, and whether only a near duplicate, occurs there."""
        equal, near = self._group_presence(subset, k)
        return equal[self.group], (near & ~equal)[self.group]

    def repeated(self, subset: np.ndarray) -> np.ndarray:
        """Return per row (n,) whether an earlier row of its subset has the same input."""
        return pd.DataFrame({"group": self.group, "subset": subset}).duplicated().to_numpy()

    def near_within(self, subset: np.ndarray, k: int) -> np.ndarray:
        """Return per row (n,) whether its subset has a near duplicate that is not equal."""
        near = self._group_presence(subset, k)[1]
        return (subset >= 0) & near[self.group, subset]

    def _group_presence(self, subset: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return per group and subset (g, k) whether the group occurs there, and whether a similar group does."""
        equal = np.zeros((len(self.first), k), dtype=bool)
        known = subset >= 0  # -1 for rows in no subset
        equal[self.group[known], subset[known]] = True
        near = np.zeros_like(equal)
        for one, other in ((0, 1), (1, 0)):
            np.logical_or.at(near, self.pairs[:, one], equal[self.pairs[:, other]])
        return equal, near


@dataclass(frozen=True, eq=False)
class Choice:
    """Decision per row: kept, or dropped for a reason and because of another row."""

    reason: np.ndarray  # (n,) into REASONS
    because: np.ndarray  # (n,) the row it duplicates, or itself if it is kept

    def kept_rows(self) -> np.ndarray:
        return np.flatnonzero(self.reason == KEPT)


def find_duplicates(examples: Examples, *, near: float) -> Duplicates:
    """Find equal inputs by hash, and pairs of similar inputs if `near` is below 1."""
    group, _ = pd.factorize(input_hashes(examples.dataset))  # in order of appearance
    _, first = np.unique(group, return_index=True)
    pairs, similarity = np.empty((0, 2), dtype=np.int64), np.empty(0)
    if near < 1:
        pairs, similarity = examples.near(first, near=near)
    return Duplicates(group, first, pairs, similarity)


def conflicts(duplicates: Duplicates, targets: np.ndarray) -> np.ndarray:
    """Return per row (n,) whether its input also occurs with another target."""
    known = targets >= 0
    distinct = pd.Series(targets).where(known).groupby(duplicates.group).transform("nunique").to_numpy()
    return (distinct > 1) & known


def choose(duplicates: Duplicates, targets: np.ndarray, split: np.ndarray | None) -> Choice:
    """Keep one row per input, and no row that is similar to another kept row.

    Test rows are preferred to validation rows and these to training rows, so that a published test set does not
    change; otherwise the first row in the file is kept. Among equal inputs with different targets, a row with the most
    frequent target is kept, or none if there is a tie.
    """
    group, n = duplicates.group, len(duplicates.group)
    rank = np.zeros(n, dtype=np.int64) if split is None else 2 - split  # rows without a split come last
    votes = np.where(targets < 0, 0, pd.Series(targets).groupby([group, targets]).transform("size"))
    order = np.lexsort((np.arange(n), rank, -votes, group))
    winner = order[np.flatnonzero(np.diff(group[order], prepend=-1))]  # (g,)
    tied = np.zeros(len(duplicates.first), dtype=bool)
    rival = (votes == votes[winner][group]) & (targets != targets[winner][group]) & (targets >= 0)
    tied[group[rival]] = True
    reason = np.where(np.arange(n) == winner[group], KEPT, EQUAL)
    reason[tied[group]] = CONFLICT
    because = np.where(tied[group], duplicates.first[group], winner[group])
    for dropped, kept_group in _near_kept(duplicates, winner, rank, tied):
        reason[winner[dropped]], because[winner[dropped]] = NEAR, winner[kept_group]
    return Choice(reason, because)


def _near_kept(duplicates: Duplicates, winner: np.ndarray, rank: np.ndarray, tied: np.ndarray) -> list[tuple[int, int]]:
    """Return (dropped group, kept group similar to it), greedily in order of preference."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for one, other in duplicates.pairs.tolist():
        if not tied[one] and not tied[other]:
            neighbours[one].append(other)
            neighbours[other].append(one)
    remaining, dropped = set(), []
    for group in sorted(neighbours, key=lambda group: (rank[winner[group]], winner[group])):
        similar = next((other for other in neighbours[group] if other in remaining), None)
        if similar is None:
            remaining.add(group)
        else:
            dropped.append((group, similar))
    return dropped

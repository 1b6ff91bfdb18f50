"""Rows whose input is in the data more than once, the same or nearly, and which of them to keep.

n rows, g groups of equal inputs, p pairs, k places: domains or splits
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.audit.examples import Examples

KEPT, EQUAL, NEAR, CONFLICT = range(4)
REASONS = ("kept", "equal", "near", "conflict")


@dataclass(frozen=True, eq=False)
class Copies:
    """Groups of rows with the same input, and pairs of groups whose inputs are nearly the same."""

    group: np.ndarray  # (n,) the group of each row; groups are counted by their first row
    first: np.ndarray  # (g,) the first row of each group
    pairs: np.ndarray  # (p, 2) groups
    likeness: np.ndarray  # (p,)

    def extra(self) -> int:
        """Rows beyond the first of their group."""
        return len(self.group) - len(self.first)

    def there(self, place: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) whether a row's input is in each place, and whether it is not but one nearly the same is.

        `place` (n,) is -1 where a row is in none.
        """
        equal, near = self._presence(place, k)
        return equal[self.group], (near & ~equal)[self.group]

    def twice(self, place: np.ndarray) -> np.ndarray:
        """(n,) whether an earlier row of the same place has the same input."""
        codes = self.group * (int(place.max(initial=0)) + 2) + place + 1
        found = np.ones(len(place), dtype=bool)
        found[np.unique(codes, return_index=True)[1]] = False
        return found

    def near_inside(self, place: np.ndarray, k: int) -> np.ndarray:
        """(n,) whether another row of the same place is nearly, but not quite, the same."""
        near = self._presence(place, k)[1]
        return (place >= 0) & near[self.group, place]

    def _presence(self, place: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(g, k) whether a group is in each place, and whether one near to it is."""
        equal = np.zeros((len(self.first), k), dtype=bool)
        known = place >= 0
        equal[self.group[known], place[known]] = True
        near = np.zeros_like(equal)
        for one, other in ((0, 1), (1, 0)):
            np.logical_or.at(near, self.pairs[:, one], equal[self.pairs[:, other]])
        return equal, near


@dataclass(frozen=True, eq=False)
class Choice:
    """What becomes of each row: kept, or dropped for a reason and because of another row."""

    reason: np.ndarray  # (n,) into REASONS
    because: np.ndarray  # (n,) a row with the same or nearly the same input, itself where it is kept

    def kept(self) -> np.ndarray:
        return np.flatnonzero(self.reason == KEPT)

    def dropped(self) -> np.ndarray:
        return np.flatnonzero(self.reason != KEPT)


def find_copies(examples: Examples, *, near: float) -> Copies:
    """Equal inputs by their hashes, and pairs of nearly equal ones where `near` is below 1."""
    _, first, group = np.unique(examples.hashes(), return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    first, group = first[order], rank[group.ravel()]
    pairs, likeness = np.empty((0, 2), dtype=np.int64), np.empty(0)
    if near < 1:
        pairs, likeness = examples.near(first, near=near)
    return Copies(group, first, pairs, likeness)


def conflicts(copies: Copies, targets: np.ndarray) -> np.ndarray:
    """(n,) whether a row's input also occurs with another target."""
    known = targets >= 0
    low = np.full(len(copies.first), np.iinfo(np.int64).max)
    high = np.full(len(copies.first), -1)
    np.minimum.at(low, copies.group[known], targets[known])
    np.maximum.at(high, copies.group[known], targets[known])
    return (low < high)[copies.group] & known


def choose(copies: Copies, targets: np.ndarray, split: np.ndarray | None) -> Choice:
    """One row of every input, none nearly the same as another that is kept.

    Test rows are kept before validation rows and these before training rows, so that a published test set stays as it
    is; of equals the first in the file. Of equal inputs with different targets one with the commonest target is kept,
    and none where there is no commonest.
    """
    n, g = len(copies.group), len(copies.first)
    rank = np.zeros(n, dtype=np.int64) if split is None else 2 - split  # no split comes last
    codes = copies.group * (int(targets.max(initial=0)) + 2) + targets + 1
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    votes = counts[inverse.ravel()]
    votes = np.where(targets < 0, 0, votes)
    order = np.lexsort((np.arange(n), rank, -votes, copies.group))
    winner = order[np.flatnonzero(np.diff(copies.group[order], prepend=-1))]  # (g,)
    tied = np.zeros(g, dtype=bool)
    rival = (votes == votes[winner][copies.group]) & (targets != targets[winner][copies.group]) & (targets >= 0)
    tied[copies.group[rival]] = True
    reason = np.where(np.arange(n) == winner[copies.group], KEPT, EQUAL)
    because = winner[copies.group]
    reason[tied[copies.group]] = CONFLICT
    because = np.where(tied[copies.group], copies.first[copies.group], because)
    for group, of in _near_to_kept(copies, winner, rank, tied):
        reason[winner[group]], because[winner[group]] = NEAR, winner[of]
    return Choice(reason, because)


def _near_to_kept(copies: Copies, winner: np.ndarray, rank: np.ndarray, tied: np.ndarray) -> list[tuple[int, int]]:
    """(group, a kept group near to it) for all that go; who comes first is kept."""
    neighbours: dict[int, list[int]] = {}
    for one, other in copies.pairs.tolist():
        if not tied[one] and not tied[other]:
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)
    kept: set[int] = set()
    gone = []
    for group in sorted(neighbours, key=lambda each: (rank[winner[each]], winner[each])):
        of = next((other for other in neighbours[group] if other in kept), None)
        if of is None:
            kept.add(group)
        else:
            gone.append((group, of))
    return gone

"""How far the inputs of two domains lie apart where their labels are the same, and which words they share.

n examples, k domains
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from holdfast.analysis.shift import a_distance
from holdfast.core.seeds import derive
from holdfast.inspection.examples import Examples

LEAST = 10  # examples of a domain: of fewer even 2, the largest distance, could be chance
MOST = 1000  # examples a side
REPEATS = 3
MANY = 45  # pairs of domains; of more, fewer examples are drawn once
FEW = 400


@dataclass(frozen=True)
class Distance:
    """The A-distance of two domains: 0 where a linear classifier cannot tell them apart, 2 where it never errs."""

    one: str
    other: str
    mean: float
    noise: float  # one standard deviation of what chance gives where both are the same
    examples: int  # a side
    matched: bool  # whether both sides have the same labels equally often

    @property
    def real(self) -> bool:
        return self.mean > 3 * self.noise


def input_distances(examples: Examples, rows: Mapping[str, np.ndarray], *, seed: int) -> list[Distance]:
    """Every two domains, on cheap features of these rows, as many of each label from both; too small ones are left out.

    Drawing labels alike takes their shift away, which else would show in the inputs too.
    """
    pairs = [(a, b) for a, b in combinations(rows, 2) if min(len(rows[a]), len(rows[b])) >= LEAST]
    repeats, most = (REPEATS, MOST) if len(pairs) <= MANY else (1, FEW)
    used = {name for pair in pairs for name in pair}
    features = {name: examples.features(own) for name, own in rows.items() if name in used}
    y = examples.dataset.y
    found = []
    for a, b in pairs:
        chance = np.random.default_rng(derive(seed, "matched", a, b))
        sides = _matched(y[rows[a]], y[rows[b]], chance)
        one, other = (features[a], features[b]) if sides is None else (features[a][sides[0]], features[b][sides[1]])
        apart = a_distance(one, other, seed=seed, repeats=repeats, most=most)
        found.append(Distance(a, b, apart.mean, apart.noise, apart.examples, sides is not None))
    return found


def _matched(one: np.ndarray, other: np.ndarray, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Places in both with equally many of each label; None where there are no labels, or too few are shared."""
    left, right = [], []
    for label in np.intersect1d(one[one >= 0], other[other >= 0]):
        places = [np.flatnonzero(side == label) for side in (one, other)]
        count = min(map(len, places))
        for kept, place in zip((left, right), places, strict=True):
            kept.append(chance.permutation(place)[:count])
    if sum(map(len, left)) < LEAST:
        return None
    return np.concatenate(left), np.concatenate(right)


def shared_words(examples: Examples, rows: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Of all words said in a domain, the share that another domain says too; from equally many texts of each."""
    few = min(map(len, rows.values()))
    said = {name: examples.words(own[:few]) for name, own in rows.items()}
    known = {name: set(words) for name, words in said.items()}
    return {
        name: {
            other: sum(word in known[other] for word in words) / max(1, len(words)) for other in rows if other != name
        }
        for name, words in said.items()
    }

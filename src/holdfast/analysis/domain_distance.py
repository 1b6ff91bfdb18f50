"""How far domains lie apart: the A-distance, 2 (1 - 2 e), e the error of a linear classifier that tells them apart.

n examples, d width
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from holdfast.analysis.views import Views
from holdfast.core.errors import BadInput
from holdfast.core.seeds import derive

GRID = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # inverse strengths of the ridge; of equal ones the strongest ridge is taken
REPEATS = 5
MOST = 1000  # examples a side
LEAST = 8


@dataclass(frozen=True, slots=True)
class Distance:
    """0 where a linear classifier cannot tell two domains apart, 2 where it never errs."""

    mean: float  # over the repeats, then clipped to [0, 2]: chance alone makes it a little negative
    std: float  # over the repeats, which share examples: a spread, not an error of the mean
    noise: float  # the standard deviation of one repeat where the domains are the same
    values: tuple[float, ...]  # each repeat, not clipped
    examples: int  # a side, half of them to learn from and half to be scored


def a_distance(one: np.ndarray, other: np.ndarray, *, seed: int, repeats: int = REPEATS, most: int = MOST) -> Distance:
    """The A-distance of two sets of features (n, d) (Ben-David et al., 2007), on equally many examples of each.

    Every repeat draws the examples and cuts them into halves anew; the ridge is chosen inside the first half.
    """
    if min(len(one), len(other)) < LEAST:
        raise BadInput(
            f"the A-distance needs at least {LEAST} examples of each domain, here are {len(one)} and {len(other)}"
        )
    half = min(len(one), len(other), most) // 2
    values = []
    for repeat in range(repeats):
        chance = np.random.default_rng(derive(seed, "a-distance", repeat))
        drawn = [side[chance.permutation(len(side))[: 2 * half]] for side in (one, other)]
        learn, held = (np.concatenate([side[cut] for side in drawn]) for cut in (slice(half), slice(half, None)))
        values.append(2 * (1 - 2 * _held_out_error(learn, held)))
    spread = float(np.std(values, ddof=1)) if repeats > 1 else 0.0
    mean = float(np.clip(np.mean(values), 0, 2))
    return Distance(mean, spread, 2 / float(np.sqrt(2 * half)), tuple(values), 2 * half)


def pairwise(
    features: Mapping[str, np.ndarray], *, seed: int, repeats: int = REPEATS, most: int = MOST
) -> dict[str, dict[str, Distance]]:
    """The A-distance of every two domains; symmetric, without the diagonal."""
    found: dict[str, dict[str, Distance]] = {name: {} for name in features}
    for a, b in combinations(features, 2):
        found[a][b] = found[b][a] = a_distance(features[a], features[b], seed=seed, repeats=repeats, most=most)
    return found


def against_sources(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Each target against all sources together, on the features that the head gets; None where rows are too few."""
    if not views.sources:
        return None
    pool = np.concatenate([view.features for view in views.sources])
    found = {
        view.domain: _plain(a_distance(view.features, pool, seed=seed))
        for view in views.targets
        if min(len(view.features), len(pool)) >= LEAST
    }
    return {"targets": found, "most": MOST} if found else None


def _held_out_error(learn: np.ndarray, held: np.ndarray) -> float:
    """The error on `held` of a classifier fitted on `learn`; in both the first half is one domain."""
    middle, scale = learn.mean(axis=0), learn.std(axis=0)
    scale[scale == 0] = 1
    learn, held = (learn - middle) / scale, (held - middle) / scale
    half = len(learn) // 2
    cut = half - max(1, half // 4)  # a quarter of the examples to learn from chooses the ridge
    rows = np.arange(half)
    inner, outer = (np.concatenate([part, part + half]) for part in (rows[:cut], rows[cut:]))
    errors = [_error(learn[inner], learn[outer], strength) for strength in GRID]
    return _error(learn, held, GRID[int(np.argmin(errors))])


def _error(learn: np.ndarray, held: np.ndarray, strength: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one that stopped early is a linear classifier too
        fitted = LogisticRegression(C=strength, max_iter=200).fit(learn, _sides(learn))
    return float(np.mean(fitted.predict(held) != _sides(held)))


def _sides(x: np.ndarray) -> np.ndarray:
    return np.repeat([0, 1], len(x) // 2)


def _plain(distance: Distance) -> dict[str, Any]:
    told = asdict(distance) | {"values": list(distance.values)}
    return {k: [round(v, 4) for v in x] if isinstance(x, list) else round(x, 4) for k, x in told.items()}

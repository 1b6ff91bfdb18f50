"""How far the inputs of two domains lie apart where their labels are the same, and which words they share.

n examples, k domains
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack
from scipy.stats import chi2_contingency
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from holdfast.analysis.domain_distance import a_distance
from holdfast.audit.examples import Examples
from holdfast.core.inputs import Sentence
from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset
from holdfast.report.statistics import holm

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


HELD = 0.3


@dataclass(frozen=True)
class Quick:
    """Accuracy on the same held-out rows of one domain."""

    domain: str
    inside: float  # trained on the other rows of the domain
    outside: float  # trained on as many rows of the other domains, evenly drawn
    everything: float  # trained on all rows of the other domains
    majority: float  # the share of the domain's commonest label: what needs no input
    error: float  # standard error of the difference, over the held-out rows
    scored: int

    @property
    def cost(self) -> float:
        return self.inside - self.outside


def quick_scores(examples: Examples, rows: Mapping[str, np.ndarray]) -> list[Quick]:
    """Every domain with enough labelled rows, each of which is in chance order: the first are held out."""
    y = examples.dataset.y
    parts = {name: own[y[own] >= 0] for name, own in rows.items()}
    parts = {name: own for name, own in parts.items() if len(own) >= LEAST}
    if len(parts) < 2:
        return []
    features = {name: examples.phrases(own) for name, own in parts.items()}
    if not issparse(next(iter(features.values()))):
        scale = np.concatenate(list(features.values())).std(axis=0) + 1e-6
        features = {name: x / scale for name, x in features.items()}
    held = {name: max(1, int(HELD * len(own))) for name, own in parts.items()}
    found = []
    for name, own in parts.items():
        cut = held[name]
        test, inner = features[name][:cut], features[name][cut:]
        others = [(features[other][held[other] :], y[parts[other][held[other] :]]) for other in parts if other != name]
        few = -(-(len(own) - cut) // len(others))  # rounded up
        truth = y[own[:cut]]
        inside = _predicted([(inner, y[own[cut:]])], test) == truth
        outside = _predicted([(x[:few], labels[:few]) for x, labels in others], test) == truth
        everything = _predicted(others, test) == truth
        error = float((inside.astype(int) - outside).std() / np.sqrt(cut))
        found.append(
            Quick(
                domain=name,
                inside=float(inside.mean()),
                outside=float(outside.mean()),
                everything=float(everything.mean()),
                majority=float(np.bincount(truth).max() / cut),
                error=error,
                scored=cut,
            )
        )
    return found


def _predicted(parts: list[tuple[Any, np.ndarray]], test: Any) -> np.ndarray:
    """What a linear classifier that learned these parts says of the test rows."""
    x = [features for features, _ in parts]
    y = np.concatenate([labels for _, labels in parts])
    if len(np.unique(y)) < 2:
        return np.full(test.shape[0], y[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one that stopped early is a linear classifier too
        fitted = LinearSVC(C=1.0 if issparse(test) else 0.1, max_iter=200, random_state=0)
        fitted.fit(vstack(x, format="csr") if issparse(test) else np.concatenate(x), y)
    return np.asarray(fitted.predict(test))

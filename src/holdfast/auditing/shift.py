"""Shift between domains: distances of inputs, label shift and shared vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from holdfast.analysis.domain_distance import a_distance
from holdfast.auditing.examples import WORDS, Examples
from holdfast.auditing.probe import target_groups
from holdfast.core.inputs import Sentence
from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset
from holdfast.report.sections import Cell, share_cell
from holdfast.report.terminal import Grid, matrix
from holdfast.stats.statistics import holm
from holdfast.stats.two_sample import chi_square, ks_test, total_variation

MIN_ROWS = 10  # per domain; with fewer even the largest distance could occur by chance
MAX_ROWS = 1000  # per domain
REPEATS = 3
MANY_PAIRS = 45  # with more pairs of domains, FEW_ROWS are sampled once
FEW_ROWS = 400
LEVEL = 0.01  # significance level of label shifts


@dataclass(frozen=True)
class Distance:
    """A-distance of two domains: 0 if a linear classifier cannot separate them, 2 if it always can."""

    one: str
    other: str
    mean: float
    noise: float  # standard deviation for two samples of one distribution
    examples: int  # per domain
    matched: bool  # whether both samples have equal label counts

    @property
    def real(self) -> bool:
        return self.mean > 3 * self.noise


def input_distances(examples: Examples, rows: Mapping[str, np.ndarray], *, seed: int) -> list[Distance]:
    """Return the A-distance of every two domains with enough rows, on cheap features.

    Labels are matched by sampling, so that a label shift does not appear as a shift of the inputs.
    """
    pairs = [(a, b) for a, b in combinations(rows, 2) if min(len(rows[a]), len(rows[b])) >= MIN_ROWS]
    repeats, max_rows = (REPEATS, MAX_ROWS) if len(pairs) <= MANY_PAIRS else (1, FEW_ROWS)
    used = {name for pair in pairs for name in pair}
    features = {name: examples.features(domain_rows) for name, domain_rows in rows.items() if name in used}
    y = target_groups(examples.dataset)
    distances = []
    for a, b in pairs:
        rng = np.random.default_rng(derive(seed, "matched", a, b))
        sides = _matched(y[rows[a]], y[rows[b]], rng)
        one, other = (features[a], features[b]) if sides is None else (features[a][sides[0]], features[b][sides[1]])
        distance = a_distance(one, other, seed=seed, repeats=repeats, most=max_rows)
        distances.append(Distance(a, b, distance.mean, distance.noise, distance.examples, sides is not None))
    return distances


def distance_grid(names: Sequence[str], distances: Sequence[Distance]) -> Grid:
    """A-distance of every two domains."""
    noise = max((distance.noise for distance in distances), default=0.0)
    matched = all(distance.matched for distance in distances)
    rows = max((distance.examples for distance in distances), default=0)
    about = (
        "A-distance: 0 if a linear classifier cannot separate two domains, 2 if it always can; up to "
        f"{rows:,} rows per domain{', with equal label counts' if matched else ''}. Identical domains reach up to "
        f"{min(2.0, 3 * noise):.2f} by chance; * marks larger distances."
    )
    values = {(d.one, d.other): (d.mean, d.real) for d in distances}
    return matrix("Distance of inputs", about, names, _symmetric(values), top=2.0)


def _matched(one: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions in both with equal label counts, or None without labels or with too few in common."""
    left, right = [], []
    for label in np.intersect1d(one[one >= 0], other[other >= 0]):
        positions = [np.flatnonzero(side == label) for side in (one, other)]
        count = min(map(len, positions))
        for side, candidates in zip((left, right), positions, strict=True):
            side.append(rng.permutation(candidates)[:count])
    if sum(map(len, left)) < MIN_ROWS:
        return None
    return np.concatenate(left), np.concatenate(right)


def shared_words(examples: Examples, rows: Mapping[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Return the share of a domain's word occurrences that another domain also uses, from equal numbers of texts."""
    count = min(map(len, rows.values()))
    texts = {name: examples.texts(domain_rows[:count]) for name, domain_rows in rows.items()}
    used = {name: WORDS.findall(" ".join(own).lower()) for name, own in texts.items()}
    vocabulary = {name: set(words) for name, words in used.items()}

    def share(words: list[str], other: str) -> float:
        return sum(word in vocabulary[other] for word in words) / max(1, len(words))

    return {name: {other: share(words, other) for other in rows if other != name} for name, words in used.items()}


def word_grid(shares: dict[str, dict[str, float]], texts: int) -> Grid:
    about = f"Percentage of the words of a domain (row) that another domain (column) also uses; {texts:,} texts each."
    cells = {(one, other): share_cell(value) for one, others in shares.items() for other, value in others.items()}
    return matrix("Shared words", about, list(shares), cells, top=1.0)


@dataclass(frozen=True)
class LabelShift:
    """Distance between the label distributions of two domains, and its significance.

    The distance is the total variation distance for classes, the largest difference of a label's share for sets of
    labels, and the Kolmogorov-Smirnov distance for numbers.
    """

    one: str
    other: str
    variation: float  # 0 for equal distributions, 1 if no label is shared
    p: float  # chi-square or Kolmogorov-Smirnov test, Holm-corrected over all pairs
    rows: int  # labels of the smaller domain

    @property
    def real(self) -> bool:
        return self.p < LEVEL


def label_counts(dataset: Dataset) -> tuple[tuple[str, ...], np.ndarray]:
    """Return label names and counts (k, c) per domain; entity types for tagged sentences, none for numbers."""
    if dataset.targets is not None:
        columns = dataset.targets if dataset.targets.ndim == 2 else np.zeros((len(dataset), 0))
        sums = [columns[dataset.domain == index].sum(axis=0) for index in range(len(dataset.domains))]
        return dataset.classes, np.stack(sums).astype(np.int64)
    counts = np.zeros((len(dataset.domains), len(dataset.classes)), dtype=np.int64)
    if dataset.y.max(initial=-1) >= 0:
        known = dataset.y >= 0
        np.add.at(counts, (dataset.domain[known], dataset.y[known]), 1)
        return dataset.classes, counts
    entity_starts = [i for i, name in enumerate(dataset.classes) if name.startswith("B-")]
    if dataset.raw.kind != "text" or not entity_starts:
        return (), counts[:, :0]
    for index in range(len(dataset.domains)):
        for example in dataset.raw.take(np.flatnonzero(dataset.domain == index)):
            if isinstance(example, Sentence) and example.tags is not None:
                counts[index] += np.bincount(example.tags, minlength=counts.shape[1])
    return tuple(dataset.classes[i][2:] for i in entity_starts), counts[:, entity_starts]


def target_shifts(dataset: Dataset, counts: np.ndarray) -> list[LabelShift]:
    """Return the label shift of every two domains, for the targets of any task; `counts` are those of the labels."""
    if dataset.targets is None:
        return label_shifts(dataset.domains, counts)
    samples = [dataset.targets[(dataset.domain == index) & (dataset.y >= 0)] for index in range(len(dataset.domains))]
    compare = set_difference if dataset.targets.ndim == 2 else ks_test
    return _pair_shifts(dataset.domains, samples, list(map(len, samples)), compare)


def label_shifts(domains: tuple[str, ...], counts: np.ndarray) -> list[LabelShift]:
    """Return the label shift of every two domains with labels, from counts (k, c)."""

    def compare(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
        two = np.stack([one, other])
        return total_variation(two), chi_square(two)

    return _pair_shifts(domains, counts, counts.sum(axis=1).tolist(), compare)


def _pair_shifts(
    domains: tuple[str, ...], samples: Sequence[np.ndarray] | np.ndarray, sizes: Sequence[int],
    compare: Callable[[np.ndarray, np.ndarray], tuple[float, float]],
) -> list[LabelShift]:  # fmt: skip
    """Compare every two domains with labels; the p values are corrected for all pairs."""
    pairs = [(a, b) for a, b in combinations(range(len(domains)), 2) if sizes[a] and sizes[b]]
    results = [compare(samples[a], samples[b]) for a, b in pairs]
    ps = holm([p for _, p in results])
    return [
        LabelShift(domains[a], domains[b], distance, float(p or 0.0), min(sizes[a], sizes[b]))
        for (a, b), (distance, _), p in zip(pairs, results, ps, strict=True)
    ]


def set_difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the largest difference of a label's share between rows (n, c), (m, c), and Bonferroni's p value."""
    counts = np.stack([one.sum(axis=0), other.sum(axis=0)])
    sizes = np.asarray([[len(one)], [len(other)]])
    distance = float(np.abs(np.subtract(*(counts / sizes))).max(initial=0.0))
    ps = [chi_square(np.stack([counts[:, c], sizes[:, 0] - counts[:, c]], axis=1)) for c in range(counts.shape[1])]
    return distance, min(1.0, len(ps) * min(ps, default=1.0))


def label_grid(names: Sequence[str], shifts: Sequence[LabelShift], task: str) -> Grid:
    """Distance of the labels of every two domains."""
    what, test = {
        "regress": ("Kolmogorov-Smirnov distance of the labels", "Kolmogorov-Smirnov"),
        "multilabel": ("Largest difference of the share of a label", "chi-square"),
    }.get(task, ("Total variation distance of the label distributions", "chi-square"))
    about = (
        f"{what}: 0 if they are equal, 1 if {'they do not overlap' if task == 'regress' else 'no label is shared'}. * "
        f"is significant ({test} test, p < 0.01 after Holm's correction)."
    )
    values = {(s.one, s.other): (s.variation, s.real) for s in shifts}
    return matrix("Label shift", about, names, _symmetric(values), top=1.0)


def _symmetric(values: dict[tuple[str, str], tuple[float, bool]]) -> dict[tuple[str, str], Cell]:
    """Return the cells of a symmetric matrix; significant values get an asterisk."""
    return {
        pair: (f"{value:.2f}{'*' if significant else ''}", value)
        for (one, other), (value, significant) in values.items()
        for pair in ((one, other), (other, one))
    }

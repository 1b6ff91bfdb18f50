"""A-distance between domains: 2 (1 - 2e), with e the error of a linear classifier that separates them.

Shapes: n examples, d width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.analysis import random_generator, rounded
from holdfast.core.errors import BadInput, quiet_fit
from holdfast.report.axes import Axis
from holdfast.report.marks import Bars, Errors
from holdfast.report.plots import COLOURS, Plot, legend, style
from holdfast.report.sections import Section
from holdfast.stats.labels import Groups, configuration, natural_key
from holdfast.stats.statistics import Cell, summarise

if TYPE_CHECKING:
    from holdfast.analysis.views import Views

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # inverse ridge strengths; ties go to the strongest ridge
REPEATS = 5
MAX_EXAMPLES = 1000  # per side
MIN_EXAMPLES = 8
PATTERNS = ("", "/", "x", ".")  # each cycle of colours has its own pattern


@dataclass(frozen=True, slots=True)
class Distance:
    """A-distance: 0 if a linear classifier cannot separate two domains, 2 if it makes no error."""

    mean: float  # over repeats, then clipped to [0, 2]; it can be slightly negative before
    std: float  # over repeats, which share examples: a spread, not a standard error
    noise: float  # standard deviation of one repeat for identical domains
    values: tuple[float, ...]  # one per repeat, not clipped
    examples: int  # per side, half to train and half to test the classifier


def a_distance(
    one: np.ndarray, other: np.ndarray, *, seed: int, repeats: int = REPEATS, most: int = MAX_EXAMPLES
) -> Distance:
    """Compute the A-distance of two sets of features (n, d) (Ben-David et al., 2007) on equal numbers of examples.

    Every repeat samples examples and splits them into halves; the ridge is selected within the first half.
    """
    if min(len(one), len(other)) < MIN_EXAMPLES:
        raise BadInput(
            f"the A-distance needs at least {MIN_EXAMPLES} examples per domain; got {len(one)} and {len(other)}"
        )
    half = min(len(one), len(other), most) // 2
    values = []
    for repeat in range(repeats):
        rng = random_generator(seed, "a-distance", repeat)
        drawn = [side[rng.permutation(len(side))[: 2 * half]] for side in (one, other)]
        train, test = (np.concatenate([side[cut] for side in drawn]) for cut in (slice(half), slice(half, None)))
        values.append(2 * (1 - 2 * _held_out_error(train, test)))
    spread = float(np.std(values, ddof=1)) if repeats > 1 else 0.0
    mean = float(np.clip(np.mean(values), 0, 2))
    return Distance(mean, spread, 2 / float(np.sqrt(2 * half)), tuple(values), 2 * half)


def pairwise(
    features: Mapping[str, np.ndarray], *, seed: int, repeats: int = REPEATS, most: int = MAX_EXAMPLES
) -> dict[str, dict[str, Distance]]:
    """Compute the A-distance of every pair of domains; symmetric, without the diagonal."""
    distances: dict[str, dict[str, Distance]] = {name: {} for name in features}
    for a, b in combinations(features, 2):
        distances[a][b] = distances[b][a] = a_distance(features[a], features[b], seed=seed, repeats=repeats, most=most)
    return distances


def _held_out_error(train: np.ndarray, test: np.ndarray) -> float:
    """Return the test error of a classifier fitted on `train`; the first half of both is one domain."""
    centre, scale = train.mean(axis=0), train.std(axis=0)
    scale[scale == 0] = 1
    train, test = (train - centre) / scale, (test - centre) / scale
    half = len(train) // 2
    cut = half - max(1, half // 4)  # a quarter of the training examples selects the ridge
    rows = np.arange(half)
    inner, outer = (np.concatenate([part, part + half]) for part in (rows[:cut], rows[cut:]))
    errors = [_error(train[inner], train[outer], strength) for strength in STRENGTHS]
    return _error(train, test, STRENGTHS[int(np.argmin(errors))])


def _error(train: np.ndarray, test: np.ndarray, strength: float) -> float:
    from sklearn.linear_model import LogisticRegression  # slow to import, and drawing does not need it

    labels, expected = (np.repeat([0, 1], len(x) // 2) for x in (train, test))
    with quiet_fit():  # a classifier that stopped early is linear too
        fitted = LogisticRegression(C=strength, max_iter=200).fit(train, labels)
    return float(np.mean(fitted.predict(test) != expected))


def against_sources(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Measure each target against all sources together on the input of the head; None for too few rows."""
    if not views.sources:
        return None
    pool = np.concatenate([view.features for view in views.sources])
    targets = {
        view.domain: _rounded(a_distance(view.features, pool, seed=seed))
        for view in views.targets
        if min(len(view.features), len(pool)) >= MIN_EXAMPLES
    }
    return {"targets": targets, "most": MAX_EXAMPLES} if targets else None


def _rounded(distance: Distance) -> dict[str, Any]:
    fields = asdict(distance) | {"values": rounded(distance.values)}
    return {k: x if isinstance(x, list) else round(x, 4) for k, x in fields.items()}


def distances(groups: Groups) -> dict[str, dict[str, Cell]]:
    """Map label to target to A-distance; labels in the order of the report, targets by name.

    The error is the standard error over seeds or, for one seed, the spread over repeats.
    """
    results = [(label, r, _targets(r.analysis)) for label, group in groups.items() for r in group]
    runs = Counter((configuration(r), r.spec.get("seed"), target) for _, r, targets in results for target in targets)
    ambiguous = any(count > 1 for count in runs.values())  # several episodes measure one target
    by_label: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for label, record, targets in results:
        for target, distance in targets.items():
            name = f"{record.episode}>{target}" if ambiguous else target
            by_label.setdefault(label, {}).setdefault(name, []).append(distance)
    return {
        label: {target: _bar(by_target[target]) for target in sorted(by_target, key=natural_key)}
        for label, by_target in by_label.items()
    }


def _targets(analysis: Mapping[str, Any]) -> Mapping[str, Any]:
    return (analysis.get("a-distance") or {"targets": {}})["targets"]


def _bar(seeds: list[Mapping[str, Any]]) -> Cell:
    cell = summarise([float(distance["mean"]) for distance in seeds])
    return replace(cell, stderr=float(seeds[0]["std"])) if cell.stderr is None else cell


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw the distances of all methods and targets."""
    bars = distances(groups)
    if not bars:
        return []
    noise = max(d["noise"] for group in groups.values() for r in group for d in _targets(r.analysis).values())
    several = max(bar.n for by_target in bars.values() for bar in by_target.values()) > 1
    errors = "one standard error over seeds" if several else "the spread over five repeats"
    text = (
        "A-distance of the features that the head receives: 2 (1 - 2e), with e the held-out error of a linear "
        "classifier that separates the target from the sources. 0: the domains cannot be separated; 2: the classifier "
        f"makes no error. Error bars are {errors}; for identical domains, a single repeat has a standard deviation of "
        f"{noise:.2f}."
    )
    positions = {label: position for position, label in enumerate(groups)}
    figure = draw_distances(bars, positions)
    return [Section("Distance between target and sources", text, figure=figure, legend=legend(groups, bars))]


def draw_distances(bars: Mapping[str, Mapping[str, Cell]], positions: Mapping[str, int]) -> str:
    """Draw one bar with error per method and target, in the colour of the method."""
    targets = list(dict.fromkeys(target for by_target in bars.values() for target in by_target))
    marks = []
    for label, by_target in bars.items():
        entries, index = by_target.values(), positions[label]
        marks.append(Bars(
            list(by_target), [bar.mean for bar in entries],
            [f"{label}, {t}: {bar.mean:.2f} ± {bar.stderr or 0.0:.2f} (n={bar.n})" for t, bar in by_target.items()],
            name=label, owner=label, colour=style(index)[0], errors=Errors([bar.stderr or 0.0 for bar in entries]),
            pattern=PATTERNS[index // len(COLOURS) % len(PATTERNS)],
        ))  # fmt: skip
    y = Axis("A-distance", limits=(0, 2.05))
    return Plot(*marks, x=Axis(names=targets), y=y, gap=0.25).html("a-distance", height=360, legend=False)

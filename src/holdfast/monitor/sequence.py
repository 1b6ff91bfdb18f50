"""Test of the latest batches together: drift that is too small for one batch adds up over several.

A batch leaves a summary of counts and one mean, from which no example can be read. Summaries of consecutive batches add
up to that of all their rows, which is compared with the reference. Batches before them that did not drift extend the
reference, which is often smaller than a few batches. The mean is that of random Fourier features (Rahimi and Recht,
2007): the distance of two means is an estimate of the maximum mean discrepancy.

Shapes: n examples, d axes, k random features, b bins.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import pearson3

from holdfast.core.seeds import derive
from holdfast.monitor.drift import BANDWIDTHS, MIN_ROWS, Finding, compare_counts, corrected, median_distance
from holdfast.monitor.observe import Observed, values_of
from holdfast.stats.two_sample import ks_test_of_counts
from holdfast.uncertainty.reference import Reference

WINDOW = 3  # latest batches that are tested together
EARLIER = 8  # batches before them that extend the reference, unless they drifted
WAVES = 64  # random features per bandwidth
BINS = 20  # of equal share of the reference
MEAN = "features"
KEPT = WINDOW + EARLIER  # batches whose summaries are needed
ALL = slice(None)
SUFFIX = "of the latest batches"


Summary = Mapping[str, Any]  # "sequence": digest, "rows": count, and a list of numbers per statistic
Past = Mapping[str, Any]  # an earlier batch: "summary", and "drifted", the names of the tests that found drift


@dataclass(frozen=True, eq=False)
class SequenceTest:
    """Tests of the latest batches together against the reference of a model."""

    reference: Reference
    predicts: str
    seed: int = 0
    selections: dict[bytes, tuple[Summary, np.ndarray]] = field(default_factory=dict)  # of the reference

    @cached_property
    def digest(self) -> str:
        """Identifies the reference and the bins: summaries of another reference cannot be added."""
        # counts of other bins and means of other random features must not be added up
        hashed = hashlib.sha256(repr((WAVES, BINS, BANDWIDTHS, self.seed)).encode())
        for array in (self.reference.outputs, self.reference.coordinates, self.reference.domain):
            hashed.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()[:12]

    @cached_property
    def _waves(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Directions (d, k) and phases (k,) of the random features; None for a model without features."""
        coordinates = self.reference.coordinates
        if coordinates is None:
            return None
        # stored means must fit those of later batches, so the directions follow from the seed; frequencies of a
        # Gaussian kernel are normal with the inverse of its bandwidth as standard deviation
        rng = np.random.default_rng(derive(self.seed, "waves"))
        width, median = coordinates.shape[1], median_distance(coordinates)
        directions = [rng.normal(size=(width, WAVES)) / (scale * median) for scale in BANDWIDTHS]
        return np.concatenate(directions, axis=1), rng.uniform(0, 2 * np.pi, WAVES * len(BANDWIDTHS))

    def _random_features(self, coordinates: np.ndarray) -> np.ndarray:
        assert self._waves is not None
        directions, phases = self._waves
        # inner products estimate the sum of the kernels over all bandwidths
        return np.sqrt(2 / WAVES) * np.cos(coordinates.astype(np.float64) @ directions + phases)  # (n, k)

    @cached_property
    def _edges(self) -> dict[str, np.ndarray]:
        """Inner edges of bins with about equal shares of the reference."""
        at, values = np.linspace(0, 1, BINS + 1)[1:-1], _values(self.reference, self.predicts)
        # where one value is frequent, several quantiles coincide: equal edges are merged
        return {name: np.unique(np.quantile(_finite(known), at)) for name, known in values.items() if len(known)}

    def summary(self, observed: Observed) -> Summary:
        """Summarise a batch by counts and one mean."""
        lists = {name: np.round(values, 5).tolist() for name, values in self._statistics(observed).items()}
        return {"sequence": self.digest, "rows": len(observed), **lists}

    def _statistics(self, own: Observed | Reference, mask: np.ndarray | slice = ALL) -> dict[str, np.ndarray]:
        """Return the mean of the random features of some examples, and their counts per class and per bin."""
        statistics = {}
        if own.coordinates is not None and self._waves is not None:
            statistics[MEAN] = self._random_features(own.coordinates[mask]).mean(axis=0)
        if self.predicts == "classes":
            counts = np.bincount(own.outputs[mask].argmax(axis=1), minlength=own.outputs.shape[1])
            statistics["predictions"] = counts
        for name, values in _values(own, self.predicts).items():
            if name in self._edges:
                statistics[name] = _binned(_finite(values[mask]), self._edges[name])
        return statistics

    def _selection(self, mask: np.ndarray) -> tuple[Summary, np.ndarray]:
        """Return the statistics of examples of the reference, and the spectrum (k,) of their random features.

        The spectrum holds the eigenvalues of the covariance of one example; it is empty without features.
        """
        # one decomposition (k, k) per selection of the reference: the same domain is tested batch after batch
        key = mask.tobytes()
        if key not in self.selections:
            coordinates, spectrum = self.reference.coordinates, np.zeros(0)
            if coordinates is not None:
                spectrum = np.linalg.eigvalsh(np.cov(self._random_features(coordinates[mask]).T)).clip(0)
            self.selections[key] = {"rows": int(mask.sum()), **self._statistics(self.reference, mask)}, spectrum
        return self.selections[key]

    def findings(self, past: Sequence[Past], summary: Summary, mask: np.ndarray, *, level: float) -> list[Finding]:
        """Test a batch together with those before it; empty without any.

        `mask` (m,) selects the reference. The tests share half of the level; the other half is that of single batches.
        """
        # summaries of another version of the model cannot be compared with this reference
        usable = [each for each in past if each["summary"].get("sequence") == self.digest]
        if not usable or mask.sum() < MIN_ROWS:
            return []
        # the window is this batch and those just before it; batches before the window may extend the reference
        latest = _added([*(each["summary"] for each in usable[1 - WINDOW :]), summary])
        known, spectrum = self._selection(mask)
        before = _added([known, *_undrifted(usable, len(usable) - (WINDOW - 1))[-EARLIER:]])
        features, others = None, list[Finding]()
        for name in (name for name in before if name != "rows" and name in latest):
            own, expected = latest[name], before[name]
            if name == MEAN:
                # the difference of two means of n and m examples has the covariance of one example times 1/n + 1/m
                features = _compare_means(own, expected, spectrum * (1 / latest["rows"] + 1 / before["rows"]))
            elif name == "predictions":
                others.append(compare_counts(name, own, expected))
            elif min(own.sum(), expected.sum()) >= MIN_ROWS:  # with few known values the p value is not reliable
                distance, p = ks_test_of_counts(np.stack([own, expected]))
                others.append(Finding(name, distance, None, None, p))
        tests = corrected(features, others, level=level, shares=2)
        return [replace(each, name=f"{each.name} {SUFFIX}") for each in tests]


def _values(own: Observed | Reference, predicts: str) -> dict[str, np.ndarray]:
    """Return the numbers (n,) per example that are known, by the names of `values_of`."""
    values = {name: read(own) for name, read in values_of(predicts).items()}
    return {name: known for name, known in values.items() if known is not None}


def _compare_means(own: np.ndarray, expected: np.ndarray, weights: np.ndarray) -> Finding:
    """Compare means (k,) of random features; their squared distance is a weighted sum of chi-square variables.

    The `weights` are the eigenvalues of the covariance of the difference; a Pearson III distribution has their moments.
    """
    distance = float(((own - expected) ** 2).sum())
    # cumulants of sum_i w_i chi^2_1, and the p value from the Pearson III distribution that shares them
    mean, variance, third = weights.sum(), 2 * (weights**2).sum(), 8 * (weights**3).sum()
    if variance <= 0:
        return Finding(MEAN, distance, None, None, 1.0)
    p = float(pearson3.sf(distance, third / variance**1.5, mean, np.sqrt(variance)))
    return Finding(MEAN, distance, None, None, float(np.clip(p, 1e-12, 1.0)))


def _added(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Add up the rows and the counts that all summaries have; the mean becomes that over all rows."""
    rows = sum(each["rows"] for each in summaries)
    names = [name for name in summaries[0] if name != "sequence" and all(name in each for each in summaries)]
    return {
        name: sum(np.asarray(each[name]) * (each["rows"] / rows if name == MEAN else 1) for each in summaries)
        for name in names
    }


def _undrifted(past: Sequence[Past], end: int) -> list[Summary]:
    """Return batches before `end` without drift; all batches of a window that drifted together count as drifted."""
    drifted = set()
    for i, each in enumerate(past):
        if each["drifted"]:
            joint = any(name.endswith(SUFFIX) for name in each["drifted"])
            drifted |= set(range(i - WINDOW + 1, i + 1)) if joint else {i}
    return [each["summary"] for i, each in enumerate(past[: max(0, end)]) if i not in drifted]


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _binned(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the number of values per bin, (b,)."""
    return np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)


def past_batches(history: Sequence[Mapping[str, Any]], domain: str | None) -> list[Past]:
    """Return the latest batches of a domain from the entries of a history, oldest first."""
    return [entry for entry in history if entry["domain"] == domain and entry.get("summary")][-KEPT:]

"""Test of the latest batches together: drift that is too small for one batch adds up over several.

A batch leaves a summary of counts and one mean, from which no example can be read. Summaries of consecutive batches add
up to that of all their rows, which is compared with the reference. Batches before them that did not drift extend the
reference, which is often smaller than a few batches. The mean is that of random Fourier features (Rahimi and Recht,
2007): the distance of two means is an estimate of the maximum mean discrepancy.

Shapes: n examples, d axes, k random features, b bins.
"""

from __future__ import annotations

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
SUFFIX = "of the latest batches"


Summary = Mapping[str, Any]  # "sequence": digest, "rows": count, and a list of numbers per statistic


@dataclass(frozen=True)
class Past:
    """An earlier batch: its summary, and the names of the tests that found drift."""

    summary: Summary
    drifted: Sequence[str]


@dataclass(frozen=True, eq=False)
class SequenceTest:
    """Tests of the latest batches together against the reference of a model."""

    reference: Reference
    predicts: str
    seed: int = 0
    spectra: dict[bytes, np.ndarray] = field(default_factory=dict)  # of selections of the reference

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
    def _known(self) -> np.ndarray:
        """Random features of the reference, (m, k)."""
        assert self.reference.coordinates is not None
        return self._random_features(self.reference.coordinates)

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        """Values of the reference (m,) that it has, by the names of `values_of`."""
        values = {name: read(self.reference) for name, read in values_of(self.predicts).items()}
        return {name: known for name, known in values.items() if known is not None}

    @cached_property
    def _edges(self) -> dict[str, np.ndarray]:
        """Inner edges of bins with about equal shares of the reference."""
        at = np.linspace(0, 1, BINS + 1)[1:-1]
        # where one value is frequent, several quantiles coincide: equal edges are merged
        return {name: np.unique(np.quantile(_finite(v), at)) for name, v in self._values.items() if len(v)}

    def summary(self, observed: Observed) -> Summary:
        """Summarise a batch by counts and one mean."""
        result: dict[str, Any] = {"sequence": self.digest, "rows": len(observed)}
        if observed.coordinates is not None and self._waves is not None:
            result[MEAN] = self._random_features(observed.coordinates).mean(axis=0).round(5).tolist()
        if self.predicts == "classes":
            counts = np.bincount(observed.outputs.argmax(axis=1), minlength=observed.outputs.shape[1])
            result["predictions"] = counts.tolist()
        for name, read in values_of(self.predicts).items():
            own = read(observed)
            if own is not None and name in self._edges:
                result[name] = _binned(_finite(own), self._edges[name]).tolist()
        return result

    def findings(self, past: Sequence[Past], summary: Summary, mask: np.ndarray, *, level: float) -> list[Finding]:
        """Test a batch together with those before it; empty without any.

        `mask` (m,) selects the reference. The tests share half of the level; the other half is that of single batches.
        """
        # summaries of another version of the model cannot be compared with this reference
        usable = [each for each in past if each.summary.get("sequence") == self.digest]
        if not usable or mask.sum() < MIN_ROWS:
            return []
        # the window is this batch and those just before it; batches before the window may extend the reference
        latest = [*(each.summary for each in usable[1 - WINDOW :]), summary]
        earlier = _undrifted(usable, len(usable) - (WINDOW - 1))[-EARLIER:]
        features = self._features(latest, earlier, mask) if self._waves is not None else None
        tests = corrected(features, self._others(latest, earlier, mask), level=level, shares=2)
        return [replace(each, name=f"{each.name} {SUFFIX}") for each in tests]

    def _features(self, latest: Sequence[Summary], earlier: Sequence[Summary], mask: np.ndarray) -> Finding:
        """Compare means of random features; their squared distance is a weighted sum of chi-square variables.

        The weights are the eigenvalues of the covariance of one example; a Pearson III distribution has their moments.
        """
        # mean (k,) of the window against that of reference and earlier batches together
        known, own = self._known[mask], _pooled(latest, MEAN)
        sizes = _rows(latest), len(known) + _rows(earlier)
        expected = (known.sum(axis=0) + _pooled(earlier, MEAN) * _rows(earlier)) / sizes[1]
        distance = float(((own - expected) ** 2).sum())
        # the difference of two means of n and m examples has the covariance of one example times 1 / n + 1 / m
        weights = self._spectrum(mask) * (1 / sizes[0] + 1 / sizes[1])
        # cumulants of sum_i w_i chi^2_1, and the p value from the Pearson III distribution that shares them
        mean, variance, third = weights.sum(), 2 * (weights**2).sum(), 8 * (weights**3).sum()
        if variance <= 0:
            return Finding(MEAN, distance, None, None, 1.0)
        p = float(pearson3.sf(distance, third / variance**1.5, mean, np.sqrt(variance)))
        return Finding(MEAN, distance, None, None, float(np.clip(p, 1e-12, 1.0)))

    def _spectrum(self, mask: np.ndarray) -> np.ndarray:
        """Return the eigenvalues (k,) of the covariance of the random features of one example."""
        # one decomposition (k, k) per selection of the reference: the same domain is tested batch after batch
        key = mask.tobytes()
        if key not in self.spectra:
            self.spectra[key] = np.linalg.eigvalsh(np.cov(self._known[mask].T)).clip(0)
        return self.spectra[key]

    def _others(self, latest: Sequence[Summary], earlier: Sequence[Summary], mask: np.ndarray) -> list[Finding]:
        """Compare the counts of predicted classes and of binned values."""
        findings = list[Finding]()
        if self.predicts == "classes":
            answers = self.reference.outputs[mask].argmax(axis=1)
            known = np.bincount(answers, minlength=self.reference.outputs.shape[1])
            own, before = (_total(each, "predictions", known) for each in (latest, earlier))
            findings.append(compare_counts("predictions", own, known + before))
        for name, values in self._values.items():
            known = _binned(_finite(values[mask]), self._edges[name])
            if not all(name in each for each in latest):
                continue
            counts = np.stack([_total(latest, name, known), known + _total(earlier, name, known)])
            if counts.sum(axis=1).min() >= MIN_ROWS:  # with few known values the p value is not reliable
                distance, p = ks_test_of_counts(counts)
                findings.append(Finding(name, distance, None, None, p))
        return findings


def _rows(summaries: Sequence[Summary]) -> int:
    return sum(int(each["rows"]) for each in summaries)


def _pooled(summaries: Sequence[Summary], name: str) -> Any:
    """Return the mean over all rows of some batches; 0 without any."""
    return sum(np.asarray(each[name]) * each["rows"] for each in summaries) / max(1, _rows(summaries))


def _total(summaries: Sequence[Summary], name: str, like: np.ndarray) -> np.ndarray:
    """Return the sum of the counts of some batches."""
    return sum((np.asarray(each[name]) for each in summaries if name in each), np.zeros_like(like))


def _undrifted(past: Sequence[Past], end: int) -> list[Summary]:
    """Return batches before `end` without drift; all batches of a window that drifted together count as drifted."""
    drifted = set()
    for i, each in enumerate(past):
        if each.drifted:
            joint = any(name.endswith(SUFFIX) for name in each.drifted)
            drifted |= set(range(i - WINDOW + 1, i + 1)) if joint else {i}
    return [each.summary for i, each in enumerate(past[: max(0, end)]) if i not in drifted]


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _binned(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the number of values per bin, (b,)."""
    return np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)


def past_batches(history: Sequence[Mapping[str, Any]], domain: str | None) -> list[Past]:
    """Return the latest batches of a domain from the entries of a history, oldest first."""
    own = [entry for entry in history if entry["domain"] == domain and entry.get("summary")]
    return [Past(entry["summary"], entry["drifted"]) for entry in own[-KEPT:]]

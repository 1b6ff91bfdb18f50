"""Check one batch of examples against the reference of a model: drift tests, class mix, accuracy, and an alert.

Shapes: n examples, c classes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from holdfast.core.seeds import derive
from holdfast.data.input_statistics import InputStatistics
from holdfast.monitor.accuracy import Accuracy, AccuracyEstimator, pool_of
from holdfast.monitor.drift import (
    MIN_ROWS,
    Finding,
    compare_classes,
    compare_columns,
    compare_features,
    compare_shares,
    compare_values,
    corrected,
    discrepancy,
    kernel,
    mean_between,
    median_distance,
)
from holdfast.monitor.observe import FOREIGN_ROWS, Observed, values_of
from holdfast.monitor.sequence import Past, SequenceTest, Summary
from holdfast.uncertainty.label_shift import LabelShift, estimate_shift
from holdfast.uncertainty.left_out import LeftOut
from holdfast.uncertainty.reference import Reference

LEVEL = 0.01  # probability of a false alarm per batch
FOREIGN = 95.0  # percentile above which an example counts as foreign
MAX_TESTED = 1000  # examples of a batch that are tested: more would make negligible changes significant
MAX_SHOWN = 20  # drifted examples


@dataclass(frozen=True)
class BatchCheck:
    """Result for one batch, or for one domain of a batch."""

    batch: str
    domain: str | None  # None if the data has no domains
    rows: int
    findings: list[Finding]
    discrepancy: float | None  # squared maximum mean discrepancy of the features
    foreign: float | None  # share of examples above the percentile FOREIGN
    predicted: dict[str, float]  # class -> share of predictions
    shift: LabelShift | None  # estimated class mix
    accuracy: Accuracy | None
    true: float | None = None  # accuracy on the labelled examples; root mean squared error of a regression
    labelled: int = 0
    compared_with: str = "all training domains"
    examples: list[dict[str, Any]] = field(default_factory=list)  # most drifted
    note: str = ""
    since: str = ""  # first batch of the present drift
    summary: Summary | None = None  # of the batch, for tests together with later ones

    @property
    def drifted(self) -> list[Finding]:
        """Tests that found drift, the most significant first."""
        return sorted((finding for finding in self.findings if finding.drifted), key=lambda finding: finding.corrected)

    @property
    def best_accuracy(self) -> float | None:
        """The true accuracy if labels are known, else the estimate."""
        return self.accuracy.estimate if self.true is None and self.accuracy is not None else self.true

    @property
    def name(self) -> str:
        return self.batch if self.domain is None else f"{self.batch}, {self.domain}"

    def json(self) -> dict[str, Any]:
        plain = ("batch", "domain", "rows", "discrepancy", "foreign", "predicted", "labelled", "compared_with")
        return {
            **_rounded({name: getattr(self, name) for name in plain}),
            "drifted": [finding.name for finding in self.drifted],
            "since": self.since,
            "accuracy": None if self.accuracy is None else self.accuracy.json(),
            "true": _rounded(self.true),
            "label_shift": None if self.shift is None else self.shift.json(),
            "findings": [_rounded(asdict(finding), 6) for finding in self.findings],
            "examples": self.examples,
            "note": self.note,
        }


def _rounded(value: Any, digits: int = 4) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each, digits) for key, each in value.items()}
    return round(value, digits) if isinstance(value, float) else value


@dataclass(frozen=True, eq=False)
class Checker:
    """Checks batches of one model; `predicts` and `classes` are those of the model."""

    reference: Reference
    predicts: str
    classes: Sequence[str]
    left_out: LeftOut | None = None
    level: float = LEVEL
    seed: int = 0
    brief: bool = False  # without the class mix and the drifted examples, which a server does not show

    @cached_property
    def estimator(self) -> AccuracyEstimator | None:
        """Estimates of the accuracy; None for other models than classifiers, or without labels in the reference."""
        if self.predicts != "classes":
            return None
        known = pool_of(self.reference.outputs, self.reference.y, self.reference.domain)
        return None if known is None else AccuracyEstimator.of(known, self.left_out, seed=self.seed)

    @cached_property
    def sequence(self) -> SequenceTest:
        """Test of several batches together."""
        return SequenceTest(self.reference, self.predicts, self.seed)

    @cached_property
    def median(self) -> float:
        """Scale of the kernel."""
        assert self.reference.coordinates is not None
        return median_distance(self.reference.coordinates)

    @cached_property
    def between_domains(self) -> float | None:
        """Mean discrepancy between each training domain and the others; None with a single domain."""
        coordinates, domain = self.reference.coordinates, self.reference.domain
        values = [
            discrepancy(coordinates[domain == i], coordinates[domain != i], self.median)
            for i in range(len(self.reference.domains))
            if coordinates is not None and min((domain == i).sum(), (domain != i).sum()) >= MIN_ROWS
        ]
        return float(np.mean(values)) if values else None

    @cached_property
    def groups(self) -> list[tuple[np.ndarray, float]]:
        """All examples of the reference, and those of each domain that has enough, with their mean kernel."""
        coordinates, domain = self.reference.coordinates, self.reference.domain
        assert coordinates is not None
        gram = kernel(coordinates, coordinates, self.median)
        masks = [np.ones(len(domain), dtype=bool), *(domain == i for i in range(len(self.reference.domains)))]
        return [(rows, mean_between(gram[np.ix_(rows, rows)])) for rows in masks if rows.sum() >= MIN_ROWS]

    def check(
        self, batch: str, domain: str | None, observed: Observed, y: np.ndarray | None = None, *, groups: int = 1,
        past: Sequence[Past] = (),
    ) -> BatchCheck:  # fmt: skip
        """Check one batch, or one of several `groups` of a batch, which share the level.

        `y` are classes, or numbers, of the examples whose label is known; `past` are earlier batches, oldest first.
        """
        count, truth = self._truth(observed, y)
        shares = self._predicted(observed.answers)
        if len(observed) < MIN_ROWS:
            note = f"not tested, because it has fewer than {MIN_ROWS} examples"
            return BatchCheck(batch, domain, len(observed), [], None, None, shares, None, None, truth, count, note=note)
        rng = np.random.default_rng(derive(self.seed, "watch", batch, domain or ""))
        tested = observed.take(np.sort(rng.permutation(len(observed))[:MAX_TESTED]))
        group, mask = self._group(domain)
        summary = self.sequence.summary(tested)
        findings = self.findings(tested, domain, groups=groups, past=past, summary=summary)
        features = findings[0] if findings and findings[0].name == "features" else None
        foreign = None if observed.foreign is None else float((observed.foreign > FOREIGN).mean())
        unseen = self._unseen(tested) if features is not None and features.drifted else 0.0
        answers = tested.answers.astype(np.float64)
        accuracy = None if self.estimator is None else self.estimator.estimate(answers, unseen=unseen)
        return BatchCheck(
            batch, domain, len(observed), findings, None if features is None else features.statistic, foreign, shares,
            None if self.brief else self._shift(tested), accuracy, truth, count,
            "all training domains" if group == 0 else f"the training domain {domain}", self._examples(observed, mask),
            summary=summary,
        )  # fmt: skip

    def findings(
        self, tested: Observed, domain: str | None = None, *, groups: int = 1, past: Sequence[Past] = (),
        summary: Summary | None = None,
    ) -> list[Finding]:  # fmt: skip
        """Test all examples for drift; the test of the features is the first, if the model has features.

        With `past` batches, the test of the latest batches together has half of the level.
        """
        group, mask = self._group(domain)
        others, features, joint, level = self._others(tested, mask), None, list[Finding](), self.level / groups
        if self.reference.columns is not None:
            own = InputStatistics(numbers=tested.numbers, codes=tested.codes)
            others += compare_columns(own, self.reference.columns, group)
        known = self.reference.coordinates
        if tested.coordinates is not None and known is not None and mask.sum() >= MIN_ROWS:
            value, p = compare_features(tested.coordinates, known[mask], seed=self.seed, median=self.median)
            features = Finding("features", value, None, None, p)
        if past:
            joint = self.sequence.findings(past, summary or self.sequence.summary(tested), mask, level=level)
        return [*corrected(features, others, level=level, shares=2 if joint else 1), *joint]

    def _group(self, domain: str | None) -> tuple[int, np.ndarray]:
        """Return the group to compare with, 0 for all or 1 plus the index of the domain, and which examples it has."""
        known = self.reference.domains
        index = known.index(domain) if domain in known else -1
        mask = self.reference.domain == index
        if index < 0 or mask.sum() < 2 * MIN_ROWS:
            return 0, np.ones(len(self.reference), dtype=bool)
        return 1 + index, mask

    def _others(self, tested: Observed, mask: np.ndarray) -> list[Finding]:
        """Test the predictions and the statistics of the inputs."""
        findings: list[Finding | None] = []
        if self.predicts == "classes":
            own, known = tested.outputs, self.reference.outputs[mask]
            findings.append(compare_classes(own.argmax(axis=1), known.argmax(axis=1), own.shape[1]))
        for name, read in values_of(self.predicts).items():
            own, known = read(tested), read(self.reference)
            if own is None or known is None:
                continue
            if name == FOREIGN_ROWS:
                pairs = [(int((v > FOREIGN).sum()), len(v)) for v in (own, known[mask])]
                findings.append(compare_shares(name, *pairs))
            else:
                findings.append(compare_values(name, own, known[mask]))
        return [finding for finding in findings if finding is not None]

    def _unseen(self, tested: Observed) -> float:
        """Return the distance of a batch to the nearest training domain, as a share of that between the domains."""
        coordinates = self.reference.coordinates
        if coordinates is None or tested.coordinates is None or self.between_domains is None:
            return 1.0
        between = kernel(tested.coordinates, coordinates, self.median)
        own = mean_between(kernel(tested.coordinates, tested.coordinates, self.median))
        distances = [own + within - 2 * float(between[:, rows].mean()) for rows, within in self.groups]
        return float(np.clip(min(distances) / max(self.between_domains, 1e-9), 0, 1))

    def _shift(self, tested: Observed) -> LabelShift | None:
        """Estimate the class mix of a batch; None without enough labelled examples per class."""
        known = self.reference.y >= 0 if self.predicts == "classes" else np.zeros(0, dtype=bool)
        if not known.any():
            return None
        outputs, y = self.reference.outputs[known].astype(np.float64), self.reference.y[known]
        return estimate_shift(outputs, y, self.reference.domain[known], tested.outputs.astype(np.float64))

    def _predicted(self, answers: np.ndarray) -> dict[str, float]:
        if self.predicts != "classes" or not len(answers):
            return {}
        counts = np.bincount(answers.argmax(axis=1), minlength=len(self.classes)) / len(answers)
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def _truth(self, observed: Observed, y: np.ndarray | None) -> tuple[int, float | None]:
        """Return the number of labelled examples and the accuracy, or root mean squared error, on them."""
        if y is None or self.predicts == "labels":
            return 0, None
        known = np.isfinite(y) if self.predicts == "numbers" else y >= 0
        if not known.any():
            return 0, None
        if self.predicts == "numbers":
            return int(known.sum()), float(np.sqrt(((observed.answers[known, 0] - y[known]) ** 2).mean()))
        return int(known.sum()), float((observed.answers[known].argmax(axis=1) == y[known]).mean())

    def _examples(self, observed: Observed, mask: np.ndarray) -> list[dict[str, Any]]:
        """Return the examples that are most typical of the batch and least of the reference."""
        if self.brief or observed.coordinates is None or self.reference.coordinates is None:
            return []
        rows = np.arange(min(len(observed), 5 * MAX_TESTED))
        own, known = observed.coordinates[rows], self.reference.coordinates[mask]
        sample = own[:: max(1, len(own) // MAX_TESTED)]
        witness = kernel(own, sample, self.median).mean(axis=1) - kernel(own, known, self.median).mean(axis=1)
        order = np.argsort(-witness)[:MAX_SHOWN]
        shown = []
        for row in order.tolist():
            answer = observed.answers[row]
            example: dict[str, Any] = {"row": row, "drift": round(float(witness[row]), 4)}
            if self.predicts == "classes":
                label = self.classes[int(answer.argmax())]
                example |= {"prediction": label, "confidence": round(float(answer.max()), 4)}
            elif self.predicts == "numbers":
                example["prediction"] = round(float(answer[0]), 6)
            if observed.foreign is not None:
                example["foreign"] = round(float(observed.foreign[row]), 2)
            shown.append(example)
        return shown

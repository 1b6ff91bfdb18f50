"""Alerts in one sentence: the change, since when, its probable cost, the next step; and conditions of --fail-on."""

import re
from collections.abc import Sequence

from holdfast.core.errors import BadInput
from holdfast.monitor.check import BatchCheck
from holdfast.monitor.drift import Finding
from holdfast.monitor.sequence import SUFFIX
from holdfast.stats.formatting import listed

CONDITION = re.compile(r"accuracy\s*<\s*(0?\.\d+|0|1|1\.0+)")
COSTLY = 0.02  # accuracy
MAX_CHANGES = 3  # named in one sentence
SHARES = ("missing values of", "new categories of", "foreign rows", "new vocabulary")


def parse_conditions(texts: Sequence[str], *, predicts: str) -> list[float | None]:
    """Return the threshold of each `accuracy<0.8`, and None for `drift`."""
    conditions = []
    for text in texts:
        match = CONDITION.fullmatch(text.strip())
        if text.strip() == "drift":
            conditions.append(None)
        elif match is None:
            raise BadInput(f"--fail-on takes drift, or accuracy<NUMBER with a number from 0 to 1; got '{text}'")
        elif predicts != "classes":
            raise BadInput("--fail-on accuracy needs a model that predicts one class per example: use --fail-on drift")
        else:
            conditions.append(float(match[1]))
    return conditions


def meets(check: BatchCheck, threshold: float | None) -> bool:
    """Whether a batch drifted or, with a threshold, its accuracy is lower: the true one, or else the estimate."""
    if threshold is None:
        return bool(check.drifted)
    return check.best_accuracy is not None and check.best_accuracy < threshold


def alert(check: BatchCheck, *, model: str, data: str) -> str:
    """Return the alert of a batch; empty if nothing drifted."""
    if not check.drifted:
        return ""
    changes = listed(list(map(_change, check.drifted)), most=MAX_CHANGES)
    since = f", since {check.since}" if check.since and check.since != check.batch else ""
    return f"{check.name}: drift in {changes}{since}; {_cost(check)}; {_advice(check, model, data)}"


def _change(finding: Finding) -> str:
    p = f"p {finding.corrected:.1g}"
    if finding.value is None or finding.expected is None:
        return f"{finding.name} ({p})"
    if finding.name.startswith(SHARES):
        return f"{finding.name} ({finding.value:.1%} instead of {finding.expected:.1%}, {p})"
    return f"{finding.name} (mean {finding.value:.3g} instead of {finding.expected:.3g}, {p})"


def _cost(check: BatchCheck) -> str:
    own = check.accuracy
    if own is None:
        return "its cost is not known without labels"
    if check.true is not None:
        return f"accuracy is {check.true:.3f} on {check.labelled} labelled examples, {own.validation:.3f} before"
    return f"accuracy is probably {own.text}, {own.validation:.3f} before"


def _advice(check: BatchCheck, model: str, data: str) -> str:
    names = [finding.name.removesuffix(f" {SUFFIX}") for finding in check.drifted]
    pipeline = [name for name in names if name.startswith("missing values of")]
    if pipeline:
        return f"check where the {pipeline[0]} come from"
    if set(names) <= {"predictions", "confidence"} and check.shift is not None and not check.shift.refused:
        return f"correct the class mix with `holdfast fit --unlabelled {data}`, or label some rows to confirm it"
    own, value = check.accuracy, check.best_accuracy
    if own is not None and value is not None and value > own.validation - COSTLY:
        return "no loss is expected: watch the next batches and label some rows to confirm it"
    return f"label rows (`holdfast label {model} {data}`), then run `holdfast adapt` with them or train again"

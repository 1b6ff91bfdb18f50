"""Several batches together: small drift adds up, undrifted batches stay silent, and summaries hold no example."""

import json

import numpy as np
import pytest

from holdfast.monitor.check import Checker
from holdfast.monitor.observe import Observed
from holdfast.monitor.sequence import EARLIER, KEPT, SUFFIX, WINDOW, Past, past_batches
from holdfast.monitor.state import SUMMARIES, add_entries, read_history
from holdfast.uncertainty.reference import Reference

BATCH = 200


def earlier(summary, drifted=()) -> Past:
    return {"summary": summary, "drifted": list(drifted)}


def draw(n: int, rng: np.random.Generator, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (n, 4) and probabilities (n, 2) that depend on the first of them."""
    x = rng.normal(size=(n, 4)) + np.asarray([0, shift, shift, 0])
    p = 1 / (1 + np.exp(-2 * x[:, 0]))
    return x, np.stack([1 - p, p], axis=1)


def checker(seed: int, *, rows: int = 300) -> Checker:
    rng = np.random.default_rng(1000 + seed)
    x, p = draw(rows, rng)
    y = (rng.random(rows) < p[:, 1]).astype(np.int64)
    empty = dict.fromkeys(("foreign", "lengths", "unknown", "vocabulary", "projection", "columns"))
    known = Reference(("a",), np.zeros(rows, dtype=np.int64), p, y, coordinates=x, **empty)  # pyright: ignore[reportArgumentType]
    return Checker(known, "classes", ("no", "yes"), seed=seed)


def batch(rng: np.random.Generator, shift: float = 0.0) -> Observed:
    x, p = draw(BATCH, rng, shift)
    return Observed(p, p, coordinates=x)


def alarms(own: Checker, shifts: list[float], seed: int) -> list[bool]:
    """Return whether the test of the latest batches finds drift, per consecutive batch."""
    rng, past, drifted = np.random.default_rng(seed), [], []
    mask = np.ones(len(own.reference), dtype=bool)
    for shift in shifts:
        summary = own.sequence.summary(batch(rng, shift))
        names = [each.name for each in own.sequence.findings(past, summary, mask, level=own.level) if each.drifted]
        past = [*past, earlier(summary, names)][-KEPT:]
        drifted.append(bool(names))
    return drifted


def test_small_drift_adds_up_over_batches():
    drift = 0.22
    together = sum(any(alarms(checker(seed), [0.0] * 4 + [drift] * WINDOW, seed)[4:]) for seed in range(10))
    assert together >= 8
    rng = np.random.default_rng(0)
    single = [f.drifted for seed in range(5) for f in checker(seed).findings(batch(rng, drift))]
    assert sum(single) <= 1


def test_undrifted_batches_raise_few_alarms():
    every = [own for seed in range(12) for own in alarms(checker(seed), [0.0] * 12, seed)]
    assert sum(every) <= 2  # of 144


def test_the_level_of_a_batch_is_shared():
    own, rng = checker(0), np.random.default_rng(0)
    first = own.findings(batch(rng))
    observed = batch(rng)
    alone = {finding.name: finding for finding in own.findings(observed)}
    past = [earlier(own.sequence.summary(batch(rng)), [])]
    both = {finding.name: finding for finding in own.findings(observed, past=past)}
    assert not [finding for finding in first if finding.name.endswith(SUFFIX)]
    assert {name for name in both if name.endswith(SUFFIX)} == {
        f"{name} {SUFFIX}" for name in ("features", "predictions", "confidence")
    }
    assert both["features"].corrected == pytest.approx(min(1.0, 2 * alone["features"].corrected))


def test_earlier_batches_extend_the_reference_unless_they_drifted():
    own, rng = checker(0), np.random.default_rng(0)
    calm = [own.sequence.summary(batch(rng)) for _ in range(EARLIER)]
    moved = [own.sequence.summary(batch(rng, 0.3)) for _ in range(WINDOW)]
    mask = np.ones(len(own.reference), dtype=bool)

    def p(past: list[Past]) -> float:
        return own.sequence.findings(past, moved[-1], mask, level=0.01)[0].p

    short = p([earlier(each, []) for each in moved[:-1]])
    long = p([earlier(each, []) for each in (*calm, *moved[:-1])])
    assert long < short / 10
    flagged = [earlier(each, ["features"]) for each in calm]
    assert p([*flagged, *(earlier(each, []) for each in moved[:-1])]) == short
    # an alarm of several batches marks all of them
    joint = [earlier(each, []) for each in calm[: WINDOW - 1]] + [earlier(calm[WINDOW - 1], [f"features {SUFFIX}"])]
    assert p([*joint, *(earlier(each, []) for each in moved[:-1])]) == short


def test_summaries_of_another_reference_are_ignored():
    own, other = checker(0), checker(1)
    observed = batch(np.random.default_rng(0))
    past = [earlier(other.sequence.summary(observed), [])]
    assert own.findings(observed, past=past) == own.findings(observed)
    assert own.sequence.digest != other.sequence.digest


def test_summaries_are_counts_and_one_mean(tmp_path):
    own = checker(0)
    observed = batch(np.random.default_rng(0))
    summary = own.sequence.summary(observed)
    assert set(summary) == {"sequence", "rows", "features", "predictions", "confidence"}
    assert sum(summary["predictions"]) == sum(summary["confidence"]) == summary["rows"] == BATCH
    assert len(summary["features"]) == 192
    assert len(json.dumps(summary)) < 3000
    fields = dict.fromkeys(
        ("rows", "discrepancy", "foreign", "predicted", "labelled", "since", "accuracy", "true"), None
    )  # fmt: skip
    entries = [
        {"model": "m", "data": "d", "batch": str(i), "domain": None, "drifted": [], "summary": summary, **fields}
        for i in range(SUMMARIES + 5)
    ]
    add_entries(tmp_path, entries)
    history = read_history(tmp_path)
    assert ["summary" in entry for entry in history] == [False] * 5 + [True] * SUMMARIES
    assert len(past_batches(history, None)) == KEPT
    assert past_batches(history, "a") == []

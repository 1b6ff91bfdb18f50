"""Estimates of the class mix are right, equal the null control without a shift, and are refused where they fail."""

import numpy as np
import pytest

from holdfast.train.evaluate import class_mix, collapsed
from holdfast.uncertainty.label_shift import estimate_shift

DOMAIN = np.repeat([0, 1, 2], 300)


def sample(count, mix, seed, *, offset=0.0, separation=2.0):
    """Draw exact posteriors of Gaussian classes with a uniform prior; an offset moves every example to class 0."""
    rng, classes = np.random.default_rng(seed), len(mix)
    y = rng.choice(classes, count, p=mix)
    x = separation * np.eye(classes)[y] + rng.normal(size=(count, classes))
    logits = separation * x + offset * np.eye(classes)[0]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), y


SOURCES, LABELS = sample(900, [1 / 3, 1 / 3, 1 / 3], 0)


def test_a_shift_is_estimated_and_its_correction_helps():
    mix = [0.7, 0.25, 0.05]
    target, truth = sample(600, mix, 1)
    shift = estimate_shift(SOURCES, LABELS, DOMAIN, target)
    assert shift.refused == ""
    np.testing.assert_allclose(shift.target, mix, atol=0.06)
    assert shift.distance > 2 * shift.null
    before, after = (float((p.argmax(axis=1) == truth).mean()) for p in (target, target * shift.weights))
    assert after > before + 0.01


def test_without_a_shift_it_equals_the_null_control():
    refused = []
    for seed in range(5):
        target, _ = sample(400, [1 / 3, 1 / 3, 1 / 3], 10 + seed)
        shift = estimate_shift(SOURCES, LABELS, DOMAIN, target, seed=seed)
        refused.append(bool(shift.refused))
    assert sum(refused) >= 4


def test_unreliable_estimates_are_refused():
    """If the sources differ in another way than their class mix, the error on them is as large as the estimate."""
    moved = [sample(300, [1 / 3, 1 / 3, 1 / 3], 20 + i, offset=offset) for i, offset in enumerate((-2.0, 0.0, 2.0))]
    outputs, y = (np.concatenate(values) for values in zip(*moved, strict=True))
    target, _ = sample(400, [1 / 3, 1 / 3, 1 / 3], 30, offset=1.5)
    shift = estimate_shift(outputs, y, DOMAIN, target)
    assert "its largest error on the source domains" in shift.refused
    single = estimate_shift(SOURCES, LABELS, np.zeros(900), sample(400, [0.8, 0.1, 0.1], 31)[0])
    assert "a single source domain" in single.refused
    assert estimate_shift(SOURCES, LABELS, DOMAIN, target[:5]) is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([0.5, 0.5], [0.99, 0.01], True),
        ([0.5, 0.5], [0.8, 0.2], False),
        ([0.3, 0.3, 0.4, 0.0], [0.0, 0.6, 0.4, 0.0], False),
        ([0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 0.5, 0.5], True),
        ([1.0, 0.0], [1.0, 0.0], False),
    ],
)
def test_collapse(before, after, expected):
    assert collapsed(np.asarray(before), np.asarray(after)) is expected


def test_class_mix():
    np.testing.assert_allclose(class_mix(np.asarray([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])), [2 / 3, 1 / 3])

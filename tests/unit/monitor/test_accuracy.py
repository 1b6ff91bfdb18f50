"""Estimates of accuracy without labels, and their intervals."""

import numpy as np
import pytest

from holdfast.monitor.accuracy import (
    ESTIMATES,
    AccuracyEstimator,
    Change,
    Labelled,
    combined,
    estimates,
    fit_line,
    on_line,
    pool_of,
)
from holdfast.uncertainty.left_out import LeftOut


def predictions(n: int, *, skill: float, seed: int, domain: int = 0, boast: float = 1.0) -> Labelled:
    """Two classes; larger `skill` makes the predictions better, `boast` above 1 makes them overconfident."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    evidence = rng.normal((2 * y - 1) * skill, 1)
    p = 1 / (1 + np.exp(-2 * boast * skill * evidence))
    return Labelled(np.stack([1 - p, p], axis=1), y, np.full(n, domain))


def left_out(known: Labelled, unseen: dict[int, Labelled]) -> LeftOut:
    """Outputs of one run per left-out domain, with `known` as validation rows of another domain."""
    pieces = [
        (pool, np.full(len(pool.y), domain), np.full(len(pool.y), target))
        for target, own in unseen.items()
        for domain, pool in ((target, own), (0, known))
    ]
    arrays = [np.concatenate(each) for each in zip(*((d, t, p.y, p.probabilities) for p, d, t in pieces), strict=True)]
    return LeftOut(tuple("abcdefgh"), *arrays)


@pytest.mark.parametrize("boast", [1.0, 3.0])
def test_estimates_follow_the_accuracy_of_a_harder_batch(boast):
    pool = predictions(3000, skill=0.8, seed=0, boast=boast)
    batch = predictions(2000, skill=0.8, seed=1, boast=boast)
    hard = np.argsort(batch.probabilities.max(axis=1))[:1000]  # the uncertain half
    true = batch.take(hard).correct.mean()
    values = estimates(batch.take(hard).probabilities, pool)
    naive = abs(pool.correct.mean() - true)
    for name in ("weighting", *(["confidence", "difference"] if boast == 1 else [])):
        assert abs(values[name] - true) < 0.35 * naive, name
    assert abs(combined(values) - true) < 0.5 * naive


def test_left_out_domains_correct_a_loss_that_confidence_does_not_show():
    known = predictions(1000, skill=1.5, seed=0)
    flipped = [predictions(500, skill=1.5, seed=i, domain=i) for i in (1, 2, 3)]
    wrong = np.random.default_rng(0).random((3, 500)) < 0.2
    unseen = {
        i: Labelled(p.probabilities, np.where(w, 1 - p.y, p.y), p.domain)
        for i, (p, w) in enumerate(zip(flipped, wrong, strict=True), start=1)
    }
    batch = predictions(500, skill=1.5, seed=9)
    y = np.where(np.random.default_rng(5).random(500) < 0.2, 1 - batch.y, batch.y)
    true = (batch.probabilities.argmax(axis=1) == y).mean()
    estimator = AccuracyEstimator.of(known, left_out(known, unseen))
    result = estimator.estimate(batch.probabilities, unseen=1.0)
    assert abs(result.estimate - true) < 0.05
    assert result.low is not None
    assert result.high is not None
    assert result.low <= true <= result.high
    assert result.validation - true > 0.1
    assert result.coverage == 1.0
    assert result.domains == 3
    assert estimator.estimate(batch.probabilities, unseen=0.0).estimate == pytest.approx(result.validation, abs=0.03)
    assert result.slope == pytest.approx(1.5, abs=0.5)  # the confidence did not change, so the slope stays as it was


def test_left_out_domains_show_how_steeply_accuracy_falls_with_confidence():
    known = predictions(2000, skill=1.5, seed=0)

    def harder(seed: int, loss: float) -> Labelled:
        """Flip labels, and lower the confidence by a third of what the accuracy loses."""
        own = predictions(2000, skill=1.5, seed=seed)
        rng = np.random.default_rng(seed)
        y = np.where(rng.random(2000) < loss, 1 - own.y, own.y)
        p = own.probabilities
        return Labelled(p + (0.5 - p) * loss / 1.45, y, own.domain)

    losses = {1: 0.05, 2: 0.2, 3: 0.35}
    estimator = AccuracyEstimator.of(known, left_out(known, {i: harder(i, loss) for i, loss in losses.items()}))
    assert estimator.line[0] > 2
    batch = harder(9, 0.28)
    result, true = estimator.estimate(batch.probabilities, unseen=1.0), batch.correct.mean()
    naive = abs(result.validation - true)
    assert abs(result.estimate - true) < 0.25 * naive
    assert abs(result.difference - true) > 0.5 * naive  # the change of confidence alone
    assert np.abs(estimator.errors).max() < 0.1  # each domain from the others


def test_a_rise_of_the_confidence_promises_nothing():
    line = fit_line([Change(-0.1, -0.2, 0.9, 300), Change(-0.02, -0.03, 0.9, 300)])
    assert on_line(line, 0.8, 0.1) == on_line(line, 0.8, 0.0) <= 0.8 + line[1]
    assert fit_line([])[0] == pytest.approx(1.5)
    assert on_line(line, 0.1, -0.9) == 0.0


def test_without_left_out_domains_there_is_no_interval_for_a_new_domain():
    known = predictions(400, skill=1.0, seed=0)
    estimator = AccuracyEstimator.of(known, None)
    assert estimator.estimate(known.probabilities, unseen=1.0).low is None
    near = estimator.estimate(known.probabilities, unseen=0.0)
    assert near.low is not None
    assert near.low < near.estimate < near.high  # pyright: ignore[reportOperatorIssue]
    assert near.coverage is None


def test_an_estimate_of_one_has_an_interval():
    p = np.tile([0.0, 1.0], (50, 1))
    estimator = AccuracyEstimator.of(Labelled(p, np.ones(50, dtype=int), np.zeros(50)), None)
    result = estimator.estimate(p, unseen=0.0)
    assert result.estimate == pytest.approx(1.0, abs=0.05)
    assert result.low is not None
    assert result.low < 0.99


def test_pool_has_labelled_examples_only():
    assert pool_of(np.full((3, 2), 0.5), np.full(3, -1), np.zeros(3)) is None
    pool = pool_of(np.full((3, 2), 0.5), np.asarray([-1, 0, 1]), np.arange(3))
    assert pool.y.tolist() == [0, 1]
    assert set(ESTIMATES) == set(estimates(pool.probabilities, pool))

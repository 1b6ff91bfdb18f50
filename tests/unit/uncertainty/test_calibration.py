"""Temperature scaling, the foreign score and the entropy of memory reads."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf

from holdfast import DomainClassifier
from holdfast.core.tape import record, tape
from holdfast.data.synthetic import world
from holdfast.uncertainty import calibration
from holdfast.uncertainty.calibration import (
    ForeignScore,
    fit_temperature,
    nll,
    percentiles,
    probabilities,
    read_entropy,
)


def scaled_outputs(n, seed, *, factor):
    """Outputs (n, 3) that are `factor` times the true logits, and labels sampled from the true probabilities."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, 3))
    y = np.asarray([rng.choice(3, p=p) for p in softmax(logits, axis=1)])
    return factor * logits, y


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_fitted_temperature_recovers_the_scale_and_lowers_nll_on_new_examples(factor):
    outputs, y = scaled_outputs(3000, 0, factor=factor)
    temperature = fit_temperature(outputs, y)
    assert temperature == pytest.approx(factor, rel=0.1)
    new_outputs, new_y = scaled_outputs(3000, 1, factor=factor)
    assert nll(new_outputs, new_y, temperature) <= nll(new_outputs, new_y) + 1e-3
    if factor != 1.0:
        assert nll(new_outputs, new_y, temperature) < nll(new_outputs, new_y) - 0.02


@pytest.mark.parametrize("seed", range(20))
def test_temperature_never_raises_nll_on_its_fitting_examples(seed):
    outputs, y = scaled_outputs(8, seed, factor=1.0)
    assert nll(outputs, y, fit_temperature(outputs, y)) <= nll(outputs, y)


def test_few_correct_examples_do_not_give_certainty():
    outputs, y = np.eye(2)[[0, 1, 0, 1, 0]] * 2.0, np.asarray([0, 1, 0, 1, 0])
    temperature = fit_temperature(outputs, y)
    assert 0.3 < temperature < 1.0
    assert probabilities(outputs, temperature).max() < 0.999


def test_temperature_is_one_without_labels():
    assert fit_temperature(np.zeros((0, 2)), np.zeros(0, dtype=np.int64)) == 1.0
    assert fit_temperature(np.ones((3, 2)), np.full(3, -1)) == 1.0


def clusters(n, seed, *, offset=0.0):
    """Two distant classes of correlated features (n, 3) with different scales, and labels (n,)."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    mix = np.asarray([[5.0, 0.0, 0.0], [4.0, 0.5, 0.0], [0.0, 0.0, 0.1]])
    return 20.0 * y[:, None] + rng.normal(0, 1, (n, 3)) @ mix.T + offset * np.asarray([1.0, -1.0, 0.0]), y


def fitted_score(n=3000):
    x, y = clusters(n, 0)
    return ForeignScore.fit(x, y, clusters(n, 1)[0])


def test_distance_is_mahalanobis_to_the_nearest_class_mean():
    x, y = clusters(3000, 0)
    score, (new, _) = fitted_score(), clusters(20, 2)
    means = np.stack([x[y == c].mean(0) for c in (0, 1)])
    inverse = np.linalg.inv(ledoit_wolf(x - means[y], assume_centered=True)[0])
    naive = [min(np.sqrt((v - m) @ inverse @ (v - m)) for m in means) for v in new]
    np.testing.assert_allclose(score.distances(new), naive, rtol=1e-3)  # the score adds a small floor


def test_percentiles_of_similar_examples_are_uniform():
    values = fitted_score().percentiles(clusters(3000, 3)[0])
    for share in (10, 50, 90):
        assert (values <= share).mean() * 100 == pytest.approx(share, abs=4)


def test_examples_outside_the_clusters_are_foreign():
    score = fitted_score()
    assert score.percentiles(clusters(500, 4, offset=3.0)[0]).mean() > 95
    between = np.full((1, 3), 10.0)  # the overall mean, where no example lies
    assert score.percentiles(between) == 100


def test_constant_features_few_examples_and_wide_features_have_finite_distances(monkeypatch):
    x, y = clusters(50, 0)
    constant = np.concatenate([x, np.ones((50, 2))], axis=1)
    assert np.isfinite(ForeignScore.fit(constant, y, constant).distances(constant)).all()
    assert np.isfinite(ForeignScore.fit(x[:1], y[:1], x).distances(x)).all()
    monkeypatch.setattr(calibration, "MAX_WIDTH", 2)
    wide = ForeignScore.fit(x, y, x)
    assert wide.scale.shape == (3,)
    assert wide.percentiles(x + 100.0).min() == 100


def test_percentile_is_the_share_of_values_at_most_as_large():
    known = np.asarray([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(percentiles(np.asarray([0.5, 1.0, 2.5, 9.0]), known), [0, 25, 50, 100])


def test_many_distances_are_stored_as_quantiles(monkeypatch):
    complete = fitted_score()
    monkeypatch.setattr(calibration, "MAX_DISTANCES", 200)
    reduced = fitted_score()
    assert len(reduced.known) == 200
    new = clusters(300, 5)[0]
    np.testing.assert_allclose(reduced.percentiles(new), complete.percentiles(new), atol=1.0)


@pytest.fixture(scope="module")
def fitted():
    data = world("vector", "rotation", domains=4, size=80, classes=2, seed=0)
    rows = np.flatnonzero(data.domain < 2)
    classifier = DomainClassifier("memory+erm", steps=40, batch=16, settings={"encoder.hidden": [8], "neck.slots": 6})
    return data, classifier.fit(data.raw.take(rows).numpy(), data.y[rows], domains=data.domain[rows])


def test_examples_of_a_shifted_domain_are_more_foreign(fitted):
    data, classifier = fitted
    near, far = (classifier.foreignness(data.raw.take(np.flatnonzero(data.domain == i)).numpy()).mean() for i in (0, 3))
    assert near < 60
    assert far > near + 5
    assert classifier.foreignness(np.full((1, data.raw.take(np.arange(1)).shape[1]), 50.0)) == 100


def test_predictions_of_a_memory_have_entropy_percentiles(fitted):
    data, classifier = fitted
    undecided = classifier._model().predict(data.raw).undecided
    assert undecided.min() >= 0
    assert undecided.max() <= 100
    assert len(np.unique(undecided)) > 5


def test_uncalibrated_probabilities_are_the_softmax_of_the_network(fitted):
    data, classifier = fitted
    saved = classifier._model()
    with torch.no_grad():
        x = saved.encoder.prepare(data.raw.take(np.arange(9))).take(torch.arange(9))
        plain = saved.model(x).double().softmax(1)
    np.testing.assert_allclose(saved.predict(data.raw, calibrated=False).values[:9], plain.numpy(), atol=1e-6)
    assert saved.calibration.temperature != 1.0
    assert not np.allclose(saved.probabilities(data.raw)[:9], plain.numpy(), atol=1e-4)


def test_read_entropy_is_one_for_uniform_weights_and_zero_for_one_slot():
    uniform, one_slot = torch.full((1, 2, 4), 0.25), torch.eye(4)[:1].expand(1, 2, 4)
    with tape() as recorded:
        record("memory/weights", torch.cat([uniform, one_slot]))
        record("memory/weights", torch.ones(7, 2, 4))  # per token, not per example: ignored
    torch.testing.assert_close(read_entropy(recorded, 2), torch.tensor([1.0, 0.0]))
    with tape() as empty:
        pass
    assert read_entropy(empty, 2) is None

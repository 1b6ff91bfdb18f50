import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from holdfast.models import calibration as foreignness
from holdfast.models.calibration import ForeignScore, percentiles


def clouds(n, seed, *, moved=0.0):
    """Two classes far apart, with features of very different spread that go together."""
    chance = np.random.default_rng(seed)
    y = chance.integers(0, 2, n)
    mix = np.asarray([[5.0, 0.0, 0.0], [4.0, 0.5, 0.0], [0.0, 0.0, 0.1]])
    return 20.0 * y[:, None] + chance.normal(0, 1, (n, 3)) @ mix.T + moved * np.asarray([1.0, -1.0, 0.0]), y


def fitted(n=3000):
    x, y = clouds(n, 0)
    return ForeignScore.fit(x, y, clouds(n, 1)[0])


def test_the_distance_is_mahalanobis_to_the_nearest_class():
    x, y = clouds(3000, 0)
    made, (new, _) = fitted(), clouds(20, 2)
    means = np.stack([x[y == c].mean(0) for c in (0, 1)])
    apart = x - means[y]
    inverse = np.linalg.inv(ledoit_wolf(apart, assume_centered=True)[0])
    naive = [min(np.sqrt((v - m) @ inverse @ (v - m)) for m in means) for v in new]
    np.testing.assert_allclose(made.distances(new), naive, rtol=1e-3)  # but for the floor


def test_new_examples_of_the_same_kind_have_even_percentiles():
    found = fitted().percentiles(clouds(3000, 3)[0])
    for share in (10, 50, 90):
        assert (found <= share).mean() * 100 == pytest.approx(share, abs=4)


def test_what_lies_off_the_cloud_is_foreign_even_where_its_coordinates_are_usual():
    made = fitted()
    assert made.percentiles(clouds(500, 4, moved=3.0)[0]).mean() > 95
    between = np.full((1, 3), 10.0)  # the mean of all examples, and no example is there
    assert made.percentiles(between) == 100


def test_features_that_never_move_few_examples_and_wide_ones_have_a_measure(monkeypatch):
    x, y = clouds(50, 0)
    still = np.concatenate([x, np.ones((50, 2))], axis=1)
    assert np.isfinite(ForeignScore.fit(still, y, still).distances(still)).all()
    assert np.isfinite(ForeignScore.fit(x[:1], y[:1], x).distances(x)).all()
    monkeypatch.setattr(foreignness, "WIDEST", 2)
    wide = ForeignScore.fit(x, y, x)
    assert wide.scale.shape == (3,)
    assert wide.percentiles(x + 100.0).min() == 100


def test_a_percentile_is_a_share():
    known = np.asarray([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(percentiles(np.asarray([0.5, 1.0, 2.5, 9.0]), known), [0, 25, 50, 100])


def test_many_distances_are_kept_as_quantiles(monkeypatch):
    whole = fitted()
    monkeypatch.setattr(foreignness, "MOST", 200)
    few = fitted()
    assert len(few.known) == 200
    new = clouds(300, 5)[0]
    np.testing.assert_allclose(few.percentiles(new), whole.percentiles(new), atol=1.0)

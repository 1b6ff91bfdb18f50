from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.analysis.domain_distance import a_distance, against_sources, pairwise
from holdfast.analysis.views import View, Views
from holdfast.core.errors import BadInput


def cloud(seed: int, n: int = 400, *, away: float = 0.0, d: int = 10) -> np.ndarray:
    """Gaussian features, moved along the first axis."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    x[:, 0] += away
    return x


def test_the_same_distribution_is_near_zero_and_far_ones_near_two():
    same = a_distance(cloud(0), cloud(1), seed=0)
    assert same.noise == pytest.approx(0.1)  # 2 / sqrt(400 scored)
    assert 0 <= same.mean <= 2 * same.noise
    far = a_distance(cloud(0), cloud(1, away=10.0), seed=0)
    assert far.mean > 1.98
    assert far.mean <= 2


def test_it_is_twice_one_less_twice_the_error():
    # two unit Gaussians 2 apart: the best linear classifier errs with Phi(-1) = 0.1587, so d = 1.365
    found = a_distance(cloud(0, 2000, away=2.0, d=3), cloud(1, 2000, d=3), seed=0)
    assert found.mean == pytest.approx(2 * (1 - 2 * 0.1587), abs=2 * found.noise)


def test_it_grows_with_the_shift():
    found = [a_distance(cloud(0), cloud(1, away=away), seed=0).mean for away in (0.0, 0.7, 1.5, 3.0, 6.0)]
    assert found == sorted(found)
    assert found[-1] - found[0] > 1.5


def test_chance_is_not_clipped_away_before_the_mean():
    means = []
    for seed in range(8):
        same = a_distance(cloud(2 * seed, 60), cloud(2 * seed + 1, 60), seed=seed)
        means.append(np.mean(same.values))
        assert same.mean == pytest.approx(max(0.0, float(np.mean(same.values))))
    assert min(means) < 0 < max(means)  # clipping each repeat would make every mean positive


def test_a_separable_training_half_is_not_mistaken_for_a_shift():
    # more features than examples: the classifier separates what it learns from, and knows nothing
    found = a_distance(cloud(0, 60, d=200), cloud(1, 60, d=200), seed=0)
    assert found.mean <= 3 * found.noise


def test_sides_are_of_equal_size_and_capped():
    assert a_distance(cloud(0, 300), cloud(1, 50), seed=0).examples == 50
    assert a_distance(cloud(0, 300), cloud(1, 200), seed=0, most=100).examples == 100


def test_the_same_seed_gives_the_same_and_the_scale_of_a_feature_does_not_matter():
    one, other = cloud(0), cloud(1, away=1.0)
    assert a_distance(one, other, seed=3) == a_distance(one, other, seed=3)
    assert a_distance(one, other, seed=3).values != a_distance(one, other, seed=4).values
    scale = np.array([1000.0] + [0.001] * 9)
    assert a_distance(one * scale, other * scale, seed=3) == a_distance(one, other, seed=3)


def test_too_few_examples_are_said():
    with pytest.raises(BadInput, match="at least 8 examples of each domain, here are 400 and 5"):
        a_distance(cloud(0), cloud(1, 5), seed=0)


def test_every_two_domains():
    found = pairwise({"a": cloud(0), "b": cloud(1), "c": cloud(2, away=6.0)}, seed=0)
    assert {a: set(row) for a, row in found.items()} == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    assert found["a"]["c"] is found["c"]["a"]
    assert found["a"]["b"].mean < 0.3 < 1.9 < found["b"]["c"].mean


def test_of_a_run_each_target_against_all_sources_together():
    def view(name: str, x: np.ndarray) -> View:
        return View(name, np.zeros_like(x), x)  # the features count, not what the backbone gives

    views = Views((view("a", cloud(0, away=-3.0)), view("b", cloud(1, away=3.0))), (view("t", cloud(2, away=9.0)),))
    found = against_sources(views, seed=0)
    assert found is not None
    assert set(found["targets"]) == {"t"}
    assert found["targets"]["t"]["mean"] > 1.9
    assert len(found["targets"]["t"]["values"]) == 5
    json.dumps(found, allow_nan=False)
    assert against_sources(Views(views.sources, ()), seed=0) is None
    assert against_sources(Views(views.sources, (view("t", cloud(2, 5)),)), seed=0) is None

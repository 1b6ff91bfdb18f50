import json
from dataclasses import replace

import numpy as np
import pytest

from holdfast.analysis.domain_distance import a_distance, against_sources, distances, draw_distances, pairwise, sections
from holdfast.analysis.views import View, Views
from holdfast.core.errors import BadInput
from holdfast.report.plots import COLOURS
from holdfast.stats.labels import grouped
from tests.unit.report.drawing import drawn
from tests.unit.report.fake_records import analysed


def cloud(seed: int, n: int = 400, *, away: float = 0.0, d: int = 10) -> np.ndarray:
    """Return Gaussian features, shifted along the first axis."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    x[:, 0] += away
    return x


def test_distance_is_near_zero_for_equal_and_near_two_for_distant_distributions():
    same = a_distance(cloud(0), cloud(1), seed=0)
    assert same.noise == pytest.approx(0.1)  # 2 / sqrt(400 scored)
    assert 0 <= same.mean <= 2 * same.noise
    far = a_distance(cloud(0), cloud(1, away=10.0), seed=0)
    assert far.mean > 1.98
    assert far.mean <= 2


def test_distance_follows_the_error_of_the_best_linear_classifier():
    # two unit Gaussians 2 apart: the best linear classifier errs with Phi(-1) = 0.1587, so d = 1.365
    distance = a_distance(cloud(0, 2000, away=2.0, d=3), cloud(1, 2000, d=3), seed=0)
    assert distance.mean == pytest.approx(2 * (1 - 2 * 0.1587), abs=2 * distance.noise)


def test_repeats_are_averaged_before_clipping():
    means = []
    for seed in range(8):
        same = a_distance(cloud(2 * seed, 60), cloud(2 * seed + 1, 60), seed=seed)
        means.append(np.mean(same.values))
        assert same.mean == pytest.approx(max(0.0, float(np.mean(same.values))))
    assert min(means) < 0 < max(means)  # clipping each repeat would make every mean positive


def test_overfitting_is_not_measured_as_a_shift():
    # more features than examples: the classifier separates its training half perfectly
    distance = a_distance(cloud(0, 60, d=200), cloud(1, 60, d=200), seed=0)
    assert distance.mean <= 3 * distance.noise


def test_sides_have_equal_sizes_up_to_a_limit():
    assert a_distance(cloud(0, 300), cloud(1, 50), seed=0).examples == 50
    assert a_distance(cloud(0, 300), cloud(1, 200), seed=0, most=100).examples == 100


def test_distance_depends_on_the_seed_and_not_on_the_scale_of_features():
    one, other = cloud(0), cloud(1, away=1.0)
    assert a_distance(one, other, seed=3) == a_distance(one, other, seed=3)
    assert a_distance(one, other, seed=3).values != a_distance(one, other, seed=4).values
    scale = np.array([1000.0] + [0.001] * 9)
    assert a_distance(one * scale, other * scale, seed=3) == a_distance(one, other, seed=3)


def test_too_few_examples_raise():
    with pytest.raises(BadInput, match=r"at least 8 .* 400 and 5"):
        a_distance(cloud(0), cloud(1, 5), seed=0)


def test_pairwise_distances_are_symmetric():
    pairs = pairwise({"a": cloud(0), "b": cloud(1), "c": cloud(2, away=6.0)}, seed=0)
    assert {a: set(row) for a, row in pairs.items()} == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    assert pairs["a"]["c"] is pairs["c"]["a"]
    assert pairs["a"]["b"].mean < 0.3 < 1.9 < pairs["b"]["c"].mean


def test_each_target_is_compared_with_all_sources_together():
    def view(name: str, x: np.ndarray) -> View:
        return View(name, np.zeros_like(x), x)  # only the input of the head counts

    views = Views((view("a", cloud(0, away=-3.0)), view("b", cloud(1, away=3.0))), (view("t", cloud(2, away=9.0)),))
    result = against_sources(views, seed=0)
    assert result is not None
    assert set(result["targets"]) == {"t"}
    assert result["targets"]["t"]["mean"] > 1.9
    assert len(result["targets"]["t"]["values"]) == 5
    json.dumps(result, allow_nan=False)
    assert against_sources(Views(views.sources, ()), seed=0) is None
    assert against_sources(Views(views.sources, (view("t", cloud(2, 5)),)), seed=0) is None


def result(**means: float) -> dict:
    distance = {"std": 0.2, "noise": 0.06, "examples": 1000}
    return {"targets": {name: {**distance, "mean": mean, "values": [mean] * 5} for name, mean in means.items()}}


def test_bars_are_means_over_seeds_with_standard_errors():
    runs = [analysed("erm", seed, a_distance=result(films=mean)) for seed, mean in ((0, 1.0), (1, 1.2))]
    runs += [analysed("mil", a_distance=result(films=0.5)), analysed("coral"), analysed("dann", a_distance=None)]
    bars = distances(grouped(runs))
    assert list(bars) == ["erm", "mil"]
    two, one = bars["erm"]["films"], bars["mil"]["films"]
    assert (two.mean, two.stderr, two.n) == (pytest.approx(1.1), pytest.approx(0.1), 2)
    assert (one.mean, one.stderr, one.n) == (0.5, 0.2, 1)  # one seed: the spread over repeats


def test_one_target_of_several_episodes_has_several_bars():
    runs = [
        replace(analysed("erm", a_distance=result(t=mean)), episode=episode)
        for episode, mean in (("from-a", 0.5), ("from-b", 1.5))
    ]
    bars = distances(grouped(runs))["erm"]
    assert {target: bar.mean for target, bar in bars.items()} == {"from-a>t": 0.5, "from-b>t": 1.5}


def test_bars_have_the_colours_of_the_report():
    groups = grouped([analysed("erm"), analysed("mil", a_distance=result(films=0.5, books=1.5))])
    plot = drawn(draw_distances(distances(groups), {label: i for i, label in enumerate(groups)}))
    (bar,) = plot.marks
    assert (bar.name, bar.x, bar.y) == ("mil", ["books", "films"], [1.5, 0.5])
    assert bar.errors.above == [0.2, 0.2]
    assert bar.colour == COLOURS[1]  # as in the chart of scores
    assert plot.y.limits == (0, 2.05)


def test_section_explains_its_error_bars():
    runs = [analysed("erm", seed, a_distance=result(films=1.0)) for seed in (0, 1)]
    (several,), (one,) = sections(grouped(runs), "accuracy"), sections(grouped(runs[:1]), "accuracy")
    assert "standard error over seeds" in several.text
    assert "0.06" in several.text
    assert "repeats" in one.text
    assert sections(grouped([analysed("erm")]), "accuracy") == []

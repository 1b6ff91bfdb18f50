from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.analysis.projection import density, flatten, panels
from holdfast.analysis.views import View, Views
from holdfast.core.errors import BadInput


def cloud(seed: int, n: int = 200, *, away: float = 0.0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, 6)) * [3.0, 2.0, 0.1, 0.1, 0.1, 0.1]
    x[:, 0] += away
    return x


def views(*, memory: bool = True, away: float = 30.0, n: int = 200) -> Views:
    def view(name: str, seed: int, away: float) -> View:
        z, m = cloud(seed, n, away=away), cloud(seed + 10, n)
        return View(name, z, (z + m) / 2, m) if memory else View(name, z, z)

    return Views((view("a", 0, 0.0), view("b", 1, 0.0)), (view("t", 2, away),))


def test_three_panels_of_a_network_with_memory_and_one_of_a_plain_one():
    found = panels(views(), seed=0)
    assert found is not None
    assert list(found["panels"]) == ["backbone", "memory", "features"]
    assert (found["sources"], found["targets"]) == (["a", "b"], ["t"])
    plain = panels(views(memory=False), seed=0)
    assert plain is not None
    assert list(plain["panels"]) == ["backbone"]
    assert panels(Views(views().sources, ()), seed=0) is None


def test_what_lies_apart_lies_apart_in_the_picture_and_what_does_not_does_not():
    found = panels(views(), seed=0)
    assert found is not None

    def gap(name: str) -> float:
        panel = found["panels"][name]
        return abs(np.mean(panel["sources"]["x"]) - np.mean(panel["target"]["x"]))

    assert gap("backbone") > 0.5
    assert gap("memory") < 0.1


def test_the_map_is_in_the_unit_square_and_keeps_the_widest_axes():
    plane, shares = flatten(cloud(0), seed=0)
    assert plane.min(axis=0) == pytest.approx([0, 0])
    assert plane.max(axis=0) == pytest.approx([1, 1])
    assert shares is not None
    assert sum(shares) > 0.98  # 9 + 4 of 9 + 4 + 4 * 0.01
    assert shares[0] > shares[1]
    assert abs(np.corrcoef(plane[:, 0], cloud(0)[:, 0])[0, 1]) > 0.99


@pytest.mark.parametrize("x", [np.ones((20, 5)), np.arange(20.0)[:, None], np.outer(np.arange(20.0), [1, 2, 3])])
def test_features_without_two_directions_have_points_and_no_density(x):
    plane, _ = flatten(x, seed=0)
    assert np.isfinite(plane).all()
    assert set(plane[:, 1]) == {0.5}
    assert density(plane) is None


def test_density_is_high_where_the_points_are():
    points = np.random.default_rng(0).normal([0.25, 0.75], 0.05, (300, 2))
    found = density(points, cells=41)
    assert found is not None
    row, column = np.unravel_index(found.argmax(), found.shape)
    assert (row / 40, column / 40) == (pytest.approx(0.75, abs=0.05), pytest.approx(0.25, abs=0.05))
    assert found.mean() == pytest.approx(1.0, abs=0.1)  # it integrates to one over the square


def test_it_is_small_plain_and_the_same_again():
    found = panels(views(n=3000), seed=1)
    text = json.dumps(found, allow_nan=False)
    assert len(text) < 100_000
    assert json.dumps(panels(views(n=3000), seed=1)) == text
    assert found is not None
    side = found["panels"]["memory"]["target"]
    assert len(side["x"]) == len(side["y"]) == 150
    assert max(max(row) for row in side["density"]) == 1000


def test_tsne_is_the_other_way():
    found = panels(views(n=60), seed=0, how="tsne")
    assert found is not None
    panel = found["panels"]["backbone"]
    assert panel["variance"] is None
    assert len(panel["target"]["x"]) == 60
    near = np.array([panel["target"]["x"], panel["target"]["y"]]).T
    far = np.array([panel["sources"]["x"], panel["sources"]["y"]]).T
    middle = near.mean(axis=0)  # the target is one heap, with no source among it
    assert np.linalg.norm(far - middle, axis=1).min() > np.median(np.linalg.norm(near - middle, axis=1))
    with pytest.raises(BadInput, match="unknown projection 'umap'"):
        panels(views(), seed=0, how="umap")

import json

import numpy as np
import pytest

from holdfast.analysis.projection import CAPTIONS, SOURCES, TARGET, density, draw_panels, panels, project
from holdfast.analysis.views import View, Views
from tests.unit.report.drawing import drawn, only_run


def cloud(seed: int, n: int = 200, *, away: float = 0.0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((n, 6)) * [3.0, 2.0, 0.1, 0.1, 0.1, 0.1]
    x[:, 0] += away
    return x


def views(*, memory: bool = True, away: float = 30.0, n: int = 200) -> Views:
    def view(name: str, seed: int, away: float) -> View:
        z, m = cloud(seed, n, away=away), cloud(seed + 10, n)
        return View(name, z, (z + m) / 2, m) if memory else View(name, z, z)

    return Views((view("a", 0, 0.0), view("b", 1, 0.0)), (view("t", 2, away),))


def test_networks_with_memory_have_three_panels_and_plain_ones_one():
    result = panels(views(), seed=0)
    assert result is not None
    assert list(result["panels"]) == ["backbone", "memory", "features"]
    assert (result["sources"], result["targets"]) == (["a", "b"], ["t"])
    plain = panels(views(memory=False), seed=0)
    assert plain is not None
    assert list(plain["panels"]) == ["backbone"]
    assert panels(Views(views().sources, ()), seed=0) is None


def test_distances_in_feature_space_appear_in_the_projection():
    result = panels(views(), seed=0)
    assert result is not None

    def gap(name: str) -> float:
        panel = result["panels"][name]
        return abs(np.mean(panel["sources"]["x"]) - np.mean(panel["target"]["x"]))

    assert gap("backbone") > 0.5
    assert gap("memory") < 0.1


def test_projection_fills_the_unit_square_along_the_axes_of_largest_variance():
    plane, shares = project(cloud(0), seed=0)
    assert plane.min(axis=0) == pytest.approx([0, 0])
    assert plane.max(axis=0) == pytest.approx([1, 1])
    assert shares is not None
    assert sum(shares) > 0.98  # 9 + 4 of 9 + 4 + 4 * 0.01
    assert shares[0] > shares[1]
    assert abs(np.corrcoef(plane[:, 0], cloud(0)[:, 0])[0, 1]) > 0.99


@pytest.mark.parametrize("x", [np.ones((20, 5)), np.arange(20.0)[:, None], np.outer(np.arange(20.0), [1, 2, 3])])
def test_degenerate_features_have_points_and_no_density(x):
    plane, _ = project(x, seed=0)
    assert np.isfinite(plane).all()
    assert set(plane[:, 1]) == {0.5}
    assert density(plane) is None


def test_density_is_highest_at_the_points_and_integrates_to_one():
    points = np.random.default_rng(0).normal([0.25, 0.75], 0.05, (300, 2))
    result = density(points, cells=41)
    assert result is not None
    row, column = np.unravel_index(result.argmax(), result.shape)
    assert (row / 40, column / 40) == (pytest.approx(0.75, abs=0.05), pytest.approx(0.25, abs=0.05))
    assert result.mean() == pytest.approx(1.0, abs=0.1)


def test_result_is_small_and_deterministic():
    result = panels(views(n=3000), seed=1)
    text = json.dumps(result, allow_nan=False)
    assert len(text) < 100_000
    assert json.dumps(panels(views(n=3000), seed=1)) == text
    assert result is not None
    side = result["panels"]["memory"]["target"]
    assert len(side["x"]) == len(side["y"]) == 150
    assert max(max(row) for row in side["density"]) == 1000


def stored(*names: str) -> dict:
    side = {"x": [0.1, 0.2], "y": [0.3, 0.4], "density": [[0, 10], [20, 1000]]}
    panel = {"variance": [0.5, 0.25], "sources": side, "target": side | {"density": None}}
    return {"how": "pca", "sources": ["a"], "targets": ["films"], "cells": 2, "panels": dict.fromkeys(names, panel)}


def test_figures_follow_the_order_of_the_network():
    figures = draw_panels(only_run("projection", stored("features", "memory", "backbone")))
    assert [caption for caption, _ in figures] == list(CAPTIONS.values())
    contour, sources, target = drawn(figures[0][1]).marks  # the target has points and no density
    assert (contour.z, contour.line.colour) == ([[0, 10], [20, 1000]], SOURCES)
    assert (sources.x, sources.colour, target.colour) == ([0.1, 0.2], SOURCES, TARGET)


@pytest.mark.parametrize(
    ("names", "captions"),
    [(["backbone"], ["Features"]), (["features", "backbone"], [CAPTIONS["backbone"], "After the neck"])],
)
def test_captions_depend_on_the_network(names, captions):
    assert [caption for caption, _ in draw_panels(only_run("projection", stored(*names)))] == captions

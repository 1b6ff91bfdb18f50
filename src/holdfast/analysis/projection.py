"""Two-dimensional projections of the features of sources and target, with densities.

Shapes: n points, d width, r cells per side of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from holdfast.analysis import random_generator, rounded
from holdfast.report.marks import Contours, Mark, Points, Stroke
from holdfast.report.plots import COLOURS, plane
from holdfast.report.sections import Figure, RunResult, Section, figure_section
from holdfast.stats.labels import Groups

if TYPE_CHECKING:
    from holdfast.analysis.views import Views

SHOWN = 150  # points per side that a panel stores; projection and density use all
CELLS = 40
SOURCES, TARGET = COLOURS[0], COLOURS[1]
MARKS = {"sources": (SOURCES, "circle-open", "solid"), "target": (TARGET, "x-thin-open", "dash")}
CAPTIONS = {"backbone": "Backbone, z", "memory": "Memory, m(z)", "features": "Fused, g(z)"}  # in this order


@dataclass(frozen=True)
class Algorithm:
    """A projection to two dimensions."""

    name: str  # in records
    # points (n, d) and seed to points (n, 2) and, if it is known, the explained variance ratio per axis
    fit: Callable[[np.ndarray, int], tuple[np.ndarray, list[float] | None]]
    points: int | None = None  # per side at most, for a slow algorithm


def _principal_components(x: np.ndarray, seed: int) -> tuple[np.ndarray, list[float] | None]:
    from sklearn import decomposition  # slow to import, and drawing does not need it

    centred = x - x.mean(axis=0)
    plane, variance = np.zeros((len(x), 2)), [0.0, 0.0]
    if centred.any():
        pca = decomposition.PCA(min(2, *x.shape), svd_solver="full")
        components = pca.fit_transform(centred)
        plane[:, : components.shape[1]] = components
        variance[: components.shape[1]] = rounded(pca.explained_variance_ratio_)
    return plane, variance


PCA = Algorithm("pca", _principal_components)


def panels(views: Views, *, seed: int, algorithm: Algorithm = PCA) -> dict[str, Any] | None:
    """Project backbone features, memory content and fused features; None if a side has no rows.

    Each projection is fitted on both sides together and scaled to the unit square. A density is a Gaussian kernel
    estimate on a regular grid over that square, in thousandths of its maximum.
    """
    if not views.sources or not views.targets:
        return None
    fields = {"backbone": "backbone", "memory": "content", "features": "features"}
    if all(np.array_equal(view.backbone, view.features) for view in views) and any(v.content is None for v in views):
        del fields["features"]  # no neck: equal to the backbone features
    projected = {}
    for name, field in fields.items():
        sources, target = ([getattr(view, field) for view in side] for side in (views.sources, views.targets))
        if all(array is not None for array in (*sources, *target)):
            both = np.concatenate(sources), np.concatenate(target)
            projected[name] = _panel(*both, seed=seed, algorithm=algorithm)
    domains = {side: list(by_domain) for side, by_domain in views.by_domain(lambda view: view).items()}
    return {"how": algorithm.name, **domains, "cells": CELLS, "panels": projected}


def project(x: np.ndarray, *, seed: int, algorithm: Algorithm = PCA) -> tuple[np.ndarray, list[float] | None]:
    """Project (n, d) to (n, 2) in the unit square; for PCA also return the explained variance ratio per axis."""
    plane, variance = algorithm.fit(x, seed)
    low, span = plane.min(axis=0), np.ptp(plane, axis=0)
    flat = span <= 1e-9 * max(1e-30, float(span.max()))  # axes without spread are centred
    return np.where(flat, 0.5, (plane - low) / np.where(flat, 1.0, span)), variance


def density(points: np.ndarray, *, cells: int = CELLS) -> np.ndarray | None:
    """Estimate the density (r, r), rows y and columns x, over the unit square; None for points on a line."""
    if len(points) < 3 or np.linalg.matrix_rank(points - points.mean(axis=0), tol=1e-6) < 2:
        return None
    from scipy.stats import gaussian_kde

    axis = np.linspace(0, 1, cells)
    x, y = np.meshgrid(axis, axis)
    return gaussian_kde(points.T)(np.stack([x.ravel(), y.ravel()])).reshape(cells, cells)


def _panel(sources: np.ndarray, target: np.ndarray, *, seed: int, algorithm: Algorithm) -> dict[str, Any]:
    if algorithm.points is not None:
        sources, target = (_sample(side, algorithm.points, seed) for side in (sources, target))
    plane, variance = project(np.concatenate([sources, target]).astype(np.float64), seed=seed, algorithm=algorithm)
    panel: dict[str, Any] = {"variance": variance}
    for name, points in (("sources", plane[: len(sources)]), ("target", plane[len(sources) :])):
        shown, heights = _sample(points, SHOWN, seed), density(points)
        panel[name] = {
            "x": rounded(shown[:, 0], 3),
            "y": rounded(shown[:, 1], 3),
            "density": None if heights is None else np.rint(1000 * heights / heights.max()).astype(int).tolist(),
        }
    return panel


def _sample(x: np.ndarray, count: int, seed: int) -> np.ndarray:
    if len(x) <= count:
        return x
    return x[np.sort(random_generator(seed, "projection", len(x)).choice(len(x), count, replace=False))]


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw the projections of the selected runs."""
    return projection_section(groups, "projection", "PCA")


def projection_section(groups: Groups, name: str, algorithm: str) -> list[Section]:
    """Draw the results of one analysis, which projects by the algorithm of this title."""
    text = Markup(
        'Rows of the <span class="sources">○ sources</span> (solid contours) and of the <span class="target">✕ target'
        "</span> (dashed contours). Each projection is fitted on both together and scaled to the unit square; contours "
        "are at 10, 30, 50, 70 and 90 % of the maximum density of each side."
    )
    return figure_section(groups, name, f"Projection of the features by {algorithm}", text, draw_panels)


def draw_panels(run: RunResult) -> list[Figure]:
    """Draw one figure per kind of feature: density contours and points of sources and target."""
    panels = run.result["panels"]
    figures = []
    for name in (name for name in CAPTIONS if name in panels):
        marks = [mark for side in MARKS for mark in _marks(panels[name][side], side)]
        figure = plane(*marks, variance=panels[name]["variance"])
        html = figure.html(f"{run.result['how']}-{run.id}-{name}", height=330, legend=False)
        figures.append((_caption(name, panels), html))
    return figures


def _marks(points: Mapping[str, Any], side: str) -> Iterator[Mark]:
    """Yield the contours and the points of one side."""
    colour, symbol, dash = MARKS[side]
    if points["density"] is not None:
        yield Contours(points["density"], range(100, 901, 200), Stroke(colour, 1.5, dash))
    yield Points(points["x"], points["y"], side, colour=colour, symbol=symbol, size=5, faded=0.55)


def _caption(name: str, panels: Mapping[str, Any]) -> str:
    if name == "features" and "memory" not in panels:
        return "After the neck"
    return CAPTIONS[name] if len(panels) > 1 else "Features"

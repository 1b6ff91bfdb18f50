"""Two-dimensional projections of the features of sources and target, by PCA or t-SNE, with densities.

Shapes: n points, d width, r cells per side of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from holdfast.analysis import random_generator, rounded
from holdfast.core.errors import unknown
from holdfast.report.marks import Contours, Mark, Points, Stroke
from holdfast.report.plots import COLOURS, plane
from holdfast.report.sections import Figure, RunResult, Section, figure_section
from holdfast.stats.labels import Groups

if TYPE_CHECKING:
    from holdfast.analysis.views import Views

ALGORITHMS = ("pca", "tsne")
SHOWN = 150  # points per side that a panel stores; projection and density use all
CELLS = 40
TSNE_POINTS = 150  # points per side for t-SNE, which is slow
SOURCES, TARGET = COLOURS[0], COLOURS[1]
MARKS = {"sources": (SOURCES, "circle-open", "solid"), "target": (TARGET, "x-thin-open", "dash")}
CAPTIONS = {"backbone": "Backbone, z", "memory": "Memory, m(z)", "features": "Fused, g(z)"}  # in this order


def panels(views: Views, *, seed: int, algorithm: str = "pca") -> dict[str, Any] | None:
    """Project backbone features, memory content and fused features; None if a side has no rows.

    Each projection is fitted on both sides together and scaled to the unit square. A density is a Gaussian kernel
    estimate on a regular grid over that square, in thousandths of its maximum.
    """
    if algorithm not in ALGORITHMS:
        raise unknown("projection", algorithm, ALGORITHMS)
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
    return {"how": algorithm, **domains, "cells": CELLS, "panels": projected}


def project(x: np.ndarray, *, seed: int, algorithm: str = "pca") -> tuple[np.ndarray, list[float] | None]:
    """Project (n, d) to (n, 2) in the unit square; for PCA also return the explained variance ratio per axis."""
    variance = None
    if algorithm == "tsne":
        from sklearn.manifold import TSNE  # slow to import, and drawing does not need it

        from holdfast.core.seeds import derive

        perplexity = max(1.0, min(30.0, (len(x) - 1) / 3))
        init = "pca" if x.shape[1] > 1 else "random"
        state = derive(seed, "tsne") % 2**32
        plane = TSNE(2, perplexity=perplexity, init=init, random_state=state).fit_transform(x)
    else:
        from sklearn.decomposition import PCA

        centred = x - x.mean(axis=0)
        plane, variance = np.zeros((len(x), 2)), [0.0, 0.0]
        if centred.any():
            pca = PCA(min(2, *x.shape), svd_solver="full")
            components = pca.fit_transform(centred)
            plane[:, : components.shape[1]] = components
            variance[: components.shape[1]] = rounded(pca.explained_variance_ratio_)
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


def _panel(sources: np.ndarray, target: np.ndarray, *, seed: int, algorithm: str) -> dict[str, Any]:
    if algorithm == "tsne":
        sources, target = (_sample(side, TSNE_POINTS, seed) for side in (sources, target))
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
    text = Markup(
        'Rows of the <span class="sources">○ sources</span> (solid contours) and of the <span class="target">✕ target'
        "</span> (dashed contours). Each projection is fitted on both together and scaled to the unit square; contours "
        "are at 10, 30, 50, 70 and 90 % of the maximum density of each side."
    )
    names = {"projection": "PCA", "projection-tsne": "t-SNE"}
    return [
        section
        for name, algorithm in names.items()
        for section in figure_section(groups, name, f"Projection of the features by {algorithm}", text, draw_panels)
    ]


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

"""Sources and target in the plane: features before, inside and after the neck, as points and as density.

n points, d width, r cells a side of the grid
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from holdfast.analysis.views import View, Views
from holdfast.core.errors import unknown
from holdfast.core.seeds import derive

HOW = ("pca", "tsne")
SHOWN = 150  # points of each side that a panel keeps; map and density are made of all
CELLS = 40
TSNE_MOST = 150  # points of each side that t-SNE takes, which is slow


def panels(views: Views, *, seed: int, how: str = "pca") -> dict[str, Any] | None:
    """A panel for each feature that the network has: backbone, memory, features; None where a side has no rows.

    Each map is fitted on both sides together and scaled to the unit square. A density is a Gaussian kernel
    estimate on an even grid over that square, in thousandths of its highest value.
    """
    if how not in HOW:
        raise unknown("projection", how, HOW)
    if not views.sources or not views.targets:
        return None
    kinds = {"backbone": "backbone", "memory": "content", "features": "features"}
    found = {}
    for name, field in kinds.items():
        sides = [_joined(side, field) for side in (views.sources, views.targets)]
        if sides[0] is None or sides[1] is None:
            continue
        if name == "features" and "memory" not in found and _same(views):
            continue  # without a neck it is the backbone's once more
        found[name] = _panel(sides[0], sides[1], seed=seed, how=how)
    return {
        "how": how,
        "sources": [view.domain for view in views.sources],
        "targets": [view.domain for view in views.targets],
        "cells": CELLS,
        "panels": found,
    }


def flatten(x: np.ndarray, *, seed: int, how: str = "pca") -> tuple[np.ndarray, list[float] | None]:
    """(n, d) to (n, 2) in the unit square; for PCA also the share of the variance that each axis has."""
    shares = None
    if how == "tsne":
        at = derive(seed, "tsne") % 2**32
        near = max(1.0, min(30.0, (len(x) - 1) / 3))
        start = "pca" if x.shape[1] > 1 else "random"
        plane = TSNE(2, perplexity=near, init=start, random_state=at).fit_transform(x)
    else:
        middle = x - x.mean(axis=0)
        made = PCA(min(2, *x.shape), svd_solver="full") if middle.any() else None
        plane = np.zeros((len(x), 2))
        shares = [0.0, 0.0]
        if made is not None:
            told = made.fit_transform(middle)
            plane[:, : told.shape[1]] = told
            shares[: told.shape[1]] = [round(float(v), 4) for v in made.explained_variance_ratio_]
    low, span = plane.min(axis=0), np.ptp(plane, axis=0)
    flat = span <= 1e-9 * max(1e-30, float(span.max()))  # an axis without spread lies in the middle
    return np.where(flat, 0.5, (plane - low) / np.where(flat, 1.0, span)), shares


def density(points: np.ndarray, *, cells: int = CELLS) -> np.ndarray | None:
    """(r, r) by row y and column x over the unit square; None where the points lie on a line or in one place."""
    if len(points) < 3 or np.linalg.matrix_rank(points - points.mean(axis=0), tol=1e-6) < 2:
        return None
    axis = np.linspace(0, 1, cells)
    x, y = np.meshgrid(axis, axis)
    return gaussian_kde(points.T)(np.stack([x.ravel(), y.ravel()])).reshape(cells, cells)


def _panel(sources: np.ndarray, target: np.ndarray, *, seed: int, how: str) -> dict[str, Any]:
    if how == "tsne":
        sources, target = (_some(side, TSNE_MOST, seed) for side in (sources, target))
    plane, shares = flatten(np.concatenate([sources, target]).astype(np.float64), seed=seed, how=how)
    found: dict[str, Any] = {"variance": shares}
    for name, points in (("sources", plane[: len(sources)]), ("target", plane[len(sources) :])):
        shown, height = _some(points, SHOWN, seed), density(points)
        found[name] = {
            "x": [round(float(v), 3) for v in shown[:, 0]],
            "y": [round(float(v), 3) for v in shown[:, 1]],
            "density": None if height is None else np.rint(1000 * height / height.max()).astype(int).tolist(),
        }
    return found


def _some(x: np.ndarray, most: int, seed: int) -> np.ndarray:
    if len(x) <= most:
        return x
    chosen = np.random.default_rng(derive(seed, "projection", len(x))).choice(len(x), most, replace=False)
    return x[np.sort(chosen)]


def _joined(side: Sequence[View], field: str) -> np.ndarray | None:
    found = [getattr(view, field) for view in side]
    return None if any(each is None for each in found) else np.concatenate(found)


def _same(views: Views) -> bool:
    return all(np.array_equal(view.backbone, view.features) for view in views)

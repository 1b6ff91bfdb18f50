"""Projections of the features of sources and target by t-SNE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.analysis import projection
from holdfast.analysis.projection import Algorithm, projection_section
from holdfast.report.sections import Section
from holdfast.stats.labels import Groups

if TYPE_CHECKING:
    from holdfast.analysis.views import Views


def _fit(x: np.ndarray, seed: int) -> tuple[np.ndarray, list[float] | None]:
    from sklearn import manifold  # slow to import, and drawing does not need it

    from holdfast.core.seeds import derive

    perplexity = max(1.0, min(30.0, (len(x) - 1) / 3))
    init = "pca" if x.shape[1] > 1 else "random"
    state = derive(seed, "tsne") % 2**32
    return manifold.TSNE(2, perplexity=perplexity, init=init, random_state=state).fit_transform(x), None


TSNE = Algorithm("tsne", _fit, points=150)


def panels(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Project backbone features, memory content and fused features, on a subset of the points."""
    return projection.panels(views, seed=seed, algorithm=TSNE)


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw the projections of the selected runs."""
    return projection_section(groups, "projection-tsne", "t-SNE")

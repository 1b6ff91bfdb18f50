"""How a memory is used: which slots get weight, how many that comes to, and how far it moves the features.

n rows, d width, m slots
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.analysis.views import View, Views

SHOWN = 128  # slots whose usage is kept, the most used ones; the other numbers are over all slots


def memory_use(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Usage of the slots by domain; None where the network has no memory. Nothing here is left to chance."""
    usages = [view.usage for view in views if view.usage is not None]
    if not usages:
        return None
    overall = np.mean(usages, axis=0)  # (m,)
    shown = np.argsort(-overall, kind="stable")[:SHOWN]
    return {
        "slots": len(overall),
        "shown": shown.tolist(),
        "effective": round(effective(overall), 2),
        "weight": _rounded(weight(tuple(views))),
        "moved": _rounded(moved(tuple(views))),
        "sources": {view.domain: _of(view, shown) for view in views.sources},
        "targets": {view.domain: _of(view, shown) for view in views.targets},
    }


def effective(usage: np.ndarray) -> float:
    """exp of the entropy of the mean weights: m where all slots are used alike, 1 where one gets everything."""
    p = usage / usage.sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def used(peaks: np.ndarray) -> float:
    """The share of the slots that some row gave more than an even share, 1/m."""
    return float(np.mean(peaks > (1 + 1e-4) / len(peaks)))


def weight(views: Sequence[View]) -> float | None:
    """w of features = (1 - w) backbone + w content by least squares: the published lambda where it is one number."""
    above = below = 0.0
    for view in views:
        if view.content is None or not view.content.shape == view.features.shape == view.backbone.shape:
            return None
        apart = view.content - view.backbone
        above += float(((view.features - view.backbone) * apart).sum(dtype=np.float64))
        below += float((apart**2).sum(dtype=np.float64))
    return above / below if below > 0 else None


def moved(views: Sequence[View]) -> float | None:
    """The mean over rows of |features - backbone| / |backbone|: how far the neck moves a feature."""
    found = []
    for view in views:
        if view.features.shape != view.backbone.shape:
            return None
        length = np.linalg.norm(view.backbone, axis=1)
        found.append(np.linalg.norm(view.features - view.backbone, axis=1)[length > 0] / length[length > 0])
    each = np.concatenate(found)
    return float(each.mean()) if len(each) else None


def _of(view: View, shown: np.ndarray) -> dict[str, Any]:
    assert view.usage is not None
    assert view.peaks is not None
    return {
        "effective": round(effective(view.usage), 2),
        "used": round(used(view.peaks), 4),
        "usage": [round(float(v), 6) for v in view.usage[shown]],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

"""Which part of a memory that grew each domain reads: the attention to every segment, and how evenly slots are used.

m slots, s segments
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from holdfast.analysis.memory_use import effective
from holdfast.analysis.views import View, Views


def segment_mass(views: Views, *, seed: int) -> dict[str, Any] | None:
    """A table of domains by segments; None where no memory that grew was read. Nothing here is left to chance.

    A segment is what came at once, for one domain, whose number is its owner.
    """
    sides = {"sources": views.sources, "targets": views.targets}
    found = {side: {view.domain: told for view in each if (told := _of(view))} for side, each in sides.items()}
    if not any(found.values()):
        return None
    segments = next(view.segments for view in views if view.segments)
    if len(segments) == 1:
        return None
    return {"sizes": [size for size, _ in segments], "owners": [owner for _, owner in segments], **found}


def mass(usage: np.ndarray, sizes: list[int]) -> np.ndarray:
    """(s,) the share of the weights (m,) that each segment has; together they are 1."""
    starts = np.cumsum([0, *sizes[:-1]])
    return np.add.reduceat(usage.astype(np.float64), starts) / usage.sum(dtype=np.float64)


def _of(view: View) -> dict[str, Any] | None:
    """What one domain says; None where it never read: the first word of a text reads nothing."""
    if view.usage is None or view.segments is None or not view.usage.sum() > 0:
        return None
    slots = effective(view.usage)
    return {
        "mass": [round(float(v), 4) for v in mass(view.usage, [size for size, _ in view.segments])],
        "effective": round(slots, 2),
        "entropy": round(math.log(slots), 4),  # in nats, of the mean weights of the slots
        "evenness": round(math.log(slots) / math.log(len(view.usage)), 4) if len(view.usage) > 1 else 1.0,
    }

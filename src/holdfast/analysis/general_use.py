"""How a general memory is used, by domain and layer: attention to it, the depth that gates choose, its effect.

n rows, l layers that read, h heads, s layers that a gate mixes
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.analysis.general_views import Effect, Recalled
from holdfast.analysis.views import Views


def general_use(views: Views, *, seed: int) -> dict[str, Any] | None:
    """By domain and layer; None where nothing reads a general memory. Nothing here is left to chance."""
    sides = {"sources": views.sources, "targets": views.targets}
    found = {
        side: {view.domain: view.general for view in each if view.general is not None} for side, each in sides.items()
    }
    every = [seen for each in found.values() for seen in each.values()]
    if not every:
        return None
    told: dict[str, Any] = {
        "layers": list(every[0].layers),
        "read": [list(each) for each in every[0].sources],
        **{side: {domain: _of(seen) for domain, seen in each.items()} for side, each in found.items()},
    }
    for domain, each in told["targets"].items():
        each["scores"] = _scores(views.effects.get(domain))
    return told


def depth(gate: np.ndarray, sources: tuple[int, ...]) -> float:
    """The mean layer (n, s) -> that a gate takes from, counted as the layers are: the middle one where it is even."""
    return float((gate.mean(axis=0) * np.asarray(sources)).sum())


def _of(seen: Recalled) -> dict[str, Any]:
    """One domain: attention by layer and head, shares of the gates by layer, their mean depth, and the effect."""
    gates = [None if gate is None else _rounded(gate.mean(axis=0)) for gate in seen.gates]
    depths = [
        None if gate is None else round(depth(gate, sources), 4)
        for gate, sources in zip(seen.gates, seen.sources, strict=True)
    ]
    return {
        "mass": [_rounded(line) for line in seen.mass.mean(axis=0)],
        "gates": gates,
        "depths": depths,
        "moved": None if seen.moved is None else round(float(seen.moved.mean()), 4),
    }


def _scores(effect: Effect | None) -> dict[str, float | None] | None:
    """All test rows by the metric of the run, with the memory and with it hidden."""
    return None if effect is None else {"read": effect.read, "hidden": effect.hidden}


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 5) for value in values]

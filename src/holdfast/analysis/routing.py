"""How experts share the tokens: load and importance by domain, how sure the router is, what it knows of the domain.

n rows, l layers with experts, e experts, c domains
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from holdfast.analysis.routing_views import Routed
from holdfast.analysis.views import Views
from holdfast.core.seeds import derive

REPEATS = 50  # of the shuffled control
PIXELS = 112  # a side of the images that are kept in a record
MOST = 8  # images kept


def routing(views: Views, *, seed: int) -> dict[str, Any] | None:
    """By domain and layer; None where the network has no experts. Chance is in the shuffled control alone."""
    sides = {"sources": views.sources, "targets": views.targets}
    found = {
        side: {view.domain: view.routing for view in each if view.routing is not None} for side, each in sides.items()
    }
    # a domain may be on both sides, where nothing was left out
    every = {(side, domain): routed for side, each in found.items() for domain, routed in each.items()}
    if not every:
        return None
    blocks = next(iter(every.values())).blocks
    return {
        "experts": next(iter(every.values())).first.shape[2],
        "blocks": list(blocks),
        **{side: {domain: _of(routed) for domain, routed in each.items()} for side, each in found.items()},
        "information": [_information([r.first[:, i] for r in every.values()], seed, i) for i in range(len(blocks))],
        "maps": [
            {"domain": domain, "image": picture(image), "experts": best.tolist()}
            for place in range(max(len(r.maps) for r in every.values()))
            for (_, domain), routed in every.items()
            for image, best in routed.maps[place : place + 1]
        ][:MOST],
    }


def information(counts: np.ndarray) -> float:
    """Mutual information in bits of domain and expert from counts (c, e), with every domain as likely as another."""
    share = counts / counts.sum(axis=1, keepdims=True) / len(counts)
    alone = share.sum(axis=1, keepdims=True) * share.sum(axis=0, keepdims=True)
    there = share > 0
    return float((share[there] * np.log2(share[there] / alone[there])).sum())


def shuffled(rows: list[np.ndarray], *, seed: int, repeats: int = REPEATS) -> np.ndarray:
    """(repeats,) the same where whole rows (n, e) are dealt to domains by chance: tokens of a row go together."""
    pool, sizes = np.concatenate(rows), np.cumsum([len(each) for each in rows])[:-1]
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(repeats):
        dealt = np.split(pool[chance.permutation(len(pool))], sizes)
        found.append(information(np.stack([each.sum(axis=0) for each in dealt])))
    return np.asarray(found)


def _information(rows: list[np.ndarray], seed: int, layer: int) -> dict[str, float]:
    control = shuffled(rows, seed=derive(seed, "routing", layer))
    return {
        "bits": round(information(np.stack([each.sum(axis=0) for each in rows])), 5),
        "shuffled": round(float(control.mean()), 5),
        "high": round(float(np.quantile(control, 0.95)), 5),  # what chance exceeds once in twenty
    }


def _of(routed: Routed) -> dict[str, Any]:
    """One domain: shares of each expert add up to one in every layer."""
    load, importance = (
        [[round(float(v), 5) for v in line / line.sum()] for line in amounts.sum(axis=0)]
        for amounts in (routed.load, routed.importance)
    )
    dropped = {} if routed.dropped is None else {"dropped": [round(float(v), 5) for v in routed.dropped.mean(axis=0)]}
    return {
        "load": load,
        "importance": importance,
        "entropy": [round(float(v), 4) for v in routed.entropy.mean(axis=0)],
        **dropped,
    }


def picture(image: np.ndarray) -> str:
    """A small copy of the picture as a PNG inside a text."""
    file = io.BytesIO()
    side = min(PIXELS, image.shape[0])
    Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

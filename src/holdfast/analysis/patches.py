"""What experts and attention do with patches: one image in several domains, parts of things, where a class token looks.

g patches a side, h heads, e experts, c parts
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from holdfast.analysis.routing import REPEATS, information, picture
from holdfast.analysis.views import Views
from holdfast.core.seeds import derive

NEAREST = 9  # patches that belong to a part
BACKGROUND = "background"


def agreement(views: Views, *, seed: int) -> dict[str, Any] | None:
    """How often a patch of one image has the same best expert in two domains, beside two images that are not one.

    None where no image is in every domain.
    """
    seen = views.patches
    if seen is None or not seen.same:
        return None
    domains = list(next(iter(seen.same.values())))
    maps = np.stack([[group[domain] for domain in domains] for group in seen.same.values()])  # (n, domains, g, g)
    pairs = list(combinations(range(len(domains)), 2))
    chance = np.random.default_rng(derive(seed, "agreement"))
    control = [
        np.mean([(maps[chance.permutation(len(maps)), a] == maps[:, b]).mean() for a, b in pairs])
        for _ in range(REPEATS)
    ]
    return {
        "experts": seen.experts,
        "domains": domains,
        "images": len(maps),
        "pairs": [[domains[a], domains[b], round(float((maps[:, a] == maps[:, b]).mean()), 4)] for a, b in pairs],
        "rate": round(float(np.mean([(maps[:, a] == maps[:, b]).mean() for a, b in pairs])), 4),
        "shuffled": round(float(np.mean(control)), 4),  # other images at the same places
        "high": round(float(np.quantile(control, 0.95)), 4),
        "maps": [
            {
                "name": each.name, "domain": each.domain, "image": picture(each.pixels),
                "experts": seen.same[each.name][each.domain].tolist(),
            }
            for each in seen.shown
        ],
        "targets": [view.domain for view in views.targets],
    }  # fmt: skip


def part_experts(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Which experts the patches of a part go to, on training images; None where no parts are told."""
    seen = views.patches
    if seen is None or not seen.parts:
        return None
    names = sorted({name for _, points in seen.parts for name, _, _ in points})
    maps = [each for each, _ in seen.parts]
    owners = [owned(points, len(each), names) for each, points in seen.parts]
    counts = _counts(maps, owners, seen.experts)
    there = counts.sum(axis=1) > 0
    chance = np.random.default_rng(derive(seed, "parts"))
    control = []
    for _ in range(REPEATS):  # another image's experts at the same places: what the place alone would tell
        dealt = [maps[i] for i in chance.permutation(len(maps))]
        control.append(information(_counts(dealt, owners, seen.experts)[there]))
    share = counts[there] / counts[there].sum(axis=1, keepdims=True)
    return {
        "experts": seen.experts,
        "images": len(maps),
        "parts": [name for name, is_there in zip((*names, BACKGROUND), there, strict=True) if is_there],
        "share": [[round(float(v), 4) for v in line] for line in share],
        "bits": round(information(counts[there]), 5),
        "shuffled": round(float(np.mean(control)), 5),
        "high": round(float(np.quantile(control, 0.95)), 5),
        "targets": [view.domain for view in views.targets],
    }


def attention_maps(views: Views, *, seed: int) -> dict[str, Any] | None:
    """The last layer's attention of the class token, head by head; None where it is no vision transformer."""
    if views.patches is None or not views.patches.looks:
        return None
    return {
        "maps": [
            {
                "name": each.name, "domain": each.domain, "image": picture(each.pixels),
                "heads": [[[round(float(v), 5) for v in line] for line in head] for head in heads],
            }
            for each, heads in views.patches.looks
        ],
        "targets": [view.domain for view in views.targets],
    }  # fmt: skip


def owned(points: Sequence[tuple[str, float, float]], side: int, names: Sequence[str]) -> np.ndarray:
    """(c + 1, g, g) whether a patch is one of the nearest to a part; the last is what no part has."""
    middle = (np.arange(side) + 0.5) / side
    found = np.zeros((len(names) + 1, side, side), dtype=bool)
    for name, x, y in points:
        far = (middle[:, None] - y) ** 2 + (middle[None, :] - x) ** 2  # rows from top to bottom
        nearest = np.argsort(far, axis=None, kind="stable")[:NEAREST]
        found[list(names).index(name)].flat[nearest] = True
    found[-1] = ~found[:-1].any(axis=0)
    return found


def _counts(maps: Sequence[np.ndarray], owners: Sequence[np.ndarray], experts: int) -> np.ndarray:
    """(c + 1, e) patches of each part by their expert."""
    total = np.zeros((len(owners[0]), experts))
    for each, belongs in zip(maps, owners, strict=True):
        chosen = each[..., None] == np.arange(experts)  # (g, g, e)
        total += np.einsum("cij,ije->ce", belongs.astype(float), chosen.astype(float))
    return total

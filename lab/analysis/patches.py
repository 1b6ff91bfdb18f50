"""Experts and attention on image patches: one image in several domains, parts of objects, the class token.

Shapes: g patches per side, h heads, e experts, c parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.analysis import random_generator, rounded
from holdfast.report.plots import heatmap
from holdfast.report.sections import Figure, RunResult, Section, figure_section
from holdfast.stats.labels import Groups
from lab.analysis.routing import REPEATS, draw_map, encode_image, expert_colours, information

if TYPE_CHECKING:
    from holdfast.analysis.views import Views
    from lab.analysis.patch_views import ImageView, PatchView

NEAREST = 9  # patches that belong to a part
BACKGROUND = "background"


def agreement(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Share of patches of one image with the same best expert in two domains, compared with different images.

    None if no image is in every domain.
    """
    view = _patch_view(views)
    if view is None or not view.same:
        return None
    domains = list(next(iter(view.same.values())))
    maps = np.stack([[group[domain] for domain in domains] for group in view.same.values()])  # (n, domains, g, g)
    pairs = list(combinations(range(len(domains)), 2))
    rng = random_generator(seed, "agreement")

    def equal(a: np.ndarray, b: np.ndarray) -> float:
        return float((a == b).mean())

    rates = [equal(maps[:, a], maps[:, b]) for a, b in pairs]
    control = [
        np.mean([equal(maps[rng.permutation(len(maps)), a], maps[:, b]) for a, b in pairs]) for _ in range(REPEATS)
    ]
    return {
        "experts": view.experts,
        "domains": domains,
        "images": len(maps),
        "pairs": [[domains[a], domains[b], round(rate, 4)] for (a, b), rate in zip(pairs, rates, strict=True)],
        "rate": round(float(np.mean(rates)), 4),
        "shuffled": round(float(np.mean(control)), 4),  # different images at the same positions
        "high": round(float(np.quantile(control, 0.95)), 4),
        "maps": [{**_encoded(image), "experts": view.same[image.name][image.domain].tolist()} for image in view.shown],
        "targets": [target.domain for target in views.targets],
    }


def part_experts(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Compute the experts of the patches of each part on training images; None without part locations."""
    view = _patch_view(views)
    if view is None or not view.part_maps:
        return None
    names = sorted({name for _, points in view.part_maps for name, _, _ in points})
    maps = [expert_map for expert_map, _ in view.part_maps]
    masks = [part_masks(points, len(expert_map), names) for expert_map, points in view.part_maps]
    counts = _counts(maps, masks, view.experts)
    occurs = counts.sum(axis=1) > 0
    rng = random_generator(seed, "parts")
    control = []
    for _ in range(REPEATS):  # experts of another image at the same positions: the information in the position alone
        other_maps = [maps[i] for i in rng.permutation(len(maps))]
        control.append(information(_counts(other_maps, masks, view.experts)[occurs]))
    share = counts[occurs] / counts[occurs].sum(axis=1, keepdims=True)
    return {
        "experts": view.experts,
        "images": len(maps),
        "parts": [name for name, has_patches in zip((*names, BACKGROUND), occurs, strict=True) if has_patches],
        "share": rounded(share),
        "bits": round(information(counts[occurs]), 5),
        "shuffled": round(float(np.mean(control)), 5),
        "high": round(float(np.quantile(control, 0.95)), 5),
        "targets": [target.domain for target in views.targets],
    }


def attention_maps(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Return the attention of the class token in the last layer per head; None without a vision transformer."""
    view = _patch_view(views)
    if view is None or not view.attention:
        return None
    maps = [{**_encoded(image), "heads": rounded(heads, 5)} for image, heads in view.attention]
    return {"maps": maps, "targets": [target.domain for target in views.targets]}


def _patch_view(views: Views) -> PatchView | None:
    from lab.analysis.patch_views import view_patches  # imports torch, which drawing does not need

    return views.collect(view_patches)


def _encoded(image: ImageView) -> dict[str, str]:
    return {"name": image.name, "domain": image.domain, "image": encode_image(image.pixels)}


def part_masks(points: Sequence[tuple[str, float, float]], side: int, names: Sequence[str]) -> np.ndarray:
    """Mark the patches nearest to each part, (c + 1, g, g); the last mask is the background."""
    centres = (np.arange(side) + 0.5) / side
    masks = np.zeros((len(names) + 1, side, side), dtype=bool)
    for name, x, y in points:
        distances = (centres[:, None] - y) ** 2 + (centres[None, :] - x) ** 2  # rows from top to bottom
        nearest = np.argsort(distances, axis=None, kind="stable")[:NEAREST]
        masks[list(names).index(name)].flat[nearest] = True
    masks[-1] = ~masks[:-1].any(axis=0)
    return masks


def _counts(maps: Sequence[np.ndarray], masks: Sequence[np.ndarray], experts: int) -> np.ndarray:
    """Count the patches of each part by expert, (c + 1, e)."""
    total = np.zeros((len(masks[0]), experts))
    for expert_map, mask in zip(maps, masks, strict=True):
        chosen = expert_map[..., None] == np.arange(experts)  # (g, g, e)
        total += np.einsum("cij,ije->ce", mask.astype(float), chosen.astype(float))
    return total


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw agreement across domains, experts of parts, and attention of the class token."""
    across = figure_section(
        groups, "expert-agreement", "Experts of one image in several domains",
        "Best expert per patch in the last layer with experts, one colour per expert. Files with the same name "
        "(CLASS/NAME) in all domains count as one image.",
        _draw_agreement, describe=_describe_agreement, colours=lambda run: expert_colours(run.result["experts"]),
    )  # fmt: skip
    by_part = figure_section(
        groups, "expert-parts", "Experts of object parts",
        "Share of the nine patches nearest to a part that is routed to each expert in the last layer with experts.",
        _draw_parts, describe=_describe_parts,
    )  # fmt: skip
    attention = figure_section(
        groups, "attention-map", "Attention of the class token",
        "Attention of the class token to each patch in the last layer, one map per head, from black (none) to light "
        "(maximum of the map). Methods show the same images for the same seed.",
        _draw_attention,
    )  # fmt: skip
    return across + by_part + attention


def _describe_agreement(run: RunResult) -> str:
    result = run.result
    return (
        f"For {result['images']} images in {len(result['domains'])} domains, {result['rate']:.0%} of the patches have "
        f"the same expert in two domains; {result['shuffled']:.0%} for different images at the same positions "
        f"(95 % quantile {result['high']:.0%})."
    )


def _describe_parts(run: RunResult) -> str:
    result = run.result
    return (
        f"Part and expert share {result['bits']:.4f} bits of information on {result['images']} training images; "
        f"{result['shuffled']:.4f} with the experts of other images at the same positions (95 % quantile "
        f"{result['high']:.4f})."
    )


def _draw_agreement(run: RunResult) -> list[Figure]:
    return [
        (f"{image['name']}, {image['domain']}", draw_map(image, run.result["experts"], f"expert-same-{run.id}-{i}"))
        for i, image in enumerate(run.result["maps"])
    ]


def _draw_parts(run: RunResult) -> list[Figure]:
    result = run.result
    experts, names = [str(e) for e in range(result["experts"])], result["parts"]
    figure = heatmap(result["share"], experts, names, "{y}, expert {x}: {z:.3f}", titles=("expert", ""))
    return [("Patches of each part by expert", figure.html(f"parts-{run.id}", height=120 + 28 * len(names)))]


def _draw_attention(run: RunResult) -> list[Figure]:
    figures, seen = [], Counter[str]()
    for i, image in enumerate(run.result["maps"]):
        seen[image["domain"]] += 1
        name = image["name"] or f"image {seen[image['domain']]}"
        for head, grid in enumerate(image["heads"]):
            html = draw_map({**image, "experts": grid}, 0, f"look-{run.id}-{i}-{head}")
            figures.append((f"{name}, {image['domain']}, head {head + 1}", html))
    return figures

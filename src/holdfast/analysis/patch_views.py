"""What a vision transformer does with the patches of images: the best expert of each, and where its class token looks.

n images, h heads, g patches a side, s pixels a side
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.tape import tape
from holdfast.data.batches import Examples
from holdfast.data.part_locations import PartLocations, shared_name
from holdfast.data.splits import Part
from holdfast.nn.backbones.vit import VisionTransformer
from holdfast.nn.experts.graft import expert_layers
from holdfast.nn.model import Model

MOST = 200  # images that are in several domains, and images with parts
PICTURED = 2  # such images, and images of each domain whose attention is pictured


@dataclass(frozen=True, eq=False)
class Seen:
    """One image."""

    name: str
    domain: str
    pixels: np.ndarray  # uint8 (s, s, 3)


@dataclass(frozen=True, eq=False)
class PatchView:
    """What was seen; expert maps hold the best expert of each patch in the last layer with experts."""

    experts: int  # 0: the network has none
    same: dict[str, dict[str, np.ndarray]]  # the name of an image -> domain -> (g, g) expert map
    shown: tuple[Seen, ...]  # some of these images, in every domain
    parts: tuple[tuple[np.ndarray, list[tuple[str, float, float]]], ...]  # expert maps (g, g) and parts in the image
    looks: tuple[tuple[Seen, np.ndarray], ...]  # attention of the class token to patches in the last layer, (h, g, g)


@torch.no_grad()
def view_patches(
    model: Model,
    examples: Examples,
    sources: Sequence[Part],
    targets: Sequence[Part],
    *,
    seed: int,
    names: Sequence[str] | None = None,
    points: PartLocations | None = None,
) -> PatchView | None:
    """In evaluation; `names` are those of all rows, DOMAIN/CLASS/FILE. None where it is no vision transformer."""
    net = model.backbone
    if not isinstance(net, VisionTransformer):
        return None
    layers = expert_layers(net)
    chance = np.random.default_rng(derive(seed, "patches"))
    domains: dict[str, np.ndarray] = {}
    for part in (*sources, *targets):
        domains[part.domain] = np.concatenate([domains.get(part.domain, part.rows[:0]), part.rows])
    looks = []
    for domain, rows in domains.items():
        drawn = np.sort(chance.choice(rows, min(PICTURED, len(rows)), replace=False))
        images = _images(examples, drawn)
        found = zip(drawn, _pixels(images), class_attention(net, images).cpu().numpy(), strict=True)
        looks += [(Seen(_named(names, row), domain, pixels), heads) for row, pixels, heads in found]
    if not layers or names is None:
        return PatchView(layers[0].settings.count if layers else 0, {}, (), (), tuple(looks))
    groups = _groups(domains, names)
    kept = [groups[i] for i in sorted(chance.permutation(len(groups))[:MOST])]
    flat = np.array([row for _, group in kept for row in group.values()], dtype=np.int64)
    maps = iter(_expert_maps(model, examples, flat))
    same = {name: {domain: next(maps) for domain in group} for name, group in kept}
    first = [(name, d, row) for name, group in kept[:PICTURED] for d, row in group.items()]
    pixels = _pixels(_images(examples, np.array([row for *_, row in first], dtype=np.int64))) if first else []
    shown = tuple(Seen(name, domain, image) for (name, domain, _), image in zip(first, pixels, strict=True))
    trained = np.concatenate([part.rows for part in sources])
    marked = np.array([row for row in trained if shared_name(names[int(row)]) in (points or {})], dtype=np.int64)
    marked = np.sort(chance.permutation(marked)[:MOST])
    told = [(points or {})[shared_name(names[int(row)])] for row in marked]
    parts = tuple(zip(_expert_maps(model, examples, marked), told, strict=True))
    return PatchView(layers[0].settings.count, same, shown, parts, tuple(looks))


def class_attention(net: VisionTransformer, images: Tensor) -> Tensor:
    """(n, h, g, g) how much the class token attends to each patch in the last layer, as the network computes it."""
    module, grid = net.module, round(net.patches**0.5)
    before = module.config._attn_implementation
    module.config._attn_implementation = "eager"  # a fused kernel keeps no weights
    try:
        weights = net.attentions(images)[-1]  # (n, h, t, t)
    finally:
        module.config._attn_implementation = before
    return weights[:, :, 0, -net.patches :].float().unflatten(-1, (grid, grid))


def _expert_maps(model: Model, examples: Examples, rows: np.ndarray) -> list[np.ndarray]:
    """(g, g) for each row."""
    assert isinstance(model.backbone, VisionTransformer)
    patches = model.backbone.patches
    if not len(rows):
        return []

    def best(x: Inputs) -> Tensor:
        with tape() as side:
            model.encode(x)
        return side["experts/chosen"][-1][:, -patches:, 0].float()

    grid = round(patches**0.5)
    found = examples.map(best, rows, prediction_batch=model.prediction_batch).numpy()
    return list(found.astype(np.int64).reshape(-1, grid, grid))


def _groups(domains: dict[str, np.ndarray], names: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Images that every domain has, by name: domain -> row."""
    by_name: dict[str, dict[str, int]] = {}
    for domain, rows in domains.items():
        for row in rows:
            if name := shared_name(names[int(row)]):  # those of WILDS name no class
                by_name.setdefault(name, {})[domain] = int(row)
    if len(domains) < 2:
        return []
    return [(name, group) for name, group in sorted(by_name.items()) if len(group) == len(domains)]


def _images(examples: Examples, rows: np.ndarray) -> Tensor:
    images = examples.inputs(torch.from_numpy(rows))
    assert isinstance(images, Tensor)
    return images


def _pixels(images: Tensor) -> list[np.ndarray]:
    light = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    return list(light.permute(0, 2, 3, 1).cpu().numpy())


def _named(names: Sequence[str] | None, row: int) -> str:
    return "" if names is None else shared_name(names[int(row)])

"""Collect what a vision transformer does with image patches.

Shapes: n images, h heads, g patches per side, s pixels per side, t tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from holdfast.analysis import random_generator
from holdfast.analysis.views import Subject
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.experts.graft import expert_layers
from lab.analysis.expert_views import expert_maps, load_images, pixels
from lab.analysis.part_locations import read_part_locations, shared_name

MAX_IMAGES = 200  # images that occur in several domains, and images with parts
SHOWN = 2  # of these images, and images per domain whose attention is shown


@dataclass(frozen=True, eq=False)
class ImageView:
    """One image."""

    name: str
    domain: str
    pixels: np.ndarray  # uint8 (s, s, 3)


@dataclass(frozen=True, eq=False)
class PatchView:
    """Images and their patches; an expert map holds the best expert per patch in the last layer with experts."""

    experts: int  # 0 without experts
    same: dict[str, dict[str, np.ndarray]]  # name of an image -> domain -> expert map (g, g)
    shown: tuple[ImageView, ...]  # some of these images, in every domain
    part_maps: tuple[tuple[np.ndarray, list[tuple[str, float, float]]], ...]  # expert maps (g, g), parts of the image
    attention: tuple[tuple[ImageView, np.ndarray], ...]  # of the class token in the last layer, (h, g, g)


def view_patches(subject: Subject) -> PatchView | None:
    """Collect patches; None for other networks than vision transformers.

    The names of rows are DOMAIN/CLASS/FILE.
    """
    model, examples, net = subject.model, subject.examples, subject.model.backbone
    if not isinstance(net, VisionTransformer):
        return None
    dataset, names = subject.dataset, None if subject.dataset is None else subject.dataset.ids
    layers = expert_layers(net)
    experts = layers[0].settings.count if layers else 0
    rng = random_generator(subject.seed, "patches")
    domains: dict[str, np.ndarray] = {}
    for part in (*subject.sources, *subject.targets):
        domains[part.domain] = np.concatenate([domains.get(part.domain, part.rows[:0]), part.rows])
    attention: list[tuple[ImageView, np.ndarray]] = []
    for domain, rows in domains.items():
        drawn = np.sort(rng.choice(rows, min(SHOWN, len(rows)), replace=False))
        images = load_images(examples, drawn)
        heads = class_attention(net, images).cpu().numpy()
        titles = ["" if names is None else shared_name(names[int(row)]) for row in drawn]
        views = [ImageView(title, domain, image) for title, image in zip(titles, pixels(images), strict=True)]
        attention += zip(views, heads, strict=True)
    if not experts or dataset is None or names is None:
        return PatchView(experts, {}, (), (), tuple(attention))
    groups = _images_in_all_domains(domains, names)
    groups = [groups[i] for i in sorted(rng.permutation(len(groups))[:MAX_IMAGES])]
    flat = np.array([row for _, group in groups for row in group.values()], dtype=np.int64)
    maps = iter(expert_maps(model, examples, flat))
    same = {name: {domain: next(maps) for domain in group} for name, group in groups}
    first = [(name, domain, row) for name, group in groups[:SHOWN] for domain, row in group.items()]
    shown_rows = np.array([row for *_, row in first], dtype=np.int64)
    images = pixels(load_images(examples, shown_rows)) if first else []
    shown = tuple(ImageView(name, domain, image) for (name, domain, _), image in zip(first, images, strict=True))
    trained, points = np.concatenate([part.rows for part in subject.sources]), read_part_locations(dataset)
    marked = np.array([row for row in trained if shared_name(names[int(row)]) in points], dtype=np.int64)
    marked = np.sort(rng.permutation(marked)[:MAX_IMAGES])
    locations = [points[shared_name(names[int(row)])] for row in marked]
    part_maps = tuple(zip(expert_maps(model, examples, marked), locations, strict=True))
    return PatchView(experts, same, shown, part_maps, tuple(attention))


def class_attention(net: VisionTransformer, images: Tensor) -> Tensor:
    """Return the attention of the class token to each patch in the last layer, (n, h, g, g)."""
    config, grid = net.module.config, round(net.patches**0.5)
    implementation = config._attn_implementation
    config._attn_implementation = "eager"  # fused kernels do not return weights
    try:
        weights = net.attentions(images)[-1]  # (n, h, t, t)
    finally:
        config._attn_implementation = implementation
    return weights[:, :, 0, -net.patches :].float().unflatten(-1, (grid, grid))


def _images_in_all_domains(domains: dict[str, np.ndarray], names: Sequence[str]) -> list[tuple[str, dict[str, int]]]:
    """Return the images that every domain has, as name and domain -> row."""
    by_name: dict[str, dict[str, int]] = {}
    for domain, rows in domains.items():
        for row in rows:
            if name := shared_name(names[int(row)]):  # empty without a class, as in WILDS
                by_name.setdefault(name, {})[domain] = int(row)
    if len(domains) < 2:
        return []
    return [(name, group) for name, group in sorted(by_name.items()) if len(group) == len(domains)]

"""Collect the routing of expert layers, and what a vision transformer does with image patches.

Shapes: b batch, n rows or images, l layers with experts, e experts, t tokens, k chosen experts, h heads, g patches per
side, s pixels per side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.core.seeds import derive
from holdfast.core.tape import Tape, tape
from holdfast.data.batches import Examples
from holdfast.data.part_locations import PartLocations, shared_name
from holdfast.data.splits import Part
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.experts.graft import expert_layers
from holdfast.nn.model import Model

MAPS = 2  # images per domain whose patches are mapped
MAX_IMAGES = 200  # images that occur in several domains, and images with parts
SHOWN = 2  # of these images, and images per domain whose attention is shown


@dataclass(frozen=True, eq=False)
class RoutingView:
    """Routing per row, without padding tokens."""

    blocks: tuple[int, ...]  # layers of the transformer that have experts
    first: np.ndarray  # (n, l, e) tokens whose best expert it is
    load: np.ndarray  # (n, l, e) tokens routed to it by any of their choices
    importance: np.ndarray  # (n, l, e) sum of the routing probabilities over tokens
    entropy: np.ndarray  # (n, l) entropy of these probabilities in nats, mean over tokens
    dropped: np.ndarray | None = None  # (n, l) share of token-expert pairs of the batch beyond the capacity
    maps: tuple[tuple[np.ndarray, np.ndarray], ...] = ()  # uint8 (s, s, 3) and the best expert per patch (g, g)


@torch.no_grad()
def view_routing(model: Model, examples: Examples, rows: np.ndarray) -> RoutingView | None:
    """Collect the routing of these rows in evaluation mode; None if the network has no experts."""
    layers = expert_layers(model)
    if not layers or not isinstance(model.backbone, Backbone):
        return None
    count = layers[0].settings.count

    def summarise(x: Inputs) -> Tensor:
        with tape() as recorded:
            model.encode(x)
        return torch.stack([_summarise_layer(recorded, i, count) for i in range(len(layers))], dim=1).flatten(1)

    flat = examples.map(summarise, rows, prediction_batch=model.prediction_batch).numpy()
    values = flat.reshape(len(rows), len(layers), 3 * count + 2)
    has_capacity = any(layer.settings.eval_capacity for layer in layers)
    maps = ()
    if isinstance(model.backbone, VisionTransformer):
        images = _pixels(_images(examples, rows[:MAPS]))
        maps = tuple(zip(images, _expert_maps(model, examples, rows[:MAPS]), strict=True))
    return RoutingView(
        tuple(i for i, layer in enumerate(model.backbone.stack()) if expert_layers(layer)),
        *np.split(values[..., :-2], 3, axis=2),  # first, load, importance
        entropy=values[..., -2],
        dropped=values[..., -1] if has_capacity else None,
        maps=maps,
    )


def _summarise_layer(recorded: Tape, layer: int, count: int) -> Tensor:
    """Return (b, 3 e + 2): counts of best, counts of chosen, sums of probabilities, mean entropy, share dropped."""
    chosen, scores = recorded["experts/chosen"][layer], recorded["experts/scores"][layer]  # (b, t, k), (b, t, e)
    no_padding = torch.ones(chosen.shape[:2], device=chosen.device)
    real = (recorded["experts/real"][layer] if recorded["experts/real"] else no_padding).float()  # (b, t)
    probabilities = scores.softmax(dim=-1)
    hits = torch.nn.functional.one_hot(chosen, count).float() * real[..., None, None]  # (b, t, k, e)
    entropy = (torch.special.entr(probabilities).sum(dim=-1) * real).sum(dim=1) / real.sum(dim=1)
    shares = recorded["share/experts/dropped"]
    dropped = shares[layer] if shares else torch.zeros_like(entropy[0])
    importance, dropped = (probabilities * real[..., None]).sum(1), dropped.to(entropy).expand(len(entropy), 1)
    return torch.cat([hits[:, :, 0].sum(1), hits.sum((1, 2)), importance, entropy[:, None], dropped], dim=1)


def _images(examples: Examples, rows: np.ndarray) -> Tensor:
    images = examples.inputs(torch.from_numpy(rows))
    assert isinstance(images, Tensor)
    return images


def _pixels(images: Tensor) -> list[np.ndarray]:
    values = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    return list(values.permute(0, 2, 3, 1).cpu().numpy())


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


@torch.no_grad()
def view_patches(
    model: Model, examples: Examples, sources: Sequence[Part], targets: Sequence[Part], *, seed: int,
    names: Sequence[str] | None = None, points: PartLocations | None = None,
) -> PatchView | None:  # fmt: skip
    """Collect patches in evaluation mode; None for other networks than vision transformers.

    `names` are the names of all rows, DOMAIN/CLASS/FILE; `points` are the locations of parts by CLASS/NAME.
    """
    net = model.backbone
    if not isinstance(net, VisionTransformer):
        return None
    layers = expert_layers(net)
    experts = layers[0].settings.count if layers else 0
    rng = np.random.default_rng(derive(seed, "patches"))
    domains: dict[str, np.ndarray] = {}
    for part in (*sources, *targets):
        domains[part.domain] = np.concatenate([domains.get(part.domain, part.rows[:0]), part.rows])
    attention: list[tuple[ImageView, np.ndarray]] = []
    for domain, rows in domains.items():
        drawn = np.sort(rng.choice(rows, min(SHOWN, len(rows)), replace=False))
        images = _images(examples, drawn)
        heads = class_attention(net, images).cpu().numpy()
        titles = ["" if names is None else shared_name(names[int(row)]) for row in drawn]
        views = [ImageView(title, domain, pixels) for title, pixels in zip(titles, _pixels(images), strict=True)]
        attention += zip(views, heads, strict=True)
    if not experts or names is None:
        return PatchView(experts, {}, (), (), tuple(attention))
    groups = _images_in_all_domains(domains, names)
    groups = [groups[i] for i in sorted(rng.permutation(len(groups))[:MAX_IMAGES])]
    flat = np.array([row for _, group in groups for row in group.values()], dtype=np.int64)
    maps = iter(_expert_maps(model, examples, flat))
    same = {name: {domain: next(maps) for domain in group} for name, group in groups}
    first = [(name, domain, row) for name, group in groups[:SHOWN] for domain, row in group.items()]
    pixels = _pixels(_images(examples, np.array([row for *_, row in first], dtype=np.int64))) if first else []
    shown = tuple(ImageView(name, domain, image) for (name, domain, _), image in zip(first, pixels, strict=True))
    trained, points = np.concatenate([part.rows for part in sources]), points or {}
    marked = np.array([row for row in trained if shared_name(names[int(row)]) in points], dtype=np.int64)
    marked = np.sort(rng.permutation(marked)[:MAX_IMAGES])
    locations = [points[shared_name(names[int(row)])] for row in marked]
    part_maps = tuple(zip(_expert_maps(model, examples, marked), locations, strict=True))
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


def _expert_maps(model: Model, examples: Examples, rows: np.ndarray) -> list[np.ndarray]:
    """Return the best expert per patch in the last layer with experts, (g, g) per row."""
    assert isinstance(model.backbone, VisionTransformer)
    patches = model.backbone.patches
    if not len(rows):
        return []

    def best_experts(x: Inputs) -> Tensor:
        with tape() as recorded:
            model.encode(x)
        return recorded["experts/chosen"][-1][:, -patches:, 0].float()

    grid = round(patches**0.5)
    maps = examples.map(best_experts, rows, prediction_batch=model.prediction_batch).numpy()
    return list(maps.astype(np.int64).reshape(-1, grid, grid))


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

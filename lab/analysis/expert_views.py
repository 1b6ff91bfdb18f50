"""Collect the routing of expert layers.

Shapes: b batch, n rows, l layers with experts, e experts, t tokens, k chosen experts, g patches per side, s pixels per
side.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.analysis.views import Subject
from holdfast.core.inputs import Inputs
from holdfast.core.tape import Tape, tape
from holdfast.data.batches import Examples
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.experts.graft import expert_layers
from holdfast.nn.model import Model

MAPS = 2  # images per domain whose patches are mapped


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


def view_experts(subject: Subject) -> dict[str, dict[str, RoutingView]]:
    """Collect the routing per side and domain; empty without experts."""
    return subject.by_domain(view_routing)


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
        images = pixels(load_images(examples, rows[:MAPS]))
        maps = tuple(zip(images, expert_maps(model, examples, rows[:MAPS]), strict=True))
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


def load_images(examples: Examples, rows: np.ndarray) -> Tensor:
    """Return the images of these rows as the network takes them."""
    images = examples.inputs(torch.from_numpy(rows))
    assert isinstance(images, Tensor)
    return images


def pixels(images: Tensor) -> list[np.ndarray]:
    """Return images as uint8 arrays (s, s, 3)."""
    values = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    return list(values.permute(0, 2, 3, 1).cpu().numpy())


def expert_maps(model: Model, examples: Examples, rows: np.ndarray) -> list[np.ndarray]:
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

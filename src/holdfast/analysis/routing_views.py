"""Where the tokens of some rows go in a network with experts: counts by row and layer, and maps of a few images.

n rows, l layers with experts, e experts, t tokens, k chosen, g patches a side, s pixels a side
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.inputs import Inputs
from holdfast.core.tape import Tape, tape
from holdfast.data.batches import Examples
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.graft import expert_layers
from holdfast.nn.model import Model

MAPS = 2  # images of a domain whose patches are mapped


@runtime_checkable
class Patched(Protocol):
    """A network whose last tokens are the patches of a square image."""

    patches: int


@dataclass(frozen=True, eq=False)
class Routed:
    """Counts are of tokens that are no padding."""

    blocks: tuple[int, ...]  # the layers of the transformer that have experts
    first: np.ndarray  # (n, l, e) tokens whose best expert it is
    load: np.ndarray  # (n, l, e) tokens that go there, by any of their choices
    importance: np.ndarray  # (n, l, e) softmax of the scores, added up over tokens
    entropy: np.ndarray  # (n, l) of that softmax, in nats, the mean over tokens
    dropped: np.ndarray | None = None  # (n, l) share of the pairs of its batch that found no room; None: all have some
    maps: tuple[tuple[np.ndarray, np.ndarray], ...] = ()  # uint8 (s, s, 3), and the best expert of each patch (g, g)


@torch.no_grad()
def view_routing(model: Model, examples: Examples, rows: np.ndarray) -> Routed | None:
    """What the routers say of these rows, in evaluation; None where the network has no experts."""
    layers = expert_layers(model)
    if not layers or not isinstance(model.backbone, Backbone):
        return None
    count = layers[0].settings.count

    def listen(x: Inputs) -> Tensor:
        with tape() as side:
            model.encode(x)
        return torch.stack([_of_layer(side, i, count) for i in range(len(layers))], dim=1).flatten(1)

    found = (
        examples.map(listen, rows, prediction_batch=model.prediction_batch)
        .numpy()
        .reshape(len(rows), len(layers), 3 * count + 2)
    )
    first, load, importance, (entropy, dropped) = (*np.split(found[..., :-2], 3, axis=2), np.moveaxis(found, 2, 0)[-2:])
    blocks = tuple(i for i, layer in enumerate(model.backbone.stack()) if expert_layers(layer))
    room = any(layer.settings.eval_capacity for layer in layers)
    maps = _maps(model, examples, rows[:MAPS])
    return Routed(blocks, first, load, importance, entropy, dropped if room else None, maps)


def _of_layer(side: Tape, layer: int, count: int) -> Tensor:
    """(b, 3 e + 2) counts of best, counts of chosen, sums of probabilities, mean entropy, and what was dropped."""
    chosen, scores = side["experts/chosen"][layer], side["experts/scores"][layer]  # (b, t, k), (b, t, e)
    real = side["experts/real"][layer] if side["experts/real"] else torch.ones(chosen.shape[:2], device=chosen.device)
    real, chance = real.float(), scores.softmax(dim=-1)
    hits = torch.nn.functional.one_hot(chosen, count).float() * real[..., None, None]  # (b, t, k, e)
    entropy = (torch.special.entr(chance).sum(dim=-1) * real).sum(dim=1) / real.sum(dim=1)
    dropped = side["share/experts/dropped"][layer] if side["share/experts/dropped"] else torch.zeros_like(entropy[0])
    parts = (hits[:, :, 0].sum(1), hits.sum((1, 2)), (chance * real[..., None]).sum(1), entropy[:, None])
    return torch.cat([*parts, dropped.to(entropy).expand(len(entropy), 1)], dim=1)


def _maps(model: Model, examples: Examples, rows: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Images and the best expert of each patch in the last layer of experts."""
    if not isinstance(model.backbone, Patched):
        return ()
    images = examples.inputs(torch.from_numpy(rows))
    assert isinstance(images, Tensor)
    with tape() as side:
        model.encode(images)
    grid = round(model.backbone.patches**0.5)
    best = side["experts/chosen"][-1][:, -model.backbone.patches :, 0].reshape(-1, grid, grid).cpu().numpy()
    pixels = images if images.dtype == torch.uint8 else (images * 255).round().to(torch.uint8)
    return tuple(zip(pixels.permute(0, 2, 3, 1).cpu().numpy(), best, strict=True))

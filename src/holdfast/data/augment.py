"""Chance changes to training images, batched: DomainBed's (Gulrajani and Lopez-Paz, 2020), crops and shifts alone.

b images, h height, w width; all pure functions of images (b, 3, h, w) in [0, 1] and one number per image
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.core import inputs
from holdfast.core.inputs import Graphs, select_nodes

_GREY = (0.299, 0.587, 0.114)
_TRIES = 10


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop, flip, jitter and grey: uint8 or float in, float32 in [0, 1] out, drawn from a CPU generator.

    Unlike DomainBed's, crops are of images that were resized to the square before, and a batch shares the order of its
    changes of colour.
    """
    x = _light(images)
    b, device = len(x), x.device

    def draw(low: float, high: float) -> Tensor:
        return inputs.to(torch.empty(b).uniform_(low, high, generator=generator), device)

    x = resized_crop(x, inputs.to(crop_boxes(b, x.shape[-2] / x.shape[-1], generator), device))
    x = flip(x, draw(0, 1) < 0.5)
    x = jitter(
        x,
        torch.randperm(4, generator=generator).tolist(),
        brightness=draw(0.7, 1.3),
        contrast=draw(0.7, 1.3),
        saturation=draw(0.7, 1.3),
        hue=draw(-0.3, 0.3),
    )
    return grayscale(x, draw(0, 1) < 0.1)


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """A part of 8 to 100 % of the area blown up, and a flip: how networks are trained and tuned on ImageNet."""
    x = _light(images)
    boxes = crop_boxes(len(x), x.shape[-2] / x.shape[-1], generator, scale=(0.08, 1.0))
    return _halved(resized_crop(x, inputs.to(boxes, x.device)), generator)


def shift_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shifts by whole pixels, up to an eighth of a side, with black around, and a flip: how CIFAR is trained on."""
    x = _light(images)
    (b, _, h, w), most = x.shape, x.shape[-1] // 8
    down, right = inputs.to(torch.randint(2 * most + 1, (2, b), generator=generator), x.device)
    wide = F.pad(x, (most, most, most, most))
    rows = down[:, None] + torch.arange(h, device=x.device)  # (b, h)
    columns = right[:, None] + torch.arange(w, device=x.device)
    each = torch.arange(b, device=x.device)[:, None, None]
    moved = wide.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]  # (b, h, w, 3)
    return _halved(moved.permute(0, 3, 1, 2).contiguous(), generator)


def _light(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _halved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Half of them flipped, by chance."""
    return flip(x, inputs.to(torch.rand(len(x), generator=generator) < 0.5, x.device))


def crop_boxes(
    count: int,
    tall: float,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = (0.7, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """(b, 4) top, left, height, width as shares of an image that is `tall` times as high as wide.

    The first of ten draws that fits is taken, the whole image where none does.
    """
    area = torch.empty(count, _TRIES).uniform_(*scale, generator=generator)
    aspect = torch.empty(count, _TRIES).uniform_(*map(math.log, ratio), generator=generator).exp()
    wide, high = (area * aspect * tall).sqrt(), (area / aspect / tall).sqrt()  # (b, tries)
    fits = (wide <= 1) & (high <= 1)
    first = fits.int().argmax(1, keepdim=True)
    fits = fits.any(1)
    wide = torch.where(fits, wide.gather(1, first)[:, 0], 1.0)
    high = torch.where(fits, high.gather(1, first)[:, 0], 1.0)
    top, left = torch.rand(2, count, generator=generator) * torch.stack([1 - high, 1 - wide])
    return torch.stack([top, left, high, wide], dim=1)


def resized_crop(x: Tensor, boxes: Tensor) -> Tensor:
    """The box (b, 4) of each image, blown up to the image's own size."""
    top, left, high, wide = boxes.to(x.dtype).unbind(1)
    zero = torch.zeros_like(top)
    # grid_sample counts from -1 to 1 across the image
    across = torch.stack([wide, zero, 2 * left + wide - 1], dim=1)
    down = torch.stack([zero, high, 2 * top + high - 1], dim=1)
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def flip(x: Tensor, which: Tensor) -> Tensor:
    """Mirror left and right where `which` (b,) is true."""
    return torch.where(_each(which), x.flip(-1), x)


def grayscale(x: Tensor, which: Tensor) -> Tensor:
    """Take the colour away where `which` (b,) is true."""
    return torch.where(_each(which), _luma(x).expand_as(x), x)


def jitter(
    x: Tensor,
    order: Sequence[int] = range(4),
    /,
    *,
    brightness: Tensor,
    contrast: Tensor,
    saturation: Tensor,
    hue: Tensor,
) -> Tensor:
    """Change the colours, the four of them in this order; factors of 1 and a hue shift of 0 change nothing."""
    changes = (
        lambda x: blend(x, torch.zeros_like(x), brightness),
        lambda x: blend(x, _luma(x).mean((-3, -2, -1), keepdim=True), contrast),
        lambda x: blend(x, _luma(x), saturation),
        lambda x: adjust_hue(x, hue),
    )
    for which in order:
        x = changes[which](x)
    return x


def blend(x: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """share * x + (1 - share) * other, kept within [0, 1]."""
    share = _each(share)
    return (share * x + (1 - share) * other).clamp(0, 1)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` (b,) of a full circle."""
    hue, saturation, value = to_hsv(x).unbind(1)
    return to_rgb(torch.stack([(hue + shift[:, None, None]) % 1, saturation, value], dim=1))


def to_hsv(x: Tensor) -> Tensor:
    """RGB to hue, saturation and value, each in [0, 1]."""
    value, top = x.max(1)  # (b, h, w)
    spread = value - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = torch.where(spread > 0, spread, 1.0)
    sides = torch.stack([(green - blue) / safe, (blue - red) / safe + 2, (red - green) / safe + 4])
    hue = sides.gather(0, top[None])[0] / 6 % 1
    return torch.stack([hue, spread / torch.where(value > 0, value, 1.0), value], dim=1)


def to_rgb(x: Tensor) -> Tensor:
    """Hue, saturation and value back to RGB: v - v s max(0, min(k, 4 - k, 1)), k = (n + 6 h) mod 6."""
    hue, saturation, value = x.unbind(1)
    turn = _channels((5.0, 3.0, 1.0), x)
    k = (turn + hue[:, None] * 6) % 6  # (b, 3, h, w)
    dip = torch.minimum(torch.minimum(k, 4 - k), torch.ones_like(k)).clamp(min=0)
    return value[:, None] - (value * saturation)[:, None] * dip


def _luma(x: Tensor) -> Tensor:
    return (x * _channels(_GREY, x)).sum(1, keepdim=True)  # (b, 1, h, w)


def _channels(values: tuple[float, float, float], like: Tensor) -> Tensor:
    """(3, 1, 1) a number for each channel, sent without waiting for what the device is doing."""
    return inputs.to(torch.tensor(values, dtype=like.dtype), like.device)[:, None, None]


def _each(values: Tensor) -> Tensor:
    return values[:, None, None, None]


SHARE = 0.2  # of the edges or nodes that are left out


def drop_edge(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Every edge is left out with this chance, both ways at once (Rong et al., 2020)."""
    low, high = x.edges.amin(dim=0), x.edges.amax(dim=0)
    _, pair = torch.unique(low * len(x.nodes) + high, return_inverse=True)  # the two ways of an edge share a draw
    count = int(pair.max()) + 1 if len(pair) else 0
    stays = (torch.rand(count, generator=generator) >= share).to(pair.device)[pair]
    return Graphs(x.nodes, x.edges[:, stays], x.owner, x.count, None if x.weights is None else x.weights[stays])


def drop_node(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Every node is left out with this chance, its edges with it; each graph keeps at least one."""
    draw = torch.rand(len(x.nodes), generator=generator).to(x.owner.device)
    best = torch.zeros(x.count, device=draw.device).scatter_reduce(0, x.owner, draw, "amax")
    return select_nodes(x, (draw >= share) | (draw == best[x.owner]))


def subgraph(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """A connected part of each graph with all but this share of its nodes, grown around a random one.

    A graph that falls into pieces keeps no more than the piece it began in.
    """
    sizes = torch.bincount(x.owner, minlength=x.count)
    wanted = ((1 - share) * sizes).ceil().long()  # (b,)
    draw = torch.rand(len(x.nodes), generator=generator).to(x.owner.device)
    best = torch.zeros(x.count, device=draw.device).scatter_reduce(0, x.owner, draw, "amax")
    kept = draw == best[x.owner]  # (v,) where each part begins
    while True:
        near = torch.zeros_like(kept)
        near[x.edges[1, kept[x.edges[0]]]] = True
        room = wanted - torch.bincount(x.owner[kept], minlength=x.count)
        added = near & ~kept & (_rank(draw, x.owner, near & ~kept) < room[x.owner])
        if not bool(added.any()):
            return select_nodes(x, kept)
        kept = kept | added


def _rank(draw: Tensor, owner: Tensor, among: Tensor) -> Tensor:
    """(v,) the place of each node among the chosen nodes of its graph, in the order of the draws."""
    order = torch.argsort(owner + torch.where(among, draw.clamp(max=0.999), 0.9995))
    first = torch.cumsum(torch.bincount(owner), 0) - torch.bincount(owner)
    rank = torch.empty_like(owner)
    rank[order] = torch.arange(len(owner), device=owner.device) - first[owner[order]]
    return rank

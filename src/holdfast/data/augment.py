"""Random augmentations of training images (b, 3, h, w) in [0, 1], with one number per image, and of graphs."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.accel.registry import kernels
from holdfast.core import inputs
from holdfast.core.inputs import Graphs, select_nodes

_GREY = (0.299, 0.587, 0.114)
_TRIES = 10


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop, flip, jitter and convert to grey as DomainBed does (Gulrajani and Lopez-Paz, 2020); float32 in [0, 1].

    Unlike DomainBed, crops are taken from images resized to a square, and a batch shares the order of its colour
    changes. Random numbers come from a CPU generator.
    """
    b = len(images)

    def draw(low: float, high: float) -> Tensor:
        return torch.empty(b).uniform_(low, high, generator=generator)

    boxes = crop_boxes(b, images.shape[-2] / images.shape[-1], generator)
    flipped = draw(0, 1) < 0.5
    order = torch.randperm(4, generator=generator)
    factors = [draw(0.7, 1.3) for _ in range(3)] + [draw(-0.3, 0.3)]
    numbers = torch.stack([flipped.float(), *factors, (draw(0, 1) < 0.1).float()], dim=1)  # (b, 6)
    packed = inputs.to(torch.cat([boxes, numbers, order.float().expand(b, 4)], dim=1), images.device)  # one copy
    module = kernels("augment", images) if b else None
    if module is not None:
        return module.changed(images, packed)
    x = flip(resized_crop(_to_float(images), packed[:, :4]), packed[:, 4] > 0)
    brightness, contrast, saturation, hue = packed[:, 5:9].unbind(1)
    x = jitter(x, order.tolist(), brightness=brightness, contrast=contrast, saturation=saturation, hue=hue)
    return grayscale(x, packed[:, 9] > 0)


def crop_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop 8 to 100 % of the area, resize, and flip half of the images, as in training on ImageNet."""
    x = _to_float(images)
    boxes = crop_boxes(len(x), x.shape[-2] / x.shape[-1], generator, scale=(0.08, 1.0))
    return _flip_half(resized_crop(x, inputs.to(boxes, x.device)), generator)


def shift_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift by up to an eighth of a side with black padding and flip half of the images, as in training on CIFAR."""
    x = _to_float(images)
    (b, _, h, w), most = x.shape, x.shape[-1] // 8
    down, right = inputs.to(torch.randint(2 * most + 1, (2, b), generator=generator), x.device)
    wide = F.pad(x, (most, most, most, most))
    rows = down[:, None] + torch.arange(h, device=x.device)  # (b, h)
    columns = right[:, None] + torch.arange(w, device=x.device)
    each = torch.arange(b, device=x.device)[:, None, None]
    moved = wide.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]  # (b, h, w, 3)
    return _flip_half(moved.permute(0, 3, 1, 2).contiguous(), generator)


def _to_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _flip_half(x: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image with probability 1/2."""
    return flip(x, inputs.to(torch.rand(len(x), generator=generator) < 0.5, x.device))


def crop_boxes(
    count: int, tall: float, generator: torch.Generator, *, scale: tuple[float, float] = (0.7, 1.0)
) -> Tensor:
    """Draw boxes (b, 4): top, left, height, width as fractions of an image with `tall` = height / width.

    The first of ten draws that fits is used, or the complete image if none fits.
    """
    area = torch.empty(count, _TRIES).uniform_(*scale, generator=generator).numpy()
    aspect = torch.empty(count, _TRIES).uniform_(*map(math.log, (3 / 4, 4 / 3)), generator=generator).numpy()
    aspect = np.exp(aspect)  # by numpy: on many cores torch would start threads, which wait for busy cores
    wide, high = np.sqrt(area * aspect * tall), np.sqrt(area / aspect / tall)  # (b, tries)
    fits = (wide <= 1) & (high <= 1)
    rows, first = np.arange(count), fits.argmax(1)
    wide, high = (np.where(fits.any(1), side[rows, first], 1).astype(np.float32) for side in (wide, high))
    top, left = torch.rand(2, count, generator=generator).numpy() * np.stack([1 - high, 1 - wide])
    return torch.from_numpy(np.stack([top, left, high, wide], axis=1))


def resized_crop(x: Tensor, boxes: Tensor) -> Tensor:
    """Crop the box (b, 4) of each image and resize it to the size of the image."""
    top, left, high, wide = boxes.to(x.dtype).unbind(1)
    zero = torch.zeros_like(top)
    # grid_sample counts from -1 to 1 across the image
    across = torch.stack([wide, zero, 2 * left + wide - 1], dim=1)
    down = torch.stack([zero, high, 2 * top + high - 1], dim=1)
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def flip(x: Tensor, which: Tensor) -> Tensor:
    """Mirror left and right where `which` (b,) is true."""
    return torch.where(which[:, None, None, None], x.flip(-1), x)


def grayscale(x: Tensor, which: Tensor) -> Tensor:
    """Convert to grey where `which` (b,) is true."""
    return torch.where(which[:, None, None, None], _luma(x).expand_as(x), x)


def jitter(
    x: Tensor, order: Sequence[int] = range(4), /, *,
    brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor,
) -> Tensor:  # fmt: skip
    """Apply the four colour changes in this order; factors of 1 and a hue shift of 0 change nothing."""
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
    """Return share * x + (1 - share) * other, clamped to [0, 1]."""
    share = share[:, None, None, None]
    return (share * x + (1 - share) * other).clamp(0, 1)


def adjust_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by `shift` (b,), a fraction of a full circle."""
    hue, saturation, value = to_hsv(x).unbind(1)
    return to_rgb(torch.stack([(hue + shift[:, None, None]) % 1, saturation, value], dim=1))


def to_hsv(x: Tensor) -> Tensor:
    """Convert RGB to hue, saturation and value in [0, 1]."""
    value, top = x.max(1)  # (b, h, w)
    spread = value - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = torch.where(spread > 0, spread, 1.0)
    sides = torch.stack([(green - blue) / safe, (blue - red) / safe + 2, (red - green) / safe + 4])
    hue = sides.gather(0, top[None])[0] / 6 % 1
    return torch.stack([hue, spread / torch.where(value > 0, value, 1.0), value], dim=1)


def to_rgb(x: Tensor) -> Tensor:
    """Convert hue, saturation and value to RGB: v - v s max(0, min(k, 4 - k, 1)), k = (n + 6 h) mod 6."""
    hue, saturation, value = x.unbind(1)
    k = (_channels((5.0, 3.0, 1.0), x) + hue[:, None] * 6) % 6  # (b, 3, h, w)
    dip = torch.minimum(torch.minimum(k, 4 - k), torch.ones_like(k)).clamp(min=0)
    return value[:, None] - (value * saturation)[:, None] * dip


def _luma(x: Tensor) -> Tensor:
    return (x * _channels(_GREY, x)).sum(1, keepdim=True)  # (b, 1, h, w)


def _channels(values: tuple[float, float, float], like: Tensor) -> Tensor:
    """Return one number per channel, (3, 1, 1), copied to the device without synchronisation."""
    return inputs.to(torch.tensor(values, dtype=like.dtype), like.device)[:, None, None]


SHARE = 0.2  # fraction of edges or nodes that are dropped


def drop_edge(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Drop each edge, in both directions, with this probability (Rong et al., 2020)."""
    low, high = x.edges.amin(dim=0), x.edges.amax(dim=0)
    _, pair = torch.unique(low * len(x.nodes) + high, return_inverse=True)  # both directions share a draw
    count = int(pair.max()) + 1 if len(pair) else 0
    stays = (torch.rand(count, generator=generator) >= share).to(pair.device)[pair]
    return Graphs(x.nodes, x.edges[:, stays], x.owner, x.count, None if x.weights is None else x.weights[stays])


def drop_node(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Drop each node with its edges with this probability; each graph retains at least one node."""
    draw = torch.rand(len(x.nodes), generator=generator).to(x.owner.device)
    best = torch.zeros(x.count, device=draw.device).scatter_reduce(0, x.owner, draw, "amax")
    return select_nodes(x, (draw >= share) | (draw == best[x.owner]))


def subgraph(x: Graphs, generator: torch.Generator, *, share: float = SHARE) -> Graphs:
    """Grow a connected subgraph around a random node until this fraction of the nodes is left out.

    The subgraph of a disconnected graph stays within the component of its first node.
    """
    sizes = torch.bincount(x.owner, minlength=x.count)
    wanted = ((1 - share) * sizes).ceil().long()  # (b,)
    draw = torch.rand(len(x.nodes), generator=generator).to(x.owner.device)
    best = torch.zeros(x.count, device=draw.device).scatter_reduce(0, x.owner, draw, "amax")
    selected = draw == best[x.owner]  # (v,) the first node of each subgraph
    while True:
        near = torch.zeros_like(selected)
        near[x.edges[1, selected[x.edges[0]]]] = True
        remaining = wanted - torch.bincount(x.owner[selected], minlength=x.count)
        added = near & ~selected & (_rank(draw, x.owner, near & ~selected) < remaining[x.owner])
        if not bool(added.any()):
            return select_nodes(x, selected)
        selected = selected | added


def _rank(draw: Tensor, owner: Tensor, among: Tensor) -> Tensor:
    """Return (v,) the rank of each node among the selected nodes of its graph, ordered by `draw`."""
    order = torch.argsort(owner + torch.where(among, draw.clamp(max=0.999), 0.9995))
    first = torch.cumsum(torch.bincount(owner), 0) - torch.bincount(owner)
    rank = torch.empty_like(owner)
    rank[order] = torch.arange(len(owner), device=owner.device) - first[owner[order]]
    return rank

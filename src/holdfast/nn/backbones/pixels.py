"""Images the same way for every image backbone: checked once when prepared, normalised inside the network.

n examples, b batch, s pixels a side
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.store import TensorStore

Colours = tuple[tuple[float, float, float], tuple[float, float, float]]  # mean and std of red, green, blue

HALF: Colours = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET: Colours = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LARGEST = 4_096  # of a side: 50 MB an image


class Normalise(nn.Module):
    """uint8 in 0..255 or float in [0, 1] to (x - mean) / std per colour."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        numbers = all(isinstance(one, int | float) for one in (*mean, *std))
        if not numbers or len(mean) != 3 or len(std) != 3 or not all(one > 0 for one in std):
            raise BadInput(f"mean and std of colours are 3 numbers each, std above 0, not {list(mean)} and {list(std)}")
        self.register_buffer("mean", torch.tensor(list(mean)).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x if x.is_floating_point() else x.to(self.mean.dtype) / 255
        return (scaled - self.mean) / self.std  # (b, 3, s, s)


def checked_side(size: int, setting: str = "encoder.size") -> int:
    """How many pixels a side of an image has, if that can be meant."""
    if not 1 <= size <= LARGEST:
        raise BadInput(f"{setting} is the pixels of a side, from 1 to {LARGEST:,}, not {size:,}")
    return size


def image_store(examples: Any, size: int) -> TensorStore:
    """Decoded images as they are, after a look at their shape and range."""
    if not isinstance(examples, Tensor) or examples.dim() != 4 or examples.shape[1:] != (3, size, size):
        shape = tuple(examples.shape) if isinstance(examples, Tensor) else type(examples).__name__
        raise BadInput(f"images must be a tensor (n, 3, {size}, {size}), not {shape}: resize them or set size")
    if examples.is_floating_point():
        # not (low and high) also catches NaN
        if len(examples) and not (float(examples.min()) >= 0 and float(examples.max()) <= 1):
            raise BadInput("images of floats must lie in [0, 1]: divide by 255 or give uint8")
    elif examples.dtype != torch.uint8:
        raise BadInput(f"images must be uint8 or float in [0, 1], not {examples.dtype}")
    return TensorStore(examples)


def image_preparation(size: int) -> str:
    """The fingerprint of `image_store`: only the size decides what is prepared."""
    return hashlib.sha256(f"image {size}".encode()).hexdigest()

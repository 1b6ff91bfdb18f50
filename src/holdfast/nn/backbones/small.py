"""Images the same way for every image backbone: checked once when prepared, normalised inside the network.

n examples, b batch, s pixels a side
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.core.store import TensorStore
from holdfast.nn.backbones.base import Backbone

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


def _vectors(examples: Any) -> Tensor:
    found = torch.as_tensor(examples)
    if found.dim() != 2 or found.shape[1] == 0:
        raise BadInput(f"vectors must be a table (n, d) with d of at least 1, not {tuple(found.shape)}")
    return found.float()


def _vector_store(examples: Any, width: int) -> TensorStore:
    found = _vectors(examples)
    if found.shape[1] != width:
        raise BadInput(f"these vectors have {found.shape[1]} columns, but the model was built for {width}")
    return TensorStore(found)


def _vector_preparation(width: int) -> str:
    return hashlib.sha256(f"vector {width}".encode()).hexdigest()


class Features(Backbone):
    """Vectors as they are; nothing to learn."""

    takes: ClassVar[str] = "vector"

    def __init__(self, *, inputs: int) -> None:
        super().__init__()
        self.width = inputs
        self.settings = {"inputs": inputs}

    @classmethod
    def build(cls, training: Callable[[], Any]) -> Self:
        return cls(inputs=_vectors(training()).shape[1])

    def prepare(self, examples: Any) -> TensorStore:
        return _vector_store(examples, self.width)

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        return x

    def stack(self) -> nn.ModuleList:
        raise BadInput(
            "vectors, and the kept features of a frozen encoder, have no layers to put a part into: "
            "let the encoder learn (--tune full or last:1), or place the part on the features"
        )

    def preparation_key(self) -> str:
        return _vector_preparation(self.width)


class MLP(Backbone):
    """Standardise by the training examples, then layers of Linear, ReLU, Dropout."""

    takes: ClassVar[str] = "vector"
    mean: Tensor  # (d,)
    std: Tensor  # (d,)

    def __init__(self, *, inputs: int, hidden: Sequence[int] = (256, 256), dropout: float = 0.0) -> None:
        super().__init__()
        if not hidden or min(hidden) < 1:
            raise BadInput(f"hidden needs one or more layer sizes of at least 1, not {list(hidden)}")
        self.width = hidden[-1]
        self.settings = {"inputs": inputs, "hidden": list(hidden), "dropout": dropout}
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        sizes = zip((inputs, *hidden), hidden, strict=False)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Dropout(dropout)) for i, o in sizes)

    @classmethod
    def build(cls, training: Callable[[], Any], *, hidden: Sequence[int] = (256, 256), dropout: float = 0.0) -> Self:
        examples = _vectors(training()).double()  # (n, d)
        if not len(examples) or not bool(examples.isfinite().all()):
            raise BadInput("the training vectors are empty or hold NaN or infinity: fill or drop those rows")
        made = cls(inputs=examples.shape[1], hidden=hidden, dropout=dropout)
        std = examples.std(0, correction=0)
        made.mean.copy_(examples.mean(0))
        made.std.copy_(torch.where(std > 1e-8, std, 1.0))  # a constant column stays at zero
        return made

    def prepare(self, examples: Any) -> TensorStore:
        return _vector_store(examples, len(self.mean))

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        out = (x - self.mean) / self.std  # (b, inputs)
        for layer in self.layers:
            out = layer(out)
        return out  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def preparation_key(self) -> str:
        return _vector_preparation(len(self.mean))


class PixelMLP(Backbone):
    """The pixels of a small image in one row through two layers, as IRM has it for coloured digits.

    Weights begin as Glorot's, biases at zero (Arjovsky et al., 2019).
    """

    takes: ClassVar[str] = "image"

    def __init__(self, *, size: int = 14, hidden: int = 256) -> None:
        super().__init__()
        if hidden < 1:
            raise BadInput(f"encoder.hidden must be at least 1, not {hidden}")
        self.width, self.size = hidden, checked_side(size)
        self.settings = {"size": size, "hidden": hidden}
        shapes = [(3 * size * size, hidden), (hidden, hidden)]
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in shapes)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                nn.init.zeros_(part.bias)

    @classmethod
    def build(cls, training: Callable[[], Any], *, size: int = 14, hidden: int = 256) -> Self:
        return cls(size=size, hidden=hidden)

    def prepare(self, examples: Any) -> TensorStore:
        return image_store(examples, self.settings["size"])

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        out = (x if x.is_floating_point() else x.float() / 255).flatten(1)  # (b, 3 s s)
        for layer in self.layers:
            out = layer(out)
        return out  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def preparation_key(self) -> str:
        return image_preparation(self.settings["size"])


class CNN(Backbone):
    """Four 3x3 convolutions with GroupNorm and ReLU, then the mean over all pixels."""

    takes: ClassVar[str] = "image"

    def __init__(self, *, size: int = 32) -> None:
        super().__init__()
        self.width, self.size = 128, checked_side(size)
        self.settings = {"size": size}
        self.normalise = Normalise(*HALF)
        shapes = [(3, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, stride, padding=1), nn.GroupNorm(8, o), nn.ReLU())
            for i, o, stride in shapes
        )

    @classmethod
    def build(cls, training: Callable[[], Any], *, size: int = 32) -> Self:
        return cls(size=size)

    def prepare(self, examples: Any) -> TensorStore:
        return image_store(examples, self.settings["size"])

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        out = self.normalise(x)
        for layer in self.layers:
            out = layer(out)
        return out.mean((2, 3))  # (b, 128)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def preparation_key(self) -> str:
        return image_preparation(self.settings["size"])

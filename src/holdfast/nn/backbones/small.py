"""Small encoders for vectors and images, and the input preparation shared by all image encoders.

Images are checked once when they are prepared and normalised inside the network.

Shapes: n examples, b batch, d width, s pixels per side.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.core.store import TensorStore
from holdfast.nn.backbones.base import Backbone, fingerprint

Colours = tuple[tuple[float, float, float], tuple[float, float, float]]  # mean and std of red, green, blue

HALF: Colours = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET: Colours = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
MAX_SIDE = 4_096  # pixels: 50 MB per image


class Dropout(nn.Dropout):
    """Dropout that draws 16 random bits per element on a CPU; torch draws 64, which is a third of a small network."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.device.type != "cpu" or input.dtype != torch.float32:
            return super().forward(input)
        count, scale = input.numel(), 1 / (1 - round(self.p * (1 << 16)) / (1 << 16))
        words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)  # pyright: ignore[reportArgumentType, reportCallIssue]
        bits = words.view(torch.int16)[:count].view(input.shape)  # uniform from -32768 to 32767
        return input * (bits >= round(self.p * (1 << 16)) - (1 << 15)).to(input.dtype).mul_(scale)


class VectorBackbone(Backbone):
    """Base of encoders for vectors (b, inputs)."""

    takes = "vector"
    settings: dict[str, Any]  # with the key `inputs`

    def prepare(self, examples: Any) -> TensorStore:
        vectors, inputs = _vectors(examples), self.settings["inputs"]
        if vectors.shape[1] != inputs:
            raise BadInput(f"the vectors have {vectors.shape[1]} columns, but the model was built for {inputs}")
        return TensorStore(vectors)

    def preparation_key(self) -> str:
        return fingerprint("vector", self.settings["inputs"])


def _vectors(examples: Any) -> Tensor:
    vectors = torch.as_tensor(examples)
    if vectors.dim() != 2 or vectors.shape[1] == 0:
        raise BadInput(f"vectors must have shape (n, d) with d of at least 1, got {tuple(vectors.shape)}")
    return vectors.float()


class Features(VectorBackbone):
    """Identity on vectors, without parameters."""

    def __init__(self, *, inputs: int) -> None:
        super().__init__()
        self.width = inputs
        self.settings = {"inputs": inputs}

    @classmethod
    def build(cls, training: Callable[[], Any]) -> Self:
        return cls(inputs=_vectors(training()).shape[1])

    def forward(self, x: Tensor) -> Tensor:
        return x

    def stack(self) -> nn.ModuleList:
        raise BadInput(
            "vectors, and cached features of a frozen encoder, have no stack of layers to insert a part into: "
            "train the encoder (--tune full or last:1), or apply the part to the features"
        )


class MLP(VectorBackbone):
    """Standardisation by the training examples, then layers of Linear, ReLU and Dropout."""

    mean: Tensor  # (inputs,)
    std: Tensor  # (inputs,)

    @checked_settings
    class Settings:
        hidden: Sequence[int] = setting((256, 256), least=1)
        dropout: float = 0.0

        def __post_init__(self) -> None:
            if not self.hidden:
                raise BadInput("`hidden` must be one or more layer sizes, got none")

    @keywords_of(Settings)
    def __init__(self, inputs: int, settings: Settings) -> None:
        super().__init__()
        hidden = list(settings.hidden)
        self.width = hidden[-1]
        self.settings = {"inputs": inputs, "hidden": hidden, "dropout": settings.dropout}
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        shapes = pairwise((inputs, *hidden))
        layers = [nn.Sequential(nn.Linear(i, o), nn.ReLU(), Dropout(settings.dropout)) for i, o in shapes]
        self.layers = nn.Sequential(*layers)

    @classmethod
    def build(cls, training: Callable[[], Any], **settings: Any) -> Self:
        examples = _vectors(training()).double()  # (n, inputs)
        if not len(examples) or not bool(examples.isfinite().all()):
            raise BadInput("the training vectors are empty or contain NaN or inf: fill or drop those rows")
        network = cls(examples.shape[1], **settings)
        std = examples.std(0, correction=0)
        network.mean.copy_(examples.mean(0))
        network.std.copy_(torch.where(std > 1e-8, std, 1.0))  # a constant column stays at zero
        return network

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x - self.mean) / self.std)  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


def check_side(size: int, setting: str = "encoder.size") -> int:
    """Return the number of pixels per side; raise if it is out of range."""
    if not 1 <= size <= MAX_SIDE:
        raise BadInput(f"{setting} must be from 1 to {MAX_SIDE:,} pixels per side, got {size:,}")
    return size


def side_setting(default: int | None) -> Any:
    """Declare a setting in pixels per side."""
    return setting(default, least=1, most=MAX_SIDE)


class ImageBackbone(Backbone):
    """Base of encoders for images (b, 3, s, s), uint8 or float in [0, 1]."""

    takes = "image"
    settings: dict[str, Any]  # with the key `size`

    def prepare(self, examples: Any) -> TensorStore:
        """Return decoded images unchanged after a check of their shape and range."""
        size = self.settings["size"]
        if not isinstance(examples, Tensor) or examples.dim() != 4 or examples.shape[1:] != (3, size, size):
            shape = tuple(examples.shape) if isinstance(examples, Tensor) else type(examples).__name__
            raise BadInput(f"images must be a tensor (n, 3, {size}, {size}), got {shape}: resize them or set size")
        if examples.is_floating_point():
            # not (low and high) also catches NaN
            if len(examples) and not (float(examples.min()) >= 0 and float(examples.max()) <= 1):
                raise BadInput("float images must be in [0, 1]: divide by 255 or use uint8")
        elif examples.dtype != torch.uint8:
            raise BadInput(f"images must be uint8 or float in [0, 1], got {examples.dtype}")
        return TensorStore(examples)

    def preparation_key(self) -> str:
        return fingerprint("image", self.settings["size"])

    def train(self, mode: bool = True) -> Self:
        """Also with `statistics=frozen`, with which batch norms use their stored statistics in training."""
        super().train(mode)
        for layer in self.modules() if self.settings.get("statistics") == "frozen" else ():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        return self


def unit_range(x: Tensor) -> Tensor:
    """Return images, uint8 in 0..255 or float in [0, 1], as float in [0, 1]."""
    return x if x.is_floating_point() else x.float() / 255


class Normalise(nn.Module):
    """(x - mean) / std per colour, for uint8 in 0..255 or float in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        numbers = all(isinstance(value, int | float) for value in (*mean, *std))
        if not numbers or len(mean) != 3 or len(std) != 3 or not all(value > 0 for value in std):
            raise BadInput(
                f"encoder.mean and encoder.std must be 3 numbers each, std above 0, got {list(mean)} and {list(std)}"
            )
        self.register_buffer("mean", torch.tensor(list(mean)).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x if x.is_floating_point() else x.to(self.mean.dtype) / 255
        return (scaled - self.mean) / self.std  # (b, 3, s, s)


class Pixels(ImageBackbone):
    """Flattened pixels in [0, 1], without parameters."""

    @checked_settings
    class Settings:
        size: int = side_setting(16)

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = asdict(settings)
        self.size = size = self.settings["size"]
        self.width = 3 * size**2

    def forward(self, x: Tensor) -> Tensor:
        return unit_range(x).flatten(1)  # (b, d)


class PixelMLP(ImageBackbone):
    """Two layers on the flattened pixels of a small image, as IRM uses for coloured digits.

    Weights have the Glorot initialisation, biases start at zero (Arjovsky et al., 2019).
    """

    @checked_settings
    class Settings:
        size: int = side_setting(14)
        hidden: int = setting(256, least=1)

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.width, self.size, self.settings = settings.hidden, settings.size, asdict(settings)
        shapes = [(3 * settings.size**2, settings.hidden), (settings.hidden, settings.hidden)]
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in shapes))
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(unit_range(x).flatten(1))  # (b, d)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


class CNN(ImageBackbone):
    """Four 3x3 convolutions with GroupNorm and ReLU, then the mean over all pixels."""

    @checked_settings
    class Settings:
        size: int = side_setting(32)

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.width = asdict(settings), 128
        self.size = self.settings["size"]
        self.normalise = Normalise(*HALF)
        shapes = [(3, 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)]
        layers = [
            nn.Sequential(nn.Conv2d(i, o, 3, stride, padding=1), nn.GroupNorm(8, o), nn.ReLU())
            for i, o, stride in shapes
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.normalise(x)).mean((2, 3))  # (b, 128)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

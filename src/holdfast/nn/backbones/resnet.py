"""ResNet-18 (He et al., 2016), with the parameter names that checkpoints of it usually have.

b batch, s pixels a side
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs
from holdfast.core.store import TensorStore
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.pixels import IMAGENET, Normalise, image_preparation, image_store

SIZES = {"small": 32, "large": 224}  # stem -> pixels a side where none are asked for


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


def _stage(inputs: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, width, stride), BasicBlock(width, width, 1))


class ResNet(Backbone):
    """ResNet-18 to its 512 pooled features; the small stem keeps the resolution of 32-pixel images."""

    takes: ClassVar[str] = "image"

    def __init__(self, *, stem: str = "small", size: int | None = None, zero_init: bool = False) -> None:
        super().__init__()
        if stem not in SIZES:
            raise unknown("stem", stem, SIZES)
        self.width, self.size = 512, size or SIZES[stem]
        self.settings = {"stem": stem, "size": self.size, "zero_init": zero_init}
        self.normalise = Normalise(*IMAGENET)
        if stem == "small":
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, 1)
        self.layer2 = _stage(64, 128, 2)
        self.layer3 = _stage(128, 256, 2)
        self.layer4 = _stage(256, 512, 2)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(part, BasicBlock) and zero_init:
                nn.init.zeros_(part.bn2.weight)

    @classmethod
    def build(
        cls,
        training: Callable[[], Any],
        *,
        stem: str = "small",
        size: int | None = None,
        zero_init: bool = False,
        weights: str | None = None,
    ) -> Self:
        """Make one; `weights` is a safetensors file with the usual names, its classifier is left out."""
        made = cls(stem=stem, size=size, zero_init=zero_init)
        if weights is not None:
            _load(made, Path(weights).expanduser())
        return made

    def prepare(self, examples: Any) -> TensorStore:
        return image_store(examples, self.settings["size"])

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tensor)
        out = F.relu(self.bn1(self.conv1(self.normalise(x))))
        if self.settings["stem"] == "large":
            out = F.max_pool2d(out, 3, 2, padding=1)
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return out.mean((2, 3))  # (b, 512)

    def blocks(self) -> list[nn.Module]:
        stem = nn.ModuleList([self.conv1, self.bn1])
        return [stem, self.layer1, self.layer2, self.layer3, self.layer4]

    def preparation(self) -> str:
        return image_preparation(self.settings["size"])


def _load(network: ResNet, path: Path) -> None:
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise BadInput(f"cannot read ResNet weights from {path} as safetensors: {error}") from error
    wanted = network.state_dict()
    lacking = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    if lacking:
        raise BadInput(f"{path} is no ResNet-18: it lacks {len(lacking)} tensors such as '{lacking[0]}'")
    for name, tensor in wanted.items():
        if name in found and found[name].shape != tensor.shape:
            shapes = f"{tuple(found[name].shape)}, not {tuple(tensor.shape)}"
            raise BadInput(f"'{name}' in {path} has shape {shapes}: it may be for the other stem (small, large)")
    network.load_state_dict({name: found.get(name, tensor) for name, tensor in wanted.items()})
